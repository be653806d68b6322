"""Every error Strandline raises on purpose.

StrandlineError
├── InvalidRequestError         the caller's fault; asking again unchanged fails again
│   ├── InvalidConfigError      a configuration key or value is wrong
│   ├── InvalidSubjectError     not a NATS subject, or not one a stream may bind
│   ├── InvalidRecordError      bytes that are not what they claim to be
│   ├── RecordTooLargeError     a record or batch over its limit
│   ├── OffsetOutOfRangeError   below the log start or beyond the end
│   ├── WrongLastSequenceError  an expected last sequence did not match
│   ├── StreamMismatchError     the expected stream does not store the subject
│   ├── OutOfOrderSequenceError a producer's batch is not the next, nor one stored before
│   ├── ProducerFencedError     a producer of a later epoch has taken over
│   ├── TransactionAbortedError the transaction's time was over, or somebody ended it
│   ├── TransactionPreparedError a prepared transaction waits for its outside decision
│   ├── UnknownTransactionError no such transaction, or not in the state that is needed
│   ├── BatchSupersededError    a later batch was published under the transaction id
│   ├── FingerprintMismatchError the batch was published with another fingerprint
│   ├── UnknownGroupError       no such consumer group
│   ├── UnknownMemberError      not, or no more, a member of the consumer group
│   ├── MemberFencedError       another consumer took the static member's name over
│   ├── StaleMemberError        the member's partitions have changed since
│   ├── GroupInUseError         the consumer group has members
│   ├── UnknownStreamError      no such stream
│   ├── UnknownPartitionError   the stream has no such partition
│   ├── StreamExistsError       the name is taken
│   ├── ReadonlyError           the partition was made readonly
│   ├── UnauthenticatedError    who asks has not shown who it is
│   └── NotAllowedError         no rule allows it to who asks
├── UnavailableError            the world's fault; the same request may succeed later
│   ├── DiskFullError           no space to store more
│   ├── LogPoisonedError        a write or sync failed; nothing is acked until reopened
│   ├── RequestTimeoutError     no answer in time; whether it happened is unknown
│   ├── ShuttingDownError       the broker is stopping
│   ├── QuotaExceededError      the principal has used up its quota
│   ├── StillLoadingError       a new leader or coordinator still reads what was stored
│   ├── UndecidedPositionsError a transaction is about to commit positions of the group
│   ├── PausedError             the partition is paused
│   ├── EncryptionKeyError      a key is not here that records are encrypted with
│   └── DisconnectedError       no connection to the broker
│       └── ClientClosedError   the client was closed
├── CorruptBatchError           damaged bytes in a file; names the file and the position
├── DecryptionError             a batch is not what was encrypted, though its checksum is right
├── DataDirLockedError          another broker uses the data directory
└── DataLossError               records a reader was promised are gone

Rules: each class has a stable ``code`` that crosses the wire (docs/errors.md lists them), and the
message says what to do. ``assert`` is for our own bugs and is never caught.
"""

from typing import ClassVar, Final

UNDECODABLE: Final = (ValueError, RecursionError)
"""What msgspec raises at bytes that are not what they should be: its own errors and that of bad
UTF-8 are both a ``ValueError``."""


class StrandlineError(Exception):
    """Base of all errors; ``code`` is stable, ``retriable`` says whether trying again may help."""

    code: ClassVar[str] = "error"
    retriable: ClassVar[bool] = False

    @property
    def message(self) -> str:
        """The sentence for a person."""
        return str(self.args[0]) if self.args else self.code


class InvalidRequestError(StrandlineError):
    """The request is wrong and will stay wrong."""

    code = "invalid_request"


class InvalidConfigError(InvalidRequestError):
    """A configuration key or value is wrong."""

    code = "invalid_config"


class InvalidSubjectError(InvalidRequestError):
    """Not a NATS subject, or not one that may be used here."""

    code = "invalid_subject"


class InvalidRecordError(InvalidRequestError):
    """Bytes that are not what they claim to be."""

    code = "invalid_record"


class RecordTooLargeError(InvalidRequestError):
    """A record or a batch exceeds its limit."""

    code = "record_too_large"


class OffsetOutOfRangeError(InvalidRequestError):
    """An offset below the log start offset or beyond the high watermark."""

    code = "offset_out_of_range"


class WrongLastSequenceError(InvalidRequestError):
    """``Nats-Expected-Last-Sequence`` is not the partition's last sequence."""

    code = "wrong_last_sequence"


class StreamMismatchError(InvalidRequestError):
    """The stream that the publisher expects does not store the subject."""

    code = "stream_mismatch"


class OutOfOrderSequenceError(InvalidRequestError):
    """A batch of an idempotent producer is neither the next one nor one that was stored lately."""

    code = "out_of_order_sequence"


class ProducerFencedError(InvalidRequestError):
    """A producer with the same id and a later epoch has taken over."""

    code = "producer_fenced"


class TransactionAbortedError(InvalidRequestError):
    """The transaction was aborted: its time was over, or somebody ended it."""

    code = "transaction_aborted"


class TransactionPreparedError(InvalidRequestError):
    """A transaction under this id is prepared and waits for its outside decision."""

    code = "transaction_prepared"


class UnknownTransactionError(InvalidRequestError):
    """No such transaction, or it is not in the state that the request needs."""

    code = "unknown_transaction"


class BatchSupersededError(InvalidRequestError):
    """A batch with a larger number was published under this transaction id."""

    code = "batch_superseded"


class FingerprintMismatchError(InvalidRequestError):
    """This batch was published with another fingerprint."""

    code = "fingerprint_mismatch"


class UnknownGroupError(InvalidRequestError):
    """No consumer group has this name."""

    code = "unknown_group"


class UnknownMemberError(InvalidRequestError):
    """Not, or no more, a member of the consumer group: it was not heard of in time."""

    code = "unknown_member"


class MemberFencedError(InvalidRequestError):
    """Another consumer has joined the group under the same instance name."""

    code = "member_fenced"


class StaleMemberError(InvalidRequestError):
    """The member's partitions have changed since it last heard of them."""

    code = "stale_member"


class GroupInUseError(InvalidRequestError):
    """The consumer group has members, who alone may change its positions."""

    code = "group_in_use"


class UnknownStreamError(InvalidRequestError):
    """No stream has this name."""

    code = "unknown_stream"


class UnknownPartitionError(InvalidRequestError):
    """The stream has no partition of this number."""

    code = "unknown_partition"


class StreamExistsError(InvalidRequestError):
    """A stream of this name exists."""

    code = "stream_exists"


class ReadonlyError(InvalidRequestError):
    """The partition was made readonly."""

    code = "readonly"


class UnauthenticatedError(InvalidRequestError):
    """Who asks has not shown who it is, or what it has shown is worth nothing here."""

    code = "unauthenticated"


class NotAllowedError(InvalidRequestError):
    """No rule allows it to who asks."""

    code = "not_allowed"


class UnavailableError(StrandlineError):
    """The request was fine; the world was not."""

    code = "unavailable"
    retriable = True


class DiskFullError(UnavailableError):
    """No space left to store records; heals when space returns."""

    code = "disk_full"


class LogPoisonedError(UnavailableError):
    """A write or sync failed; nothing more is acked until the log is reopened and verified."""

    code = "log_poisoned"


class RequestTimeoutError(UnavailableError):
    """No answer in time; whether the request took effect is unknown."""

    code = "timeout"


class ShuttingDownError(UnavailableError):
    """The broker is stopping."""

    code = "shutting_down"


class PausedError(UnavailableError):
    """The partition is paused until somebody wants it again."""

    code = "paused"


class EncryptionKeyError(UnavailableError):
    """A key is not here that records are encrypted with; the message names it."""

    code = "encryption_key"


class QuotaExceededError(UnavailableError):
    """The principal has used up its quota at this broker.

    Args:
        message: says which, and when to ask again.
        wait_ms: after how long it is worth asking again; 0: when something else has ended.
    """

    code = "quota_exceeded"
    wait_ms: int = 0

    def __init__(self, message: str, *, wait_ms: int = 0) -> None:
        super().__init__(message)
        self.wait_ms = wait_ms


class StillLoadingError(UnavailableError):
    """A leader or a coordinator has just begun and still reads what was stored."""

    code = "still_loading"


class UndecidedPositionsError(UnavailableError):
    """A transaction is about to commit positions of the consumer group; retry when it is over."""

    code = "undecided_positions"


class DisconnectedError(UnavailableError):
    """No connection to the broker."""

    code = "disconnected"


class ClientClosedError(DisconnectedError):
    """The client was closed, and what belongs to it with it."""

    code = "client_closed"
    retriable = False


class NotLeaderError(UnavailableError):
    """Another broker leads now, or none; the message says which, if it is known."""

    code = "not_leader"

    def __init__(self, message: str, *, is_leaderless: bool = False) -> None:
        super().__init__(message)
        self.is_leaderless = is_leaderless
        """Whether the metadata says that no broker leads."""


class NotEnoughReplicasError(UnavailableError):
    """Fewer than ``min_isr`` replicas are in sync: nothing was stored."""

    code = "not_enough_replicas"


class CorruptBatchError(StrandlineError):
    """Damaged bytes in a file of the log.

    Args:
        message: what is wrong.
        file: path of the damaged file.
        position: byte in the file at which the damaged batch begins.
        first_offset: the first offset that cannot be read, -1 if not known.
        next_offset: the first offset after the damage that can be read, -1 if not known.
    """

    code = "corrupt_batch"

    def __init__(
        self,
        message: str,
        *,
        file: str = "",
        position: int = 0,
        first_offset: int = -1,
        next_offset: int = -1,
    ) -> None:
        where = f"{file} at byte {position}: " if file else ""
        super().__init__(f"{where}{message}")
        self.file = file
        self.position = position
        self.first_offset = first_offset
        self.next_offset = next_offset


class DecryptionError(StrandlineError):
    """A batch is not what was encrypted, though its checksum is right: somebody changed it."""

    code = "decryption_failed"


class DataDirLockedError(StrandlineError):
    """Another broker uses the data directory."""

    code = "data_dir_locked"


class DataLossError(StrandlineError):
    """Records that a reader was promised are gone."""

    code = "data_loss"


def all_error_classes() -> list[type[StrandlineError]]:
    """Every error class that has a code, parents first, for the wire mapping and the docs test.

    One that only a package needs for itself has the code of its parent, and travels as that.
    """
    found: list[type[StrandlineError]] = [StrandlineError]
    for cls in found:
        found.extend(each for each in cls.__subclasses__() if "code" in vars(each))
    return found

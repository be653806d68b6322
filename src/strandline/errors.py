"""All errors that Strandline raises on purpose.

StrandlineError
├── InvalidRequestError         an error in the request; a retry fails again
│   ├── InvalidConfigError      a configuration key or value is wrong
│   ├── InvalidSubjectError     not a NATS subject, or not one a stream may bind
│   ├── InvalidRecordError      bytes in the wrong format
│   │   └── SchemaMismatchError a value that does not fit its stream's schema
│   ├── RecordTooLargeError     a record or batch over its limit
│   ├── OffsetOutOfRangeError   below the log start or beyond the end
│   ├── WrongLastSequenceError  the expected last sequence did not match
│   ├── StreamMismatchError     the expected stream does not store the subject
│   ├── OutOfOrderSequenceError a producer's batch is neither the next one nor a repeat
│   ├── ProducerFencedError     a newer producer epoch has taken over
│   ├── TransactionAbortedError the transaction timed out, or another client ended it
│   ├── TransactionPreparedError a prepared transaction waits for an external decision
│   ├── UnknownTransactionError no such transaction, or not in the state that is needed
│   ├── BatchSupersededError    a later batch was published under the transaction id
│   ├── FingerprintMismatchError the batch was published with another fingerprint
│   ├── UnknownGroupError       no such consumer group
│   ├── UnknownMemberError      not, or no longer, a member of the consumer group
│   ├── MemberFencedError       another consumer joined under the instance name
│   ├── StaleMemberError        the member's assignment has changed
│   ├── GroupInUseError         the consumer group has members
│   ├── UnknownStreamError      no such stream
│   ├── UnknownPartitionError   the stream has no such partition
│   ├── StreamExistsError       the name is taken
│   ├── ReadonlyError           the partition is read-only
│   ├── UnauthenticatedError    the caller presented no valid credentials
│   └── NotAllowedError         no access rule allows the operation
├── UnavailableError            a temporary failure; the same request may succeed later
│   ├── DiskFullError           no disk space left
│   ├── LogPoisonedError        a write or sync failed; no acks until the log is reopened
│   ├── RequestTimeoutError     no answer in time; the outcome is unknown
│   ├── ShuttingDownError       the broker is stopping
│   ├── QuotaExceededError      the principal has used up its quota
│   ├── StillLoadingError       a new leader or coordinator is still loading
│   ├── UnstableOffsetCommitError a transaction is about to commit offsets of the group
│   ├── PausedError             the partition is paused
│   ├── EncryptionKeyError      an encryption key is not available
│   └── DisconnectedError       no connection to the broker
│       └── ClientClosedError   the client was closed
├── CorruptBatchError           corrupt bytes in a file; names the file and the position
├── DecryptionError             a batch with a valid checksum does not decrypt
├── DataDirLockedError          another broker uses the data directory
└── DataLossError               records promised to a reader are lost

Rules: each class has a stable ``code`` that crosses the wire (docs/errors.md lists them), and the
message says what to do. ``assert`` is for our own bugs and is never caught.
"""

from typing import ClassVar, Final

UNDECODABLE: Final = (ValueError, RecursionError)
"""The errors that msgspec raises for malformed bytes. Its own errors and those of invalid UTF-8
are subclasses of ``ValueError``."""


class StrandlineError(Exception):
    """Base class of all errors. Each class's fields decide whether a client retries."""

    code: ClassVar[str] = "error"
    """A stable name, which crosses the wire."""
    retriable: ClassVar[bool] = False
    """Whether the same request may succeed at a later time."""
    passes_soon: ClassVar[bool] = False
    """Whether the request may succeed within seconds, perhaps at another broker. A full or failed
    disk may take longer."""
    is_rejection: ClassVar[bool] = False
    """Whether the request certainly had no effect."""
    is_connection_loss: ClassVar[bool] = False
    """Whether the request has to be sent again over a new connection."""

    @property
    def message(self) -> str:
        """Return the message for people."""
        return str(self.args[0]) if self.args else self.code


class InvalidRequestError(StrandlineError):
    """An error in the request; repeating it unchanged fails again."""

    code = "invalid_request"


class InvalidConfigError(InvalidRequestError):
    """A configuration key or value is wrong."""

    code = "invalid_config"


class InvalidSubjectError(InvalidRequestError):
    """A malformed NATS subject, or one that is not allowed here."""

    code = "invalid_subject"


class InvalidRecordError(InvalidRequestError):
    """Bytes that do not have the expected format."""

    code = "invalid_record"


class SchemaMismatchError(InvalidRecordError):
    """A value does not fit the schema of its stream, which has ``schema_validation``."""

    code = "schema_mismatch"
    row: int | None = None
    """The row that does not fit, counted from 0 among the batch's rows for its partition. None if
    the error is about one record alone."""

    @classmethod
    def of_row(cls, row: int, message: str) -> "SchemaMismatchError":
        """Return the error of a batch of several rows."""
        error = cls(f"{_of_row(row)}{message}")
        error.row = row
        return error

    def for_record(self, row: int) -> "SchemaMismatchError":
        """Return the error for a row's record, which may be rejected because of another row."""
        if self.row is None:
            return self
        own = self.message.removeprefix(_of_row(self.row))
        if row == self.row:
            return SchemaMismatchError(own)
        other = SchemaMismatchError(f"not stored, because another record of its batch {own}")
        other.row = self.row
        return other


class RecordTooLargeError(InvalidRequestError):
    """A record or a batch exceeds its limit."""

    code = "record_too_large"


class OffsetOutOfRangeError(InvalidRequestError):
    """An offset below the log start offset or beyond the high watermark."""

    code = "offset_out_of_range"


class WrongLastSequenceError(InvalidRequestError):
    """``Nats-Expected-Last-Sequence`` is not the partition's last sequence."""

    code = "wrong_last_sequence"


class RollupError(InvalidRequestError):
    """A publish with ``Nats-Rollup`` to a stream that does not limit the records of a subject."""

    code = "rollup"


class RepeatedMessageError(InvalidRequestError):
    """A message id occurs twice in an atomic batch, or is stored already."""

    code = "repeated_message"


class StreamMismatchError(InvalidRequestError):
    """The stream that the publisher expects does not store the subject."""

    code = "stream_mismatch"


class OutOfOrderSequenceError(InvalidRequestError):
    """A batch of an idempotent producer is neither the next one nor a recent duplicate."""

    code = "out_of_order_sequence"


class ProducerFencedError(InvalidRequestError):
    """A producer with the same id and a newer epoch has taken over."""

    code = "producer_fenced"


class TransactionAbortedError(InvalidRequestError):
    """The transaction was aborted because it timed out or was ended by another client."""

    code = "transaction_aborted"


class TransactionPreparedError(InvalidRequestError):
    """The transaction with this id is prepared and waits for an external decision."""

    code = "transaction_prepared"


class UnknownTransactionError(InvalidRequestError):
    """The transaction does not exist, or is not in the state that the request needs."""

    code = "unknown_transaction"


class BatchSupersededError(InvalidRequestError):
    """A batch with a larger number was already published under this transactional id."""

    code = "batch_superseded"


class FingerprintMismatchError(InvalidRequestError):
    """This batch was already published with another fingerprint."""

    code = "fingerprint_mismatch"


class UnknownGroupError(InvalidRequestError):
    """No consumer group has this name."""

    code = "unknown_group"


class UnknownMemberError(InvalidRequestError):
    """The consumer is not a member of the group, or was removed after missing heartbeats."""

    code = "unknown_member"


class MemberFencedError(InvalidRequestError):
    """Another consumer has joined the group under the same instance name."""

    code = "member_fenced"


class StaleMemberError(InvalidRequestError):
    """The member's partitions have changed since its last assignment."""

    code = "stale_member"


class GroupInUseError(InvalidRequestError):
    """The consumer group has members, and only they may change its committed offsets."""

    code = "group_in_use"


class UnknownStreamError(InvalidRequestError):
    """No stream has this name."""

    code = "unknown_stream"


class UnknownPartitionError(InvalidRequestError):
    """The stream has no partition of this number."""

    code = "unknown_partition"


class StreamExistsError(InvalidRequestError):
    """A stream with this name exists."""

    code = "stream_exists"


class ReadonlyError(InvalidRequestError):
    """The partition is read-only."""

    code = "readonly"


class UnauthenticatedError(InvalidRequestError):
    """The caller presented no valid credentials."""

    code = "unauthenticated"


class NotAllowedError(InvalidRequestError):
    """No access rule allows the operation."""

    code = "not_allowed"


class UnavailableError(StrandlineError):
    """A temporary failure of the environment; the same request may succeed later."""

    code = "unavailable"
    retriable = True
    passes_soon = True


class DiskFullError(UnavailableError):
    """No disk space is left to store records; writing resumes when space is free."""

    code = "disk_full"
    passes_soon = False


class LogPoisonedError(UnavailableError):
    """A write or sync failed; nothing is acknowledged until the log is reopened and verified."""

    code = "log_poisoned"
    passes_soon = False


class RequestTimeoutError(UnavailableError):
    """The answer did not arrive in time; whether the request took effect is unknown."""

    code = "timeout"
    passes_soon = False


class ShuttingDownError(UnavailableError):
    """The broker is stopping."""

    code = "shutting_down"
    is_rejection = True
    is_connection_loss = True


class PausedError(UnavailableError):
    """The partition is paused until somebody publishes to it or resumes it."""

    code = "paused"
    passes_soon = False


class EncryptionKeyError(UnavailableError):
    """An encryption key is not available; the message names it."""

    code = "encryption_key"
    passes_soon = False


class QuotaExceededError(UnavailableError):
    """The principal has used up its quota at this broker.

    Args:
        message: names the quota and when to retry.
        wait_ms: milliseconds until a retry may succeed; 0 if it depends on another request ending.
    """

    code = "quota_exceeded"
    wait_ms: int = 0

    def __init__(self, message: str, *, wait_ms: int = 0) -> None:
        super().__init__(message)
        self.wait_ms = wait_ms


class StillLoadingError(UnavailableError):
    """A new leader or coordinator is still reading its stored state."""

    code = "still_loading"
    is_rejection = True


class UnstableOffsetCommitError(UnavailableError):
    """A transaction is about to commit offsets of the consumer group; retry when it has ended."""

    code = "unstable_offset_commit"
    passes_soon = False


class DisconnectedError(UnavailableError):
    """No connection to the broker."""

    code = "disconnected"
    is_connection_loss = True


class ClientClosedError(DisconnectedError):
    """The client, and everything that belongs to it, was closed."""

    code = "client_closed"
    retriable = False
    passes_soon = False
    is_connection_loss = False


class NotLeaderError(UnavailableError):
    """Another broker leads the partition, or none does; the message names the leader if known."""

    code = "not_leader"
    is_rejection = True

    def __init__(self, message: str, *, is_leaderless: bool = False) -> None:
        super().__init__(message)
        self.is_leaderless = is_leaderless
        """Whether the metadata says that no broker leads."""


class NotEnoughReplicasError(UnavailableError):
    """Fewer than ``min_isr`` replicas are in sync; nothing was stored."""

    code = "not_enough_replicas"
    is_rejection = True


class CorruptBatchError(StrandlineError):
    """Corrupt bytes in a file of the log.

    Args:
        message: what is wrong.
        file: path of the corrupt file.
        position: byte in the file at which the corrupt batch begins.
        first_offset: the first offset that cannot be read, -1 if unknown.
        next_offset: the first offset after the corrupt range that can be read, -1 if unknown.
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
    """A batch with a valid checksum does not decrypt: its bytes were changed on purpose."""

    code = "decryption_failed"


class DataDirLockedError(StrandlineError):
    """Another broker process uses the data directory."""

    code = "data_dir_locked"


class DataLossError(StrandlineError):
    """Records that were promised to a reader are lost."""

    code = "data_loss"


def _of_row(row: int) -> str:
    return f"row {row}, counted from 0 within its partition, "


def all_error_classes() -> list[type[StrandlineError]]:
    """Return every error class that has a code, parents first.

    A class that is private to a package has its parent's code and is sent as the parent.
    """
    found: list[type[StrandlineError]] = [StrandlineError]
    for cls in found:
        found.extend(each for each in cls.__subclasses__() if "code" in vars(each))
    return found

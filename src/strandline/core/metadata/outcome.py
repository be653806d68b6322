"""Outcome of a command: the same on every broker, recorded, and sent to the proposer.

A command is applied or rejected as a whole, with one exception: a command that carries many
partitions is applied to those for which it is valid, and the outcome lists the others.
"""

from typing import Literal

import msgspec

from strandline.errors import InvalidRequestError, StrandlineError, all_error_classes
from strandline.types import PartitionName

Reason = Literal[
    "",
    "duplicate_broker",  # the id belongs to another data directory
    "unknown_broker",
    "older_copy",  # the broker has less than it had acknowledged
    "removed_broker",  # the id belonged to a broker that was removed
    "stale_incarnation",  # for, or from, an earlier run of the broker
    "broker_in_use",  # still live, or still has partitions
    "last_replica",  # the only replica that surely has what was committed
    "bad_assignment",
    "stale_partition",  # the partition has changed since the decision
    "not_leader",
    "not_eligible",  # may not lead, or may not be in the ISR
    "not_in_sync",  # the new leader may lack committed records
    "not_ready",  # a replica that is being added is not in sync yet
    "session_expired",
    "sequence_passed",  # a later command of this proposer was applied already
    "unknown_stream",
    "unknown_group",
    "unknown_member",
    "already_member",
    "stale_keys",  # would replace a data key that records need
    "stale_schema",  # another version was added first
    "stale_group",  # the consumer group has changed since it was decided
    "unknown_rule",
    "unknown_token",
    "unknown_quota",
    "duplicate_token",  # the id belongs to another token
    "limit",
]
"""Why a command was rejected, as a stable code; the message is for people."""


class CommandRejectedError(Exception):
    """A command that does not apply, inside this package; it becomes a ``CommandOutcome``."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class CommandRejection(msgspec.Struct, frozen=True, array_like=True):
    """One partition for which a command was not applied, and why."""

    stream: str
    partition: int
    reason: Reason
    message: str

    @property
    def name(self) -> PartitionName:
        """The partition's name."""
        return PartitionName(self.stream, self.partition)


class CommandOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a command: applied, or rejected with a stable code."""

    code: str = ""
    """Empty if applied, else the code of an error class of ``errors.py``."""
    reason: Reason = ""
    message: str = ""
    value: int = 0
    """The allocated id: the first producer id of a block, or the client id of a session."""
    rejected: tuple[CommandRejection, ...] = ()

    @property
    def is_applied(self) -> bool:
        """Whether the command took effect."""
        return not self.code

    def raise_if_rejected(self) -> None:
        """Raise the error of a rejected command.

        Raises:
            StrandlineError: of the class with the recorded code.
        """
        if self.code:
            kinds = {kind.code: kind for kind in all_error_classes()}
            raise kinds.get(self.code, StrandlineError)(self.message)


def refused(error: CommandRejectedError | StrandlineError) -> CommandOutcome:
    """Return the outcome of a rejected command."""
    if isinstance(error, CommandRejectedError):
        return CommandOutcome(
            code=InvalidRequestError.code, reason=error.reason, message=error.message
        )
    return CommandOutcome(code=error.code, message=error.message)

"""Outcome of a command: the same on every broker, recorded, and sent to the proposer.

A command never fails halfway. It is applied or refused whole, with one exception: a command that
carries many partitions (of which each stands for itself) is applied to those it fits, and the
outcome lists the others.
"""

from typing import Literal

import msgspec

from strandline.errors import InvalidRequestError, StrandlineError, all_error_classes
from strandline.types import PartitionName

Reason = Literal[
    "",
    "duplicate_broker",  # the id belongs to another data directory
    "unknown_broker",
    "older_copy",  # the broker came with less than it had acknowledged
    "removed_broker",  # the id was another broker's, which was removed
    "stale_incarnation",  # meant for, or sent by, an earlier run of the broker
    "broker_in_use",  # still serving, or still keeps partitions
    "last_replica",  # the only one that surely has what was committed
    "bad_assignment",
    "stale_partition",  # the partition, its epoch or its version is not the one named
    "not_leader",
    "not_eligible",  # may not lead, or may not be in the ISR
    "not_in_sync",  # would elect one that may lack committed records
    "not_ready",  # a replica that is being added is not in sync yet
    "session_expired",
    "sequence_passed",  # a later command of this proposer was applied already
    "unknown_stream",
    "unknown_group",
    "unknown_member",
    "already_member",
    "stale_keys",  # would put another data key in the place of one that records need
    "stale_group",  # the consumer group has changed since it was decided
    "unknown_rule",
    "unknown_token",
    "unknown_quota",
    "duplicate_token",  # the id belongs to another token
    "limit",
]
"""Why a command was refused, for programs; the message is for people. Stable."""


class CommandRejectedError(Exception):
    """Inside this package only: a command that does not apply. Becomes an ``CommandOutcome``."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class CommandRejection(msgspec.Struct, frozen=True, array_like=True):
    """One partition of a command that was left out, and why."""

    stream: str
    partition: int
    reason: Reason
    message: str

    @property
    def name(self) -> PartitionName:
        """The partition."""
        return PartitionName(self.stream, self.partition)


class CommandOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Applied, or refused with a stable code."""

    code: str = ""
    """Empty if applied, else the code of an error class of ``errors.py``."""
    reason: Reason = ""
    message: str = ""
    value: int = 0
    """What was given out: the first producer id of a block, the client id of a session."""
    rejected: tuple[CommandRejection, ...] = ()

    @property
    def is_applied(self) -> bool:
        """Whether the command took effect."""
        return not self.code

    def raise_if_rejected(self) -> None:
        """Raise what the code stands for.

        Raises:
            StrandlineError: of the class whose code was recorded.
        """
        if self.code:
            kinds = {kind.code: kind for kind in all_error_classes()}
            raise kinds.get(self.code, StrandlineError)(self.message)


def refused(error: CommandRejectedError | StrandlineError) -> CommandOutcome:
    """The outcome of a command that does not apply."""
    if isinstance(error, CommandRejectedError):
        return CommandOutcome(
            code=InvalidRequestError.code, reason=error.reason, message=error.message
        )
    return CommandOutcome(code=error.code, message=error.message)

"""Effects of the group coordinator besides those in ``coordinator_effects``."""

from typing import NamedTuple

import msgspec

from strandline.core.coordinator_effects import Decision
from strandline.core.groups.state import GroupEntry, Partitions, Positions


class Expired(msgspec.Struct, frozen=True):
    """A member was removed because its session timed out; to be logged."""

    group: str
    member: str


Effect = Decision[GroupEntry] | Expired


class GroupAssignment(NamedTuple):
    """The partitions that a member may consume."""

    epoch: int
    partitions: Partitions
    """All partitions of the member; it must release any others that it still consumes."""
    positions: Positions
    """The committed offsets of partitions that are new to the member, if there are any."""
    began_with: dict[str, int]
    """How many partitions each stream had when the group first consumed it."""
    is_waiting: bool = False
    """Other members have not released all of its partitions yet: it should ask again soon."""

"""Effects of the group coordinator besides those of every coordinator (``decisions``)."""

from dataclasses import dataclass
from typing import NamedTuple

from strandline.core.coordinator_effects import Decision
from strandline.core.groups.state import GroupEntry, Partitions, Positions


@dataclass(frozen=True, slots=True)
class Expired:
    """A member was removed because its session timed out; to be logged."""

    group: str
    member: str


Effect = Decision[GroupEntry] | Expired


class GroupAssignment(NamedTuple):
    """The partitions that a member may consume."""

    epoch: int
    partitions: Partitions
    """All of them; what the member holds beyond them it is to give up."""
    positions: Positions
    """Where to begin in those that it did not hold, if anything was committed."""
    began_with: dict[str, int]
    """How many partitions the streams of those had when the group began with them."""
    is_waiting: bool = False
    """More is meant for it, which others have not given up yet: it had better ask again soon."""

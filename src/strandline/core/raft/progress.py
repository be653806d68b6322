"""A leader's view of one follower's log."""

from dataclasses import dataclass

from strandline.core.raft.messages import Index

_NONE = Index(0)


@dataclass(slots=True)
class RaftProgress:
    """Of one follower.

    Attributes:
        next: index of the entry to send next.
        match: everything up to here is on the follower's disk and equal to ours.
        wait_ticks: until what was sent is sent again; 0: nothing is under way.
        active: heard from since the last check of the quorum.
        round: newest read round it has confirmed.
    """

    next: Index
    match: Index = _NONE
    wait_ticks: int = 0
    active: bool = True
    round: int = 0

    def accepted(self, index: Index) -> bool:
        """Take in that everything up to ``index`` is there; whether that is news."""
        if index <= self.match:
            return False
        self.match = index
        self.next = Index(index + 1)
        self.wait_ticks = 0
        return True

    def refused(self, index: Index, hint: Index) -> None:
        """Take in that the entry at ``index`` is not the same there; go back, at most to ``hint``.

        An answer to something older than what is under way says nothing new.
        """
        if index == self.next - 1 and index > self.match:
            self.next = Index(max(self.match + 1, min(index, hint + 1)))
            self.wait_ticks = 0

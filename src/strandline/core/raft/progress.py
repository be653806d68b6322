"""A leader's view of one follower's log."""

import msgspec

from strandline.core.raft.messages import Index

_NONE = Index(0)


class RaftProgress(msgspec.Struct):
    """The state of one follower.

    Attributes:
        next: index of the entry to send next.
        match: the last entry known to be on the follower's disk and equal to ours.
        wait_ticks: ticks until unanswered entries are sent again; 0: none are outstanding.
        active: whether it has answered since the last quorum check.
        round: the newest round of heartbeats that it has answered.
    """

    next: Index
    match: Index = _NONE
    wait_ticks: int = 0
    active: bool = True
    round: int = 0

    def accepted(self, index: Index) -> bool:
        """Note that the follower has all entries up to ``index``; return whether that is new."""
        if index <= self.match:
            return False
        self.match = index
        self.next = Index(index + 1)
        self.wait_ticks = 0
        return True

    def refused(self, index: Index, hint: Index) -> None:
        """Note that the follower's entry at ``index`` differs, and go back, at most to ``hint``.

        An answer to an earlier message is ignored.
        """
        if index == self.next - 1 and index > self.match:
            self.next = Index(max(self.match + 1, min(index, hint + 1)))
            self.wait_ticks = 0

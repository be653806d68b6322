"""What a consumer commits: how far its group has come, told when it is time.

Rules: what is known to be committed is not told twice; what a transaction was told is not known to
be. What was told under an epoch that has passed meanwhile is told again under the new one, as long
as the partitions are still the member's. Must not know how records are read. One thread.
"""

import logging
import time
from collections.abc import Collection, Iterable, Mapping

from strandline.client.membership import Membership
from strandline.client.positions import Offsets, Owner, Tell
from strandline.client.retry import RetrySchedule
from strandline.errors import StaleMemberError, StrandlineError, UnknownMemberError
from strandline.types import PartitionName

logger = logging.getLogger(__name__)

COMMIT_ATTEMPTS = 5


class OffsetCommitter:
    """The commits of one consumer.

    Args:
        group: its name.
        membership: of the consumer.
        places: the next record to hand out, of each partition; shared with the consumer.
        tell: where positions are kept.
        interval_s: how often to commit; None: only when asked to.
    """

    def __init__(
        self,
        group: str,
        membership: Membership,
        places: Mapping[PartitionName, int],
        *,
        tell: Tell,
        interval_s: float | None,
    ) -> None:
        self._group = group
        self._membership = membership
        self._places = places
        self._tell = tell
        self.interval_s = interval_s
        self._committed: dict[PartitionName, int] = {}
        self._committed_s = time.monotonic()
        self._retry = RetrySchedule()

    def found(self, starts: Offsets) -> None:
        """So much is committed already."""
        self._committed |= starts

    def forget(self, partitions: Iterable[PartitionName]) -> None:
        """What is committed of these is not known (any more)."""
        for name in partitions:
            self._committed.pop(name, None)

    def pending(self, partitions: Iterable[PartitionName]) -> dict[PartitionName, int]:
        """Where partitions are, of those that have moved since they were committed."""
        places = {name: self._places[name] for name in partitions}
        return {name: at for name, at in places.items() if self._committed.get(name) != at}

    def commit(self, offsets: Offsets, tell: Tell | None = None) -> None:
        """Commit; ``tell`` is a transaction to tell, with which it counts or not.

        Raises:
            UnknownMemberError, StaleMemberError: others consume those records.
            StrandlineError: whether it was noted is unknown.
        """
        self.forget(offsets)  # what is not answered may be noted all the same
        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            if not offsets:
                break
            try:
                (tell or self._tell)(self._group, offsets, self._owner())
            except StaleMemberError:
                # Something else of ours has moved: hear of it, and commit under the new epoch.
                self._membership.beat()
                held = self._membership.view().held
                if attempt == COMMIT_ATTEMPTS or not held.issuperset(offsets):
                    raise
            else:
                if tell is None:
                    self._committed |= offsets
                break
        self._committed_s = time.monotonic()

    def _owner(self) -> Owner:
        view = self._membership.view()
        if view.is_lost:
            raise UnknownMemberError(
                f"this consumer is no member of group {self._group!r} any more; it joins again"
            )
        return view.owner

    def commit_if_due(self) -> None:
        """Commit what was handed out before this poll, when it is time."""
        now_s = time.monotonic()
        if self.interval_s is None or now_s - self._committed_s < self.interval_s:
            return
        if self._retry.is_due(now_s):
            self.commit_softly(self._places)

    def commit_softly(self, partitions: Collection[PartitionName]) -> None:
        """Commit, but go on if it cannot be: the records are consumed again by whoever is next.

        Does nothing where the user commits.
        """
        if self.interval_s is None:
            return
        try:
            self.commit(self.pending(partitions))
        except (UnknownMemberError, StaleMemberError) as error:
            logger.warning("group %s: not committed: %s", self._group, error)
        except StrandlineError as error:
            if not error.retriable:
                raise
            now_s = time.monotonic()
            self._retry.failed(now_s)
            if self._retry.is_news(now_s):
                logger.warning("group %s: not committed, will try again: %s", self._group, error)
        else:
            self._retry.succeeded()

"""The offset commits of a consumer: periodic, explicit, and in transactions.

Rules: offsets known to be committed are not sent again; those sent to a transaction are not known
to be. A commit under an outdated epoch is repeated under the new one as long as the partitions are
still the member's. Must not know how records are read. Used by one thread.
"""

import logging
import time
from collections.abc import Collection, Iterable, Mapping

from strandline.client.consumer.membership import GroupMembership
from strandline.client.consumer.offset_store import CommitCall, Offsets, Owner
from strandline.client.retry_policy import RetrySchedule
from strandline.errors import StaleMemberError, StrandlineError, UnknownMemberError
from strandline.types import PartitionName

logger = logging.getLogger(__name__)

COMMIT_ATTEMPTS = 5


class OffsetCommitter:
    """Commits the offsets of one consumer.

    Args:
        group: its name.
        membership: the membership of the consumer.
        positions: the next offset to return of each partition; shared with the consumer.
        commit_call: stores the offsets.
        interval_s: commit interval; None: only when asked to.
    """

    def __init__(
        self,
        group: str,
        membership: GroupMembership,
        positions: Mapping[PartitionName, int],
        *,
        commit_call: CommitCall,
        interval_s: float | None,
    ) -> None:
        self._group = group
        self._membership = membership
        self._positions = positions
        self._commit_call = commit_call
        self.interval_s = interval_s
        self._committed: dict[PartitionName, int] = {}
        self._committed_s = time.monotonic()
        self._retry = RetrySchedule()

    def found(self, starts: Offsets) -> None:
        """Note offsets that are already committed."""
        self._committed |= starts

    def forget(self, partitions: Iterable[PartitionName]) -> None:
        """Forget what is known to be committed of these partitions."""
        for name in partitions:
            self._committed.pop(name, None)

    def pending(self, partitions: Iterable[PartitionName]) -> dict[PartitionName, int]:
        """Return the positions of those partitions that are not committed."""
        positions = {name: self._positions[name] for name in partitions}
        return {name: at for name, at in positions.items() if self._committed.get(name) != at}

    def commit(self, offsets: Offsets, commit_call: CommitCall | None = None) -> None:
        """Commit offsets; with ``commit_call`` as part of a transaction.

        Raises:
            UnknownMemberError, StaleMemberError: other members consume those records.
            StrandlineError: whether they were committed is unknown.
        """
        self.forget(offsets)  # without an answer they may be committed or not
        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            if not offsets:
                break
            try:
                (commit_call or self._commit_call)(self._group, offsets, self._owner())
            except StaleMemberError:
                # Another of our partitions moved: fetch the new epoch, and commit under it.
                self._membership.heartbeat()
                held = self._membership.assignment().held
                if attempt == COMMIT_ATTEMPTS or not held.issuperset(offsets):
                    raise
            else:
                if commit_call is None:
                    self._committed |= offsets
                break
        self._committed_s = time.monotonic()

    def _owner(self) -> Owner:
        view = self._membership.assignment()
        if view.is_lost:
            raise UnknownMemberError(
                f"this consumer is no longer a member of group {self._group!r}; it joins again"
            )
        return view.owner

    def commit_if_due(self) -> None:
        """Commit the records returned before this poll, once the interval has passed."""
        now_s = time.monotonic()
        if self.interval_s is None or now_s - self._committed_s < self.interval_s:
            return
        if self._retry.is_due(now_s):
            self.commit_softly(self._positions)

    def commit_softly(self, partitions: Collection[PartitionName]) -> None:
        """Commit, but continue after a failure: the next owner consumes the records again.

        Does nothing where the user commits.
        """
        if self.interval_s is None:
            return
        try:
            self.commit(self.pending(partitions))
        except (UnknownMemberError, StaleMemberError) as error:
            logger.warning("group %s: offsets not committed: %s", self._group, error)
        except StrandlineError as error:
            if not error.retriable:
                raise
            now_s = time.monotonic()
            self._retry.failed(now_s)
            if self._retry.should_log(now_s):
                logger.warning(
                    "group %s: offsets not committed, will retry: %s", self._group, error
                )
        else:
            self._retry.succeeded()

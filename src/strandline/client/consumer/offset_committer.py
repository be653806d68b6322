"""The offset commits of a consumer: at intervals, explicit, and in transactions.

Rules: offsets known to be committed are not sent again; offsets sent to a transaction do not count
as committed. A commit that is rejected for an outdated epoch is repeated with the new epoch as long
as the member has the partitions. Must not know how records are read. Used by one thread.
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
        group: the group's name.
        membership: the consumer's membership.
        positions: the next offset to return in each partition; shared with the consumer.
        commit_call: commits offsets in the store.
        interval_s: the interval of commits; None: only on request.
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
        """Forget which offsets of these partitions are known to be committed."""
        for name in partitions:
            self._committed.pop(name, None)

    def pending(self, partitions: Iterable[PartitionName]) -> dict[PartitionName, int]:
        """Return the positions of the partitions that are not committed yet."""
        positions = {name: self._positions[name] for name in partitions}
        return {name: at for name, at in positions.items() if self._committed.get(name) != at}

    def commit(self, offsets: Offsets, commit_call: CommitCall | None = None) -> None:
        """Commit offsets; with ``commit_call``, as part of a transaction.

        Raises:
            UnknownMemberError, StaleMemberError: other members consume those records now.
            StrandlineError: the offsets may or may not be committed.
        """
        self.forget(offsets)  # without an answer it is unknown whether they are committed
        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            if not offsets:
                break
            try:
                (commit_call or self._commit_call)(self._group, offsets, self._owner())
            except StaleMemberError:
                # Another partition of this member has moved: fetch the new epoch, and commit with
                # it.
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
        """Commit; after a failure only log it: the next owner will consume the records again.

        Does nothing if only the user commits.
        """
        if self.interval_s is None:
            return
        try:
            self.commit(self.pending(partitions))
        except (UnknownMemberError, StaleMemberError) as error:
            logger.warning("group %s: offsets could not be committed: %s", self._group, error)
        except StrandlineError as error:
            if not error.retriable:
                raise
            now_s = time.monotonic()
            self._retry.failed(now_s)
            if self._retry.should_log(now_s):
                logger.warning(
                    "group %s: offsets could not be committed, will retry: %s", self._group, error
                )
        else:
            self._retry.succeeded()

"""The coordinator of consumer groups, on the broker that leads their internal stream.

``Broker.groups`` is a ``GroupCoordinatorService``. Its methods are coroutines on the broker's loop,
and any server may call them:

- ``join``, ``heartbeat``, ``leave``: membership of a group (``strandline.core.groups.events``);
- ``commit(group, positions)``: commit offsets, as stream → partition → offset of the next record to
  consume; returns when every in-sync replica has them. A consumer that is not a member, such as a
  Liftbridge cursor, commits to a group without members;
- ``committed_offsets(group)``: the committed offsets, empty for an unknown group;
- ``groups()``, ``describe(group)``, ``delete(group)``.

All raise ``NotLeaderError`` if another broker is the coordinator, that is, the leader of partition
0 of the stream ``__groups``. They raise ``StillLoadingError`` shortly after the coordinator moved
here: retry.

Committed offsets are read from memory. In a cluster a read first stores an entry: only that shows
that no other broker has become the coordinator.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any

from strandline.api.groups import GROUPS_STREAM
from strandline.broker.coordinators.runtime import (
    CoordinatorHost,
    CoordinatorRuntime,
    CoordinatorTerm,
    Token,
)
from strandline.core.coordinator_effects import EntriesStored, Tick, restore
from strandline.core.groups import effects as fx
from strandline.core.groups import events as ev
from strandline.core.groups.coordinator import GroupCoordinator
from strandline.core.groups.effects import GroupAssignment
from strandline.core.groups.state import (
    ConsumerGroup,
    GroupsState,
    Partitions,
    Positions,
    decode_entry,
    encode_entry,
)
from strandline.core.groups.transactions import PendingOffsets, TransactionMark
from strandline.errors import StrandlineError, UnknownGroupError, UnstableOffsetCommitError
from strandline.telemetry import GroupSample

logger = logging.getLogger(__name__)


class GroupCoordinatorService(CoordinatorRuntime[GroupCoordinator]):
    """Consumer groups: requests to the group coordinator, run on this broker.

    Args:
        broker: this broker.
    """

    def __init__(self, broker: CoordinatorHost) -> None:
        super().__init__(broker, GROUPS_STREAM, "group coordinator", encode=encode_entry)
        broker.on_streams_changed(self._streams_changed)

    # Members

    async def join(
        self,
        group: str,
        member: str,
        streams: Iterable[str],
        *,
        session_ms: int,
        instance: str = "",
        keeps: bool = False,
        owner: str = "",
    ) -> GroupAssignment:
        """Join a group; see ``events.Join``.

        Raises:
            UnknownStreamError: one of the streams does not exist.
            NotAllowedError: another principal uses that member id or instance name.
            StrandlineError: as for ``CoordinatorRuntime.request``.
        """
        names = tuple(streams)
        assigned: GroupAssignment = await self._ask(
            lambda token: ev.Join(token, group, member, names, session_ms, instance, keeps, owner)
        )
        return assigned

    async def heartbeat(
        self,
        group: str,
        member: str,
        *,
        epoch: int,
        held: Partitions,
        instance: str = "",
        owner: str = "",
    ) -> GroupAssignment:
        """Renew a member's session; see ``events.Heartbeat``.

        Raises:
            UnknownMemberError, MemberFencedError: it was never a member, or no longer is.
            NotAllowedError: the member belongs to another principal.
            StrandlineError: as for ``CoordinatorRuntime.request``.
        """
        assigned: GroupAssignment = await self._ask(
            lambda token: ev.Heartbeat(token, group, member, epoch, held, instance, owner)
        )
        return assigned

    async def leave(self, group: str, member: str, *, owner: str = "") -> None:
        """Leave a group.

        Raises:
            NotAllowedError: the member belongs to another principal.
            StrandlineError: as for ``CoordinatorRuntime.request``.
        """
        await self._ask(lambda token: ev.Leave(token, group, member, owner))

    # Committed offsets

    async def commit(
        self,
        group: str,
        positions: Positions,
        *,
        member: str = "",
        epoch: int = 0,
        number: int = 0,
        transaction: PendingOffsets | None = None,
        owner: str = "",
        metadata: str = "",
    ) -> None:
        """Commit offsets; return when every in-sync replica has them.

        Args:
            group: the group's name.
            positions: offsets of the next records to consume.
            member: the member that consumed the records; empty: none.
            epoch: the epoch in the coordinator's last answer to the member.
            number: the member's number of this commit, from 1, the same in a repeat; 0: the commit
                is never repeated.
            transaction: the offsets become valid when this transaction commits.
            owner: the principal that commits; empty where access is not checked.
            metadata: text to show for the group until its next commit.

        Raises:
            NotAllowedError: the member belongs to another principal.
            UnknownMemberError, StaleMemberError: the partition is not assigned to the member.
            GroupInUseError: the group has members, and the caller is none of them.
            UnstableOffsetCommitError: a transaction may still commit some of these offsets.
            ProducerFencedError: the transaction has ended, or has not begun in this group.
            StrandlineError: as for ``CoordinatorRuntime.request``; the offsets may be committed.
        """
        await self._ask(
            lambda token: ev.Commit(
                token, group, positions, member, epoch, number, transaction, owner, metadata
            )
        )
        self.broker.telemetry.offset_commits += 1

    async def committed_offsets(self, group: str) -> Positions:
        """Return a group's committed offsets.

        Raises:
            StrandlineError: as for ``CoordinatorRuntime.request``.
        """
        found: Positions = await self._read(
            lambda state: _copy(state.groups.get(group, ConsumerGroup()))
        )
        return found

    # NATS consumers

    async def keep_consumer(
        self, group: str, positions: Positions, consumer: str, *, epoch: int, is_new: bool = False
    ) -> None:
        """Store a consumer's state; return when every in-sync replica has it.

        Raises:
            UnknownGroupError: the consumer was deleted.
            GroupInUseError: the consumer is new, and a group of its name exists.
            StaleMemberError: another broker leads the consumer's partition.
            StrandlineError: as for ``CoordinatorRuntime.request``; the state may be stored.
        """
        await self._ask(
            lambda token: ev.KeepConsumer(
                token, group, positions, consumer, is_new=is_new, epoch=epoch
            )
        )
        self.broker.telemetry.group_commits += 1

    async def claim_consumers(self, prefix: str, epoch: int) -> dict[str, str]:
        """Claim consumers for a leader epoch; return their states, by group.

        Raises:
            StaleMemberError: another broker leads their partition.
            StrandlineError: as for ``CoordinatorRuntime.request``.
        """
        found: dict[str, str] = await self._ask(
            lambda token: ev.ClaimConsumers(token, prefix, epoch)
        )
        return found

    async def consumers(self, prefix: str) -> list[str]:
        """Return the names of the consumers' groups with this prefix.

        Raises:
            StrandlineError: as for ``CoordinatorRuntime.request``.
        """
        found: list[str] = await self._read(
            lambda state: [
                name
                for name, group in state.groups.items()
                if group.consumer and name.startswith(prefix)
            ]
        )
        return found

    # Transactions

    async def prepare_place(self) -> None:
        """Create, if missing, the stream that stands for committed offsets in transactions.

        Raises:
            StrandlineError: the stream cannot be created now.
        """
        await self.home()

    def mark(
        self,
        transaction: PendingOffsets,
        mark: TransactionMark,
        done: Callable[[StrandlineError | None], None],
    ) -> None:
        """Begin a transaction in a group, or end it there with its outcome.

        Args:
            transaction: the transaction.
            mark: the beginning, or the outcome.
            done: called once, later: with None when the mark is stored, or with the error.
        """

        async def ask() -> None:
            try:
                await self._ask(lambda token: ev.MarkTransaction(token, transaction, mark))
            except StrandlineError as error:
                done(error)
            else:
                done(None)

        self.spawn(ask(), "mark")

    # Administration

    async def groups(self) -> dict[str, int]:
        """Return the number of members of each group.

        Raises:
            StrandlineError: as for ``CoordinatorRuntime.request``.
        """
        found: dict[str, int] = await self._read(
            lambda state: {name: len(group.members) for name, group in state.groups.items()}
        )
        return found

    def samples(self) -> list[GroupSample]:
        """Return the committed offsets of every group that is coordinated here, for metrics."""
        if self.term is None:
            return []
        return [
            GroupSample(name, stream, number, offset)
            for name, group in self.term.machine.state.groups.items()
            for stream, offsets in group.positions.items()
            for number, offset in offsets.items()
        ]

    async def describe(self, group: str, *, must_be_decided: bool) -> ConsumerGroup:
        """Return a copy of a group's current state.

        Args:
            group: the group's name.
            must_be_decided: fail if a transaction may still commit offsets; for a caller that will
                read from the committed offsets.

        Raises:
            UnknownGroupError: no such group.
            UnstableOffsetCommitError: a transaction may still commit offsets.
            StrandlineError: as for ``CoordinatorRuntime.request``.
        """

        def question(state: GroupsState) -> ConsumerGroup | None:
            known = state.groups.get(group)
            if known is None:
                return None
            copy = ConsumerGroup()
            copy.epoch, copy.members = known.epoch, dict(known.members)
            copy.positions, copy.commit_numbers = _copy(known), dict(known.commit_numbers)
            copy.undecided, copy.began_with = dict(known.undecided), dict(known.began_with)
            copy.metadata = known.metadata
            return copy

        found: ConsumerGroup | None = await self._read(question)
        if found is None:
            raise _unknown(group)
        if must_be_decided and found.undecided:
            names = ", ".join(sorted({str(each.transaction) for each in found.undecided.values()}))
            raise UnstableOffsetCommitError(
                f"transactions are about to commit offsets of group {group!r}: {names}; end "
                "them, or retry when they are over"
            )
        return found

    async def delete(self, group: str) -> bool:
        """Delete a group without members, and its committed offsets.

        Returns:
            Whether it was the group of a NATS consumer; ``ConsumerStore.delete_group`` stops that,
            too.

        Raises:
            UnknownGroupError: no such group.
            GroupInUseError: it has members.
            StrandlineError: as for ``CoordinatorRuntime.request``.
        """
        if not await self.has_home():
            raise _unknown(group)
        was_consumer: bool = await self._ask(lambda token: ev.Delete(token, group))
        return was_consumer

    # The coordinator

    def maker(self) -> Callable[[Iterable[bytes], int], GroupCoordinator]:
        """Return the function that creates the coordinator's state machine."""
        partitions, created = self._streams()

        def make(entries: Iterable[bytes], sequence: int) -> GroupCoordinator:
            state = GroupsState()
            count = restore(state, map(decode_entry, entries))
            return GroupCoordinator(
                state,
                partitions,
                created=created,
                now_ms=self._now_ms(),
                sequence=sequence,
                entries=count,
            )

        return make

    def begun(self, term: CoordinatorTerm[GroupCoordinator]) -> None:
        """Tell the machine the current streams, which may have changed before this term."""
        partitions, created = self._streams()
        self._step(term, ev.StreamsChanged(partitions, created))

    def stored(self, term: CoordinatorTerm[GroupCoordinator], sequence: int) -> None:
        """Tell the machine that entries up to ``sequence`` are stored."""
        self._step(term, EntriesStored(sequence))

    def tick(self, term: CoordinatorTerm[GroupCoordinator]) -> None:
        """Pass the time to the coordinator's machine."""
        self._step(term, Tick())
        groups = term.machine.state.groups
        self.broker.telemetry.groups = len(groups)
        self.broker.telemetry.group_members = sum(len(each.members) for each in groups.values())

    def ended(self) -> None:
        """Reset the metrics: another broker reports them now."""
        self.broker.telemetry.groups = self.broker.telemetry.group_members = 0

    def _streams_changed(self, names: Collection[str]) -> None:
        term = self.term
        if term is not None:
            partitions, created = self._streams(names)
            self._step(term, ev.StreamsChanged(partitions, created, names))

    def _streams(self, names: Collection[str] | None = None) -> tuple[dict[str, int], ...]:
        """Return the partition count and creation time of the streams that groups can consume.

        Args:
            names: the streams to look at; None: all. Internal streams are left out.
        """
        found = [each for each in self.broker.streams(names) if each.name != GROUPS_STREAM]
        partitions = {stream.name: len(stream.partitions) for stream in found}
        return partitions, {stream.name: stream.created_ns for stream in found}

    async def _ask(self, make: Callable[[Token], ev.Request]) -> Any:
        def ask(term: CoordinatorTerm[GroupCoordinator], token: Token) -> None:
            self._step(term, make(token))

        return await self.request(ask)

    async def _read(self, question: Callable[[GroupsState], object]) -> Any:
        if not await self.has_home():
            return question(GroupsState())  # no group exists; a question does not create the stream
        is_alone = self.broker.is_alone
        return await self._ask(
            lambda token: ev.QueryGroups(token, question, must_confirm=not is_alone)
        )

    def _step(self, term: CoordinatorTerm[GroupCoordinator], event: ev.Event) -> None:
        for effect in term.machine.step(event, self._now_ms()):
            match effect:
                case fx.Expired(group, member):
                    self.broker.telemetry.group_members_expired += 1
                    logger.warning(
                        "member %s of group %s sent no heartbeat and is removed", member, group
                    )
                case decision:
                    self.carry_out(term, decision)

    def _now_ms(self) -> int:
        return int(self.broker.clock.monotonic_ms())


def _unknown(group: str) -> UnknownGroupError:
    return UnknownGroupError(f"no group {group!r}; 'strandline group list' names them")


def _copy(group: ConsumerGroup) -> Positions:
    """Copy a group's committed offsets: they may change while a caller reads them."""
    return {stream: dict(offsets) for stream, offsets in group.positions.items()}

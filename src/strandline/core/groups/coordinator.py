"""The coordinator of consumer groups: members, assignments and committed offsets.

Rules:
- a decision takes effect when its entry is stored; nobody is notified before (``DecisionLog``);
- a partition has one holder. A member that must release it is notified in its next heartbeat
  answer. Another member receives it after the holder has confirmed in a later heartbeat, has left
  or has expired. So a member keeps consuming partitions that do not move, and the previous holder's
  last committed offset is known;
- every change raises the epoch, which is unique across all groups. A member commits only under the
  epoch at which its partitions last changed, so a delayed request changes nothing, and external
  offset stores can order commits;
- an offset may wait for a transaction (KIP-98): it counts when the transaction commits, even if the
  members have changed. Until then no other member is given the partition or commits there, because
  the position to start from is not known (KIP-447);
- the group stores how many partitions a stream had when the group first consumed it or committed in
  it. Partitions added later are read from their beginning. A stream that is deleted and created
  again counts as a new one;
- a member belongs to the principal that joined. No other principal commits, heartbeats or leaves
  for it, or takes over its instance name while it is a member;
- the group of a NATS consumer has no members, and nobody else commits for it: its state is stored
  beside its offsets, in one entry;
- a member without a heartbeat for its session timeout is removed. A new member with the instance
  name of a static member takes over its partitions at once, and the old one is fenced.

Invariants: no partition is held by two members; ``_targets`` has every member of every group.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from strandline.core.coordinator_effects import Answer, DecisionLog, EntriesStored, Reject, Tick
from strandline.core.groups import events as ev
from strandline.core.groups.assignment import Readers, assign
from strandline.core.groups.effects import Effect, Expired, GroupAssignment
from strandline.core.groups.state import (
    ConsumerGroup,
    GroupEntry,
    GroupMember,
    GroupsState,
    Partitions,
)
from strandline.core.groups.transactions import TransactionMark
from strandline.errors import (
    GroupInUseError,
    InvalidRequestError,
    MemberFencedError,
    NotAllowedError,
    ProducerFencedError,
    StaleMemberError,
    StrandlineError,
    UnavailableError,
    UnknownGroupError,
    UnknownMemberError,
    UnknownStreamError,
    UnstableOffsetCommitError,
)
from strandline.types import PartitionName

GROUPS_MAX = 10_000
MEMBERS_MAX = 1_000
"""The most members of one group."""
SESSION_MS_MIN = 1_000
SESSION_MS_MAX = 3_600_000
ITEMS_PER_ENTRY = 500
NOTHING: Partitions = frozenset()


class _Begun(NamedTuple):
    """Streams that a group starts to consume: their partition counts and creation times."""

    partitions: dict[str, int]
    created: dict[str, int]


class GroupCoordinator:
    """Decides about consumer groups.

    Args:
        state: built from the stored entries.
        partitions: how many each stream has.
        created: when each was created.
        now_ms: the time; every member's session timeout starts again here.
        sequence: the sequence of the next entry.
        entries: how many are stored already.
    """

    def __init__(
        self,
        state: GroupsState,
        partitions: Mapping[str, int],
        *,
        created: Mapping[str, int],
        now_ms: int,
        sequence: int = 0,
        entries: int = 0,
    ) -> None:
        self.state = state
        self._partitions = dict(partitions)
        self._created = dict(created)
        self._now_ms = now_ms
        self._log: DecisionLog[GroupEntry, Effect] = DecisionLog(
            state, items_per_entry=ITEMS_PER_ENTRY, sequence=sequence, entries=entries
        )
        self._targets: dict[str, Readers] = {}
        self._deadlines: dict[tuple[str, str], int] = {}
        for name, group in state.groups.items():
            self._retarget(name)
            for member in group.members.values():
                self._renew_session(name, member)

    def step(self, event: ev.Event, now_ms: int) -> list[Effect]:
        """Handle an event; return the effects, in order."""
        self._now_ms = now_ms
        match event:
            case EntriesStored():
                self._log.stored(event.sequence)
            case Tick():
                self._time_passed()
            case ev.StreamsChanged():
                self._streams_changed(event)
            case _:
                self._request(event)
        return self._log.taken()

    # Requests

    def _request(self, request: ev.Request) -> None:
        try:
            self._log.give(Answer(request.token, self._done(request)))
        except StrandlineError as error:
            self._log.give(Reject(request.token, error))
        self._log.rewrite_if_due()

    def _done(self, request: ev.Request) -> object:
        """Return the answer to a request.

        Raises:
            StrandlineError: the request is rejected.
        """
        match request:
            case ev.Join():
                return self._join(request)
            case ev.Heartbeat():
                return self._heartbeat(request)
            case ev.QueryGroups():
                if request.must_confirm:
                    self._log.store(GroupEntry())
                return request.question(self.state)
            case ev.Leave():
                self._leave(request)
            case ev.Commit():
                self._commit(request)
            case ev.MarkTransaction():
                self._mark(request)
            case ev.Delete():
                return self._delete(request)
            case ev.KeepConsumer():
                self._keep_consumer(request)
            case ev.ClaimConsumers():
                return self._claim_consumers(request)
        return None

    def _join(self, request: ev.Join) -> GroupAssignment:
        self._check_join(request)
        group = self.state.groups.get(request.group, ConsumerGroup())
        _check_no_consumer(request.group, group)
        known = group.members.get(request.member)
        predecessor = group.by_instance(request.instance)
        _check_owner(request, known, predecessor)
        if known is None and predecessor is None and len(group.members) >= MEMBERS_MAX:
            raise UnavailableError(
                f"group {request.group!r} already has {MEMBERS_MAX} members, the maximum; stop one "
                "first"
            )
        epoch = self.state.epoch + 1
        streams = tuple(sorted(set(request.streams)))
        if known is not None:
            member = msgspec.structs.replace(known, streams=streams, session_ms=request.session_ms)
        else:
            member = GroupMember(
                id=request.member,
                instance=request.instance,
                streams=streams,
                session_ms=request.session_ms,
                epoch=epoch,
                owner=request.owner,
                # What the static member was releasing is free: its old process is fenced.
                assigned=NOTHING
                if predecessor is None
                else predecessor.assigned.difference(group.undecided),
            )
        if member != known:
            gone: tuple[str, ...] = ()
            if known is None and predecessor is not None:
                gone = (predecessor.id,)
                self._succeed(request.group, predecessor.id, member.id)
            begun = self._begun(group, streams)
            entry = GroupEntry(
                group=request.group,
                epoch=epoch,
                members=(member,),
                gone=gone,
                began_with=begun.partitions,
                created=begun.created,
                keeps=request.keeps,
            )
            self._log.store(entry)
            self._retarget(request.group)
        self._renew_session(request.group, member)
        return self._reconciled(request.group, member, held=NOTHING)

    def _begun(self, group: ConsumerGroup, streams: Iterable[str]) -> _Begun:
        """Return those of the streams that the group has not consumed before."""
        new = [s for s in streams if s in self._partitions and not self._knows(group, s)]
        return _Begun(
            {stream: self._partitions[stream] for stream in new},
            {stream: self._created[stream] for stream in new},
        )

    def _knows(self, group: ConsumerGroup, stream: str) -> bool:
        """Whether a group has begun with a stream that was not created again since."""
        created = self._created[stream]
        # Older entries do not hold the creation time.
        return stream in group.began_with and group.created.get(stream, created) == created

    def _check_join(self, request: ev.Join) -> None:
        if not SESSION_MS_MIN <= request.session_ms <= SESSION_MS_MAX:
            raise InvalidRequestError(
                f"session_ms must be {SESSION_MS_MIN} to {SESSION_MS_MAX}, got {request.session_ms}"
            )
        for stream in request.streams:
            if stream not in self._partitions:
                raise UnknownStreamError(f"no stream {stream!r} to consume; create it first")
        self._check_room(request.group)

    def _check_room(self, group: str) -> None:
        """Reject a new group if there are ``GROUPS_MAX``."""
        if group not in self.state.groups and len(self.state.groups) >= GROUPS_MAX:
            raise UnavailableError(
                f"there are already {GROUPS_MAX} groups, the maximum; delete some first"
            )

    def _heartbeat(self, request: ev.Heartbeat) -> GroupAssignment:
        group = self.state.groups.get(request.group, ConsumerGroup())
        member = group.members.get(request.member)
        if member is None:
            raise _gone(request.group, group, request.instance)
        _check_owner(request, member)
        self._renew_session(request.group, member)
        if request.epoch == member.epoch and not member.revoking <= request.held:
            # With an older epoch it may not know yet which partitions it must release.
            member = msgspec.structs.replace(member, revoking=member.revoking & request.held)
            self._log.store(GroupEntry(group=request.group, members=(member,)))
        return self._reconciled(request.group, member, held=request.held)

    def _leave(self, request: ev.Leave) -> None:
        group = self.state.groups.get(request.group)
        if group is not None and request.member in group.members:
            _check_owner(request, group.members[request.member])
            self._remove(request.group, request.member)

    def _commit(self, request: ev.Commit) -> None:
        group = self.state.groups.get(request.group, ConsumerGroup())
        _check_no_consumer(request.group, group)
        if request.member:
            self._check_committer(group, request)
            if request.number and request.number == group.commit_numbers.get(request.member):
                return  # a repeat, because the answer was lost
        elif group.members:
            raise GroupInUseError(
                f"group {request.group!r} has {len(group.members)} members, which commit its "
                "offsets; stop them first"
            )
        else:
            self._check_room(request.group)
        self._check_transaction(group, request)
        # A transaction's metadata is kept apart, until the transaction commits.
        ours = request.transaction
        known = group.metadata if ours is None else group.undecided_metadata.get(ours)
        if not request.positions and request.metadata == (known or ""):
            return
        is_numbered = bool(request.member and request.number)
        numbers = {request.member: request.number} if is_numbered else {}
        begun = self._begun(group, request.positions)
        self._log.store(
            GroupEntry(
                group=request.group,
                positions=request.positions,
                commit_numbers=numbers,
                transaction=request.transaction,
                began_with=begun.partitions,
                created=begun.created,
                metadata=None if request.metadata == known else request.metadata,
            )
        )

    def _keep_consumer(self, request: ev.KeepConsumer) -> None:
        group = self.state.groups.get(request.group)
        if not request.is_new and (group is None or not group.consumer):
            raise UnknownGroupError(f"consumer {request.group!r} was deleted")
        if request.is_new and group is not None:
            raise GroupInUseError(f"there is a group {request.group!r}; delete it first")
        self._check_room(request.group)
        if group is not None:
            _check_epoch(request.group, group, request.epoch)
        begun = self._begun(group or ConsumerGroup(), request.positions)
        self._log.store(
            GroupEntry(
                group=request.group,
                positions=request.positions,
                consumer=request.consumer,
                consumer_epoch=request.epoch,
                began_with=begun.partitions,
                created=begun.created,
            )
        )

    def _claim_consumers(self, request: ev.ClaimConsumers) -> dict[str, str]:
        found = {
            name: group
            for name, group in self.state.groups.items()
            if group.consumer and name.startswith(request.prefix)
        }
        for name, group in found.items():
            _check_epoch(name, group, request.epoch)
            if group.consumer_epoch < request.epoch:
                self._log.store(GroupEntry(group=name, consumer_epoch=request.epoch))
        if not found:
            self._log.store(GroupEntry())  # proves that this broker is still the coordinator
        return {name: group.consumer for name, group in found.items()}

    def _check_transaction(self, group: ConsumerGroup, request: ev.Commit) -> None:
        """Check that the transaction of a commit is open and conflicts with no other.

        Raises:
            ProducerFencedError: the transaction is over, or has not begun.
            UnstableOffsetCommitError: another transaction's offset is pending.
        """
        ours = request.transaction
        if ours is not None and not self.state.transactions.is_open(ours):
            raise ProducerFencedError(f"transaction {ours} is over, or has not begun; end it")
        for stream, offsets in request.positions.items():
            for number in offsets:
                known = group.undecided.get(PartitionName(stream, number))
                if known is not None and known.transaction != ours:
                    raise UnstableOffsetCommitError(
                        f"transaction {known.transaction} is about to commit the offset of group "
                        f"{request.group!r} in {stream}/{number}; end it, or retry after its end"
                    )

    def _mark(self, request: ev.MarkTransaction) -> None:
        transaction, mark = request.transaction, request.mark
        known = self.state.transactions
        if mark is TransactionMark.BEGIN:
            if known.may_begin(transaction):
                self._log.store(GroupEntry(transaction=transaction, mark=mark))
        elif not known.has_ended(transaction):
            waiting = known.waiting(transaction)
            self._log.store(GroupEntry(transaction=transaction, mark=mark))
            for name in waiting:
                if self.state.groups[name].is_over:
                    self._forget_group(name)

    def _check_committer(self, group: ConsumerGroup, request: ev.Commit) -> None:
        member = group.members.get(request.member)
        if member is None:
            raise _gone(request.group, group, "")
        _check_owner(request, member)
        if request.epoch != member.epoch:
            raise StaleMemberError(
                f"the partitions of member {member.id!r} changed with epoch {member.epoch}, after "
                f"epoch {request.epoch}; send a heartbeat, then commit for those it still has"
            )
        if 0 < request.number < group.commit_numbers.get(member.id, 0):
            raise StaleMemberError(f"a later commit of member {member.id!r} came before this one")
        for stream, offsets in request.positions.items():
            for number in offsets:
                if PartitionName(stream, number) not in member.held:
                    raise StaleMemberError(
                        f"{stream}/{number} is not, or no longer, assigned to member "
                        f"{member.id!r}; heartbeat, and commit what it still has"
                    )

    def _delete(self, request: ev.Delete) -> bool:
        group = self.state.groups.get(request.group)
        if group is None:
            raise UnknownGroupError(
                f"no group {request.group!r}; 'strandline group list' names them"
            )
        if group.members:
            raise GroupInUseError(
                f"group {request.group!r} has {len(group.members)} members; stop them first"
            )
        if group.awaits_transactions:
            raise UnstableOffsetCommitError(
                f"transactions are about to commit offsets of group {request.group!r}; end them, "
                "or retry when they are over"
            )
        self._forget_group(request.group)
        return bool(group.consumer)

    # Members

    def _renew_session(self, group: str, member: GroupMember) -> None:
        self._deadlines[group, member.id] = self._now_ms + member.session_ms

    def _remove(self, name: str, member: str) -> None:
        """Remove a member; its partitions become free."""
        group = self.state.groups[name]
        del self._deadlines[name, member]
        self._log.store(GroupEntry(group=name, epoch=self.state.epoch + 1, gone=(member,)))
        if group.is_over:
            self._forget_group(name)
        else:
            self._retarget(name)

    def _forget_group(self, name: str) -> None:
        self._log.store(GroupEntry(group=name, is_deleted=True))
        self._targets.pop(name, None)

    def _succeed(self, name: str, old: str, new: str) -> None:
        """Replace a member by its successor with the same instance name."""
        del self._deadlines[name, old]
        targets = self._targets[name]
        targets[new] = targets.pop(old)

    def _retarget(self, name: str) -> None:
        """Compute the group's target assignment, starting from the previous one."""
        members = self.state.groups[name].members
        before = self._targets.get(name, {})
        current = {id_: before.get(id_, member.assigned) for id_, member in members.items()}
        subscriptions = {id_: member.streams for id_, member in members.items()}
        self._targets[name] = assign(subscriptions, self._partitions, current)

    def _reconciled(self, name: str, member: GroupMember, *, held: Partitions) -> GroupAssignment:
        """Move a member towards its target, as far as others have released; return its partitions.

        Args:
            name: the name of the group.
            member: as it is.
            held: the partitions that it reports to consume; it knows their positions.
        """
        target = frozenset(self._targets[name][member.id])
        if target != member.assigned:
            others = self.state.groups[name].members.values()
            # A partition that it is releasing may have stopped: it returns only when released.
            taken = member.revoking.union(*(m.held for m in others if m.id != member.id))
            taken |= self.state.groups[name].undecided.keys() - member.assigned
            assigned = target - taken
            revoking = member.revoking | (member.assigned - target)
            if (assigned, revoking) != (member.assigned, member.revoking):
                member = msgspec.structs.replace(member, assigned=assigned, revoking=revoking)
                member = self._change(name, member)
        group, fresh = self.state.groups[name], member.assigned - held
        begun = self._begun(group, {each.stream for each in fresh})
        if begun.partitions:  # a stream was created again while the group had members
            entry = GroupEntry(group=name, began_with=begun.partitions, created=begun.created)
            self._log.store(entry)
        streams = sorted({each.stream for each in fresh})
        return GroupAssignment(
            member.epoch,
            member.assigned,
            group.positions_of(fresh),
            {stream: group.began_with[stream] for stream in streams},
            target != member.assigned,
        )

    def _change(self, name: str, member: GroupMember) -> GroupMember:
        """Store a member's new state under a new epoch."""
        epoch = self.state.epoch + 1
        member = msgspec.structs.replace(member, epoch=epoch)
        self._log.store(GroupEntry(group=name, epoch=epoch, members=(member,)))
        return member

    # Streams and time

    def _streams_changed(self, event: ev.StreamsChanged) -> None:
        """Compute new targets; members learn of them with their next heartbeats."""
        names = {*self._partitions, *event.partitions} if event.names is None else event.names
        changed = set[str]()
        for name in names:
            count = event.partitions.get(name)
            if count != self._partitions.pop(name, None):
                changed.add(name)
            self._created.pop(name, None)
            if count is not None:
                self._partitions[name], self._created[name] = count, event.created[name]
        for group_id, group in self.state.groups.items():
            if any(not changed.isdisjoint(m.streams) for m in group.members.values()):
                self._retarget(group_id)

    def _time_passed(self) -> None:
        late = [at for at, due_ms in self._deadlines.items() if due_ms <= self._now_ms]
        for group, member in late:
            self._remove(group, member)
            self._log.give(Expired(group, member))
        self._log.rewrite_if_due()


def _check_owner(
    request: ev.Join | ev.Heartbeat | ev.Leave | ev.Commit, *members: GroupMember | None
) -> None:
    """Check that no other principal joined as these members.

    Raises:
        NotAllowedError: another principal joined as one of them.
    """
    for member in members:
        if member is not None and member.owner != request.owner:
            name = f"{member.id!r}" + (f" (instance {member.instance!r})" * bool(member.instance))
            raise NotAllowedError(
                f"member {name} of group {request.group!r} belongs to another principal than "
                f"{request.owner!r}; join with a member id and instance name of your own"
            )


def _check_no_consumer(name: str, group: ConsumerGroup) -> None:
    """Reject members and commits in a NATS consumer's group.

    Raises:
        GroupInUseError: it is one.
    """
    if group.consumer:
        raise GroupInUseError(
            f"group {name!r} belongs to a NATS consumer, its only reader; use another group"
        )


def _check_epoch(name: str, group: ConsumerGroup, epoch: int) -> None:
    """Reject a NATS consumer whose broker no longer leads the partition.

    Raises:
        StaleMemberError: another broker leads it.
    """
    if epoch < group.consumer_epoch:
        raise StaleMemberError(
            f"consumer {name!r} works under leader epoch {group.consumer_epoch} by now, got {epoch}"
        )


def _gone(name: str, group: ConsumerGroup, instance: str) -> StrandlineError:
    """Return the error for a request by somebody who is not a member."""
    if group.by_instance(instance) is not None:
        return MemberFencedError(
            f"another consumer has joined group {name!r} as instance {instance!r}; end this one, "
            "or give it an instance name of its own"
        )
    return UnknownMemberError(f"not, or no more, a member of group {name!r}; join again")

"""Seeded bugs of replication, which the simulator must find to prove its checks.

Each is a mistake that somebody made, here or elsewhere, or that a rule of the protocol prevents.

Two rules are not covered, because 200 seeds did not need them: that a reset counts only once it is
synced (a unit test shows it), and that a rejected proposal stays rejected when it is repeated.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from simulation import replication_broker as broker_module
from simulation import replication_disk as disk_module
from simulation.bugs import Replacement, SourceRewrite
from simulation.replication_broker import Hosted
from simulation.replication_disk import Image, SimLog
from simulation.replication_keys import StoredKey, is_filler
from simulation.replication_oracle import Oracle, OraclePartition
from strandline.core.replication import leader as leader_module
from strandline.core.replication import repair as repair_module
from strandline.core.replication.effects import Committed, Effect, Send, TruncateTo
from strandline.core.replication.events import Assigned
from strandline.core.replication.follower import Follower, FollowerState
from strandline.core.replication.isr import InSync
from strandline.core.replication.leader import Leader
from strandline.core.replication.messages import Acked, Buffer, Diverged, Fetch, Replicate
from strandline.core.replication.progress import Phase, Progress
from strandline.core.replication.replica import Replica
from strandline.types import BrokerId, Offset

# The correct functions, which some bugs call.
_flush, _start = Follower.flush, Follower.start


def _ack_what_is_not_synced(self: Follower, now_ms: int) -> list[Effect]:
    effects: list[Effect] = []
    self._owes_ack |= self.state is FollowerState.STREAMING and bool(self.log.log_end_offset)
    for effect in _flush(self, now_ms):
        assert isinstance(effect, Send)
        end = self.log.log_end_offset
        effects.append(Send(effect.to, msgspec.structs.replace(effect.message, durable_offset=end)))
    return effects


def _commit_below_min_isr(self: Leader) -> Offset:
    return max(min(_durable(self, self.isr.counted)), self.log.high_watermark)


def _commit_on_a_majority(self: Leader) -> Offset:
    durable = sorted(_durable(self, self.isr.counted))
    return max(durable[(len(durable) - 1) // 2], self.log.high_watermark)


def _commit_before_own_sync(self: Leader) -> Offset:
    if len(self.isr.members) < self.min_isr:
        return self.log.high_watermark
    others = [b for b in self.isr.counted if b != self.me]
    lowest = min([*_durable(self, tuple(others)), self.log.log_end_offset])
    return max(lowest, self.log.high_watermark)


def _durable(leader: Leader, brokers: tuple[BrokerId, ...]) -> list[Offset]:
    return [
        leader.log.durable_offset if b == leader.me else leader.followers[b].durable_offset
        for b in brokers
    ]


def _count_the_old_isr_only(self: InSync) -> tuple[BrokerId, ...]:
    return self.members


def _count_the_new_isr_at_once(self: InSync) -> tuple[BrokerId, ...]:
    return self.members if self.proposed is None else self.proposed


def _believe_old_isr(self: InSync, version: int, members: tuple[BrokerId, ...]) -> bool:
    self.version, self.members, self.proposed = version, tuple(sorted(members)), None
    return True


def _join_at_high_watermark(
    progress: Progress, high_watermark: Offset, *, epoch_start: Offset
) -> bool:
    del epoch_start
    is_current = progress.phase is Phase.STREAMING and progress.acked
    return is_current and progress.durable_offset >= high_watermark


def _join_unverified(progress: Progress, high_watermark: Offset, *, epoch_start: Offset) -> bool:
    return progress.next_offset >= max(high_watermark, epoch_start)


def _take_any_ack(self: Leader, sender: BrokerId, ack: Acked, now_ms: int) -> list[Effect]:
    progress = self.followers[sender]
    progress.durable_offset = max(progress.durable_offset, ack.durable_offset)
    progress.acked = True
    return self._settle(now_ms)


def _keep_what_it_acked_before(self: Progress, fetch: Fetch) -> None:
    durable_offset = self.durable_offset
    _begin(self, fetch)
    self.durable_offset = durable_offset


_begin = Progress.begin


def _agree_by_length(self: Leader, fetch: Fetch) -> None:
    del self, fetch


def _truncate_to_high_watermark(self: Follower, now_ms: int) -> list[Effect]:
    if self.leader is None or self.log.log_end_offset == self.log.high_watermark:
        return _start(self, now_ms)
    self.log.truncate_to(self.log.high_watermark)
    return [TruncateTo(self.log.high_watermark), *_start(self, now_ms)]


def _cut_where_the_leader_says(self: Follower, message: Diverged) -> Offset:
    # KIP-101 without KIP-279: the answer is used as if it named an epoch that we know.
    return max(min(self.log.log_end_offset, message.end_offset), self.log.log_start_offset)


def _cut_on_any_answer(self: Follower, message: Diverged, now_ms: int) -> list[Effect]:
    self.state = FollowerState.FETCHING
    return _diverged(self, msgspec.structs.replace(message, session=self.session), now_ms)


_diverged = Follower.diverged


def _overlook_gaps(
    self: Follower, message: Replicate, buffers: tuple[Buffer, ...], now_ms: int
) -> list[Effect]:
    del now_ms
    if message.session != self.session or self.state in (
        FollowerState.WAITING,
        FollowerState.HALTED,
    ):
        return []
    self.state, self.deadline_ms = FollowerState.STREAMING, None
    self._owes_ack |= message.wants_ack
    self._leader_high_watermark = max(self._leader_high_watermark, message.high_watermark)
    is_next = message.base_offset == self.log.log_end_offset
    effects = self._append(message.batches, buffers) if is_next else []
    return effects + self._advance()


def _never_repeat_fetch(self: Follower, now_ms: int) -> list[Effect]:
    del self, now_ms
    return []


def _never_ask_again(self: Leader, now_ms: int) -> list[Effect]:
    for progress in self.followers.values():
        progress.resend_ms = None
    return self._settle(now_ms)


def _commit_all_at_the_start(self: Leader) -> list[Effect]:
    effects: list[Effect] = []
    if self.log.advance(self.log.log_end_offset):
        effects.append(Committed(self.log.log_end_offset))
    return effects + self._report_reject_reason()


def _commit_without_the_silent(self: Leader) -> Offset:
    if len(self.isr.members) < self.min_isr:
        return self.log.high_watermark
    acked = tuple(b for b in self.isr.counted if b == self.me or self.followers[b].acked)
    return max(min(_durable(self, acked)), self.log.high_watermark)


def _go_back_to_old_epochs(self: Replica, event: Assigned, now_ms: int) -> list[Effect]:
    if event.epoch < self.epoch:
        self.epoch = event.epoch
        follower = Follower(
            self.log,
            event.epoch,
            event.leader,
            session=self._session,
            incarnation=self._incarnation,
            limits=self._limits,
        )
        self._role = follower
        return follower.start(now_ms) if event.leader != self.me else []
    return _assigned(self, event, now_ms)


_assigned: Callable[[Replica, Assigned, int], list[Effect]] = vars(Replica)["_assigned"]


def _sync_covers_what_was_cut(self: SimLog, offset: int) -> None:
    self._change(Image.truncate_to, offset)


def _lead_on_after_a_restart(self: Oracle, broker: BrokerId, incarnation: int) -> bool:
    known = self._incarnations.get(broker, -1)
    if known >= 0 and incarnation > known:
        self._incarnations[broker] = incarnation
    return _beat(self, broker, incarnation)


_beat = Oracle.beat


def _elect_anybody(self: Oracle, partition: OraclePartition) -> set[BrokerId]:
    return {b for b in partition.replicas if b in self._incarnations and b not in self._fenced}


def _let_join(self: Oracle, broker: BrokerId, incarnation: str) -> bool:
    del incarnation
    return broker not in self._fenced


def _repair_with_anything(*_: object) -> bool:
    return False


def _give_nothing_of_a_filler(self: Image, offset: int) -> StoredKey | None:
    return self.batches.get(offset)


def _give_whole_batches(self: Image, offset: int) -> StoredKey | None:
    holders = (each for each in self.batches.values() if each.ref.next_offset > offset)
    return next(holders, None)


def _merge_over_epochs(before: StoredKey, after: StoredKey) -> bool:
    return is_filler(before) and is_filler(after)


def _compact_to_the_end(hosted: Hosted) -> int:
    return hosted.log.seen.end


def _as_far_as_committed(self: Replica) -> Offset:
    return self.log.high_watermark


def _go_on_filling(*_: object) -> list[Effect]:
    return []


REPLICATION_BUGS: Final = (
    Replacement(
        "a follower acks what it has not synced", "flush", _ack_what_is_not_synced, (Follower,)
    ),
    Replacement("the leader commits below min_isr", "_committed", _commit_below_min_isr, (Leader,)),
    Replacement(
        "the leader commits on a majority of the ISR",
        "_committed",
        _commit_on_a_majority,
        (Leader,),
    ),
    Replacement("a new leader commits its whole log", "start", _commit_all_at_the_start, (Leader,)),
    Replacement(
        "a silent replica does not count", "_committed", _commit_without_the_silent, (Leader,)
    ),
    Replacement(
        "the leader counts itself before its sync", "_committed", _commit_before_own_sync, (Leader,)
    ),
    Replacement(
        "a joining replica does not count yet",
        "counted",
        property(_count_the_old_isr_only),
        (InSync,),
    ),
    Replacement(
        "a leaving replica no longer counts",
        "counted",
        property(_count_the_new_isr_at_once),
        (InSync,),
    ),
    Replacement("an outdated ISR is accepted", "changed", _believe_old_isr, (InSync,)),
    Replacement(
        "a replica joins the ISR at the high watermark",
        "may_join",
        _join_at_high_watermark,
        (leader_module,),
    ),
    Replacement(
        "a replica joins the ISR before it has synced",
        "may_join",
        _join_unverified,
        (leader_module,),
    ),
    Replacement("acks of any session count", "take_ack", _take_any_ack, (Leader,)),
    Replacement(
        "a wiped follower keeps its acks", "begin", _keep_what_it_acked_before, (Progress,)
    ),
    Replacement(
        "logs of equal length count as equal", "_disagreement", _agree_by_length, (Leader,)
    ),
    Replacement(
        "truncation to the high watermark", "start", _truncate_to_high_watermark, (Follower,)
    ),
    Replacement(
        "truncation without walking back", "_parting", _cut_where_the_leader_says, (Follower,)
    ),
    Replacement("truncation on an old answer", "diverged", _cut_on_any_answer, (Follower,)),
    Replacement("gaps are ignored", "replicate", _overlook_gaps, (Follower,)),
    Replacement("a fetch is never repeated", "time_passed", _never_repeat_fetch, (Follower,)),
    Replacement("the leader never repeats a request", "time_passed", _never_ask_again, (Leader,)),
    Replacement("epochs go back", "_assigned", _go_back_to_old_epochs, (Replica,)),
    Replacement(
        "a sync covers truncated batches", "truncate_to", _sync_covers_what_was_cut, (SimLog,)
    ),
    Replacement(
        "a broker still leads after a restart", "beat", _lead_on_after_a_restart, (Oracle,)
    ),
    Replacement("any replica is elected", "_electable", _elect_anybody, (Oracle,)),
    Replacement("any incarnation may join", "_may_join", _let_join, (Oracle,)),
    Replacement("a repair is ignored", "_covers", _repair_with_anything, (repair_module,)),
    Replacement(
        "null values are removed before every replica has them",
        "min_replica_offset",
        property(_as_far_as_committed),
        (Replica,),
    ),
    Replacement(
        "a leader continues to fill a replica that another began to fill",
        "start_over",
        _go_on_filling,
        (Follower,),
    ),
    Replacement(
        "a follower that ends inside a placeholder gets nothing",
        "at",
        _give_nothing_of_a_filler,
        (Image,),
    ),
    Replacement(
        "a follower that starts inside a batch gets all of it", "at", _give_whole_batches, (Image,)
    ),
    Replacement("placeholders lose epochs", "may_merge", _merge_over_epochs, (disk_module,)),
    Replacement(
        "compaction goes beyond the high watermark",
        "compaction_end",
        _compact_to_the_end,
        (broker_module,),
    ),
    SourceRewrite(
        "a written record without a commit is reported as rejected",
        "simulation.replication_broker:SimBroker._give_up",
        "NoOffset.UNKNOWN",
        "NoOffset.REFUSED",
    ),
)

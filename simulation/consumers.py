"""Histories of one NATS consumer: its leaders change, and clients pull, receive and acknowledge.

Rules: the real ``ConsumerRunner`` runs, and the real group coordinator stores its state under
leader epochs. A leader is killed, or continues without knowing that there is another one. In some
histories the consumer has several partitions: it asks other brokers for those that they lead, which
changes, and their answers are late or lost. Requests, messages and acknowledgements are lost,
repeated and late; the coordinator crashes, too.

Promises: a record whose acknowledgement was confirmed is not delivered again. The count of a
record's deliveries goes up with every delivery, but not beyond the limit. With one pending record
at a time, no record comes before all earlier ones are settled. When faults end every record is
settled soon, even while more is published than is consumed.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any, Final

import msgspec

from simulation.transactions_groups import SimGroups
from simulation.virtual_loop import LoopWorld, VirtualLoop
from simulation.world import NetworkFaults, World
from strandline.core.consumers.pulls import Pull
from strandline.core.consumers.state import ConsumerState, merged_sequence, split_sequence
from strandline.core.coordinator_effects import Answer, Reject
from strandline.core.groups import events as ev
from strandline.errors import StrandlineError, UnavailableError
from strandline.servers.nats.jetstream.ack_bodies import parse_ack_body
from strandline.servers.nats.jetstream.consumer_config import AckPolicy, ConsumerConfig
from strandline.servers.nats.jetstream.consumer_info import KeptConsumer
from strandline.servers.nats.jetstream.frames import DeliveredRun
from strandline.servers.nats.jetstream.merged_reader import MergedHost
from strandline.servers.nats.jetstream.messages import MessageRun, StoredMessage
from strandline.servers.nats.jetstream.partition_queries import (
    PartitionAnswer,
    PartitionQuery,
    RemoteEnds,
    answer_query,
)
from strandline.servers.nats.jetstream.partition_reader import PartitionReader
from strandline.servers.nats.jetstream.records import messages_at, read_some
from strandline.servers.nats.jetstream.runner import ConsumerRunner, RunnerHost
from strandline.servers.nats.jetstream.subjects import AckSubject
from strandline.types import PartitionName

STREAM, CONSUMER, TO = "S", "c", "to.c"
GROUP: Final = f"js/{STREAM}/{CONSUMER}"
CLIENT, BROKER = 1, 2
STALLED: Final = b"Nats-Consumer-Stalled: "
ACK_WAIT_MS: Final = 80
EXPIRES_MS: Final = 150
READ_AT_ONCE: Final = 20
PAYLOAD: Final = bytes(300_000)
"""A record's payload; a flow control window holds seven."""
CHAOS_MS: Final = 4_000
BUSY_MS: Final = 3_000
CALM_S: Final = 60
MERGED_EVERY: Final = 4
"""One of this many seeds has several partitions."""


class ConsumerPromiseError(Exception):
    """A promise to the clients of a consumer was broken."""


def hold(is_so: bool, what: str) -> None:  # noqa: FBT001  as assert
    """Check a promise.

    Raises:
        ConsumerPromiseError: the promise is broken.
    """
    if not is_so:
        raise ConsumerPromiseError(what)


class SimPartition:
    """A partition's records, which are only appended; all leaders read the same ones."""

    log_start_offset = 0
    is_led = knows_end = True

    def __init__(self, number: int) -> None:
        self.name = PartitionName(STREAM, number)
        self.last_stable_offset = 0
        self._watching: list[asyncio.Event] = []

    def find_runs(self) -> None:
        """Return None: every record has to be read."""

    def watch(self, event: asyncio.Event) -> None:
        """Set an event whenever a record is appended."""
        self._watching.append(event)

    def unwatch(self, event: asyncio.Event) -> None:
        """No longer set the event."""
        self._watching.remove(event)

    def publish(self) -> None:
        """Append a record."""
        self.last_stable_offset += 1
        for event in self._watching:
            event.set()

    def messages(self, start: int, end: int) -> list[StoredMessage]:
        """Return the records from ``start`` to ``end``, exclusive."""
        end = min(end, self.last_stable_offset)
        return [StoredMessage(each + 1, "s", 0, b"", PAYLOAD) for each in range(start, end)]


class _Counter:
    """Counts records."""

    def count(self, _: SimPartition, start: int, end: int) -> int:
        """Return the number of offsets."""
        return end - start

    def is_dense(self, _: SimPartition) -> bool:
        """Return False, so that counting takes time, which is the harder case."""
        return False


class SimClock:
    """The world's clock."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now_ns(self) -> int:
        """Return the time in nanoseconds."""
        return int(self._world.now_ms * 1e6)

    def monotonic_ms(self) -> float:
        """Return the time in milliseconds."""
        return self._world.now_ms


class SimLeader:
    """A broker that leads the partition, or believes so; also its link to nats-server.

    Args:
        history: the history.
        epoch: the leader epoch.
    """

    knows_interest = True

    def __init__(self, history: "ConsumerHistory", epoch: int) -> None:
        self._history = history
        self.world = history.world
        self.epoch = epoch
        self.is_alive = True
        self.runner: ConsumerRunner | None = None
        self.led = {0}
        """The partitions that this broker leads; it asks others for those that it does not."""
        self._ends = RemoteEnds(self._ask_leader)
        self._task = asyncio.get_running_loop().create_task(self._begin())

    async def _begin(self) -> None:
        """Claim the consumer, or create it, until that works."""
        while self.is_alive:
            try:
                kept = await self._claimed()
            except UnavailableError:
                await asyncio.sleep(0.01)
                continue
            except StrandlineError:
                return  # another broker leads by now
            link: Any = self
            clock: Any = SimClock(self.world)
            counter: Any = _Counter()
            find: Any = self._find
            merged = MergedHost(find, self._ask_leader, self._ends, counter, self._on_thread)
            host = RunnerHost(
                link, clock, counter, self._on_thread, self._keep, self._ended, merged
            )
            partition: Any = self._history.partitions[0]
            self.runner = ConsumerRunner(host, STREAM, partition, kept=kept)
            self.runner.begin()
            return

    async def _claimed(self) -> KeptConsumer:
        found = await self._ask(lambda token: ev.ClaimConsumers(token, "js/", self.epoch))
        if GROUP in found:
            return msgspec.json.decode(found[GROUP], type=KeptConsumer)
        count = len(self._history.partitions)
        kept = KeptConsumer(
            config=self._history.config,
            created_ns=0,
            stream_created_ns=0,
            state=ConsumerState(positions=[0] * count if count > 1 else []),
        )
        await self._store(kept, is_new=True)
        return kept

    def _find(self, name: str) -> SimPartition | None:
        number = int(name.rpartition(":")[2])
        return self._history.partitions[number] if number in self.led else None

    async def _ask_leader(self, name: str, query: PartitionQuery) -> PartitionAnswer:
        """Ask the leader of a partition.

        Raises:
            UnavailableError: the leader does not answer.
        """
        rng = self.world.rng
        await asyncio.sleep(rng.uniform(0, 3e-3))
        if not self._history.is_calm and rng.random() < 0.1:
            await asyncio.sleep(rng.choice([0.0, 0.3, 2.0]))
            if rng.random() < 0.5:
                raise UnavailableError("the leader is lost")
        partition: Any = self._history.partitions[int(name.rpartition(":")[2])]
        counter: Any = _Counter()
        reader = PartitionReader(partition, (), counter=counter, on_thread=self._on_thread)
        return await answer_query(
            query, reader, on_thread=self._on_thread, bytes_max=READ_AT_ONCE * len(PAYLOAD)
        )

    def kill(self) -> None:
        """Crash."""
        self.is_alive = False
        self._task.cancel()
        if self.runner_task is not None:
            self.runner_task.cancel()

    @property
    def runner_task(self) -> "asyncio.Task[None] | None":
        """The task of the consumer's runner, if it has begun."""
        return None if self.runner is None else self.runner._task  # noqa: SLF001  a crash ends it

    async def _on_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(self.world.rng.uniform(0, 2e-3))
        if function is messages_at:
            partition, offsets = args
            return {
                message.sequence: message
                for offset in offsets[:READ_AT_ONCE]
                for message in partition.messages(offset, offset + 1)
            }
        if function is read_some:
            partition, start, _ = args
            found = partition.messages(start, start + READ_AT_ONCE)
            return MessageRun.of(found), start + len(found)
        return function(*args)

    def _ended(self, _runner: ConsumerRunner, why: str) -> None:
        self.world.counts[why] += 1

    # The coordinator

    async def _keep(self, runner: ConsumerRunner) -> None:
        await self._store(runner.kept)

    async def _store(self, kept: KeptConsumer, *, is_new: bool = False) -> None:
        text = msgspec.json.encode(kept).decode()
        positions = {STREAM: {0: kept.state.floor_stream}}
        await self._ask(
            lambda token: ev.KeepConsumer(
                token, GROUP, positions, text, is_new=is_new, epoch=self.epoch
            )
        )

    async def _ask(self, make: Callable[[object], ev.Request]) -> Any:
        """Ask the coordinator.

        Raises:
            StrandlineError: it rejects the request, or its answer is lost.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def arrive(effect: Answer | Reject | None) -> None:
            if not answer.done():
                answer.set_result(effect)

        def answered(effect: Answer | Reject | None) -> None:
            self.world.after(self.world.rng.uniform(0.1, 3), arrive, effect)

        await asyncio.sleep(self.world.rng.uniform(0, 3e-3))
        self._history.groups.ask(make, answered)
        effect = await answer
        if effect is None:
            raise UnavailableError("the coordinator was lost")
        if isinstance(effect, Reject):
            raise effect.error
        return effect.value

    # The link to nats-server

    @property
    def leaf(self) -> "SimLeader":
        """The link to nats-server, which this class plays, too."""
        return self

    def is_ready(self, *_: object) -> bool:
        """Return whether records can be delivered now."""
        return True

    def has_interest(self, inbox: bytes) -> bool:
        """Return whether a client waits at an inbox."""
        return inbox in self._history.inboxes

    def has_lost(self, inbox: bytes) -> bool:
        """Return whether no client waits at an inbox any longer."""
        return inbox not in self._history.inboxes

    def is_subscribed(self, subject: bytes, _queue: bytes) -> bool:
        """Return whether the receiver of pushed records is there."""
        return subject.decode() == TO and self._history.is_listening

    def deliver(
        self, inbox: bytes, _payload: bytes, *, block: bytes, reply: bytes, queue: bytes
    ) -> None:
        """Send a status to a client."""
        assert not queue
        if self.is_alive:
            self._history.sent_status(inbox, block=block, reply=reply.decode())

    def deliver_run(self, tokens: list[bytes], run: DeliveredRun, *, queue: bytes) -> None:
        """Send records to clients."""
        assert not queue
        if not self.is_alive:
            return
        sequences = run.messages.sequences
        for number, (sequence, inbox) in enumerate(zip(sequences, cycle(tokens), strict=False)):
            ack = AckSubject(
                STREAM, CONSUMER, run.deliveries, sequence, run.consumer_sequence + number
            )
            self._history.sent(inbox, ack)

    def flush(self) -> None:
        """Do nothing: everything has been sent already."""


class ConsumerHistory:
    """One history.

    Args:
        world: time, network and randomness.
        partitions: the stream's partitions.
    """

    def __init__(self, world: LoopWorld, partitions: int) -> None:
        self.world = world
        rng = world.rng
        is_push = rng.random() < 0.4 and partitions == 1
        policies: list[AckPolicy] = ["explicit", "explicit", "all"]
        self.config = ConsumerConfig(
            name=CONSUMER,
            durable_name=CONSUMER,
            deliver_policy="all",
            ack_policy=rng.choice(policies if partitions == 1 else ["explicit"]),
            max_deliver=rng.choice([-1, -1, 3]),
            replay_policy="instant",
            num_replicas=1,
            ack_wait=ACK_WAIT_MS * 1_000_000,
            max_ack_pending=rng.choice([1, 4, 20]),
            max_waiting=0 if is_push else 100,
            deliver_subject=TO if is_push else "",
            flow_control=is_push and rng.random() < 0.7,
            idle_heartbeat=100_000_000 if is_push else 0,
        )
        self.partitions = list(map(SimPartition, range(partitions)))
        self.groups = SimGroups(world)
        self.inboxes: dict[bytes, int] = {}
        """Inboxes of waiting clients, each with the number of records that it still wants."""
        self.is_listening = True
        self.is_calm = self.is_busy = self.is_over = False
        self.publish_ms = 8.0
        self.leader = SimLeader(self, 1)
        self.leaders = [self.leader]
        self._names = 0
        self.deliveries: dict[int, int] = {}
        self.settled: set[int] = set()
        """Records whose acknowledgement or termination has reached a leader."""
        self.confirmed: set[int] = set()
        """Records whose acknowledgement was confirmed to the client."""

    # Judging

    def sent(self, inbox: bytes, ack: AckSubject) -> None:
        """Check a record that a leader sends."""
        self._judge(ack)
        if inbox in self.inboxes:
            self.world.send((BROKER, CLIENT), self._receive, inbox, ack)

    def sent_status(self, inbox: bytes, *, block: bytes, reply: str) -> None:
        """Check a status that a leader sends."""
        if inbox in self.inboxes and (b"FlowControl" in block or STALLED in block):
            stalled = block.partition(STALLED)[2].partition(b"\r\n")[0].decode()
            self.world.send((BROKER, CLIENT), self._answer_flow, inbox, reply or stalled)

    def _judge(self, ack: AckSubject) -> None:
        sequence, count = ack.sequence, ack.deliveries
        self.world.counts["deliveries"] += 1
        hold(sequence not in self.confirmed, f"{sequence} was acknowledged and is delivered again")
        before = self.deliveries.get(sequence, 0)
        hold(count > before, f"delivery {count} of {sequence} follows delivery {before}")
        limit = self.config.max_deliver
        hold(limit < 0 or count <= limit, f"{sequence} is delivered {count} times")
        if self.config.max_ack_pending == 1 and limit < 0:
            step = len(self.partitions)
            earlier = range((sequence - 1) % step + 1, sequence, step)
            early = [each for each in earlier if not self._is_settled(each)]
            hold(not early, f"{sequence} comes before {early} are settled")
        self.deliveries[sequence] = count
        self.world.note(f"deliver {sequence} {count}")

    def _is_settled(self, sequence: int) -> bool:
        return sequence in self.settled or self._is_given_up(sequence)

    def _is_given_up(self, sequence: int) -> bool:
        """Return whether a record had its last permitted delivery.

        A stored delivery counts even if its leader was killed before sending it.
        """
        runner = self.leader.runner
        if self.config.max_deliver < 0 or runner is None:
            return False
        state = runner.kept.state
        within, number = split_sequence(sequence, len(self.partitions))
        position = state.positions[number] if state.positions else state.delivered_stream
        return within <= position and sequence not in state.pending

    def unsettled(self) -> list[int]:
        """Return the records that are not settled: acknowledged, terminated or dropped."""
        count = len(self.partitions)
        return [
            sequence
            for partition in self.partitions
            for within in range(1, partition.last_stable_offset + 1)
            if not self._is_settled(
                sequence := merged_sequence(within, partition.name.partition, count)
            )
        ]

    # Clients

    def pull(self) -> None:
        """Pull records as a client, which stops waiting some time after its pull has expired."""
        if self.is_over or self.config.is_push:
            return
        rng = self.world.rng
        self._names += 1
        inbox = b"_INBOX.%d" % self._names
        batch = 1 if self.is_busy else rng.randint(1, 5)
        self.inboxes[inbox] = batch
        self._report_interest(inbox)
        expires_ms = self.world.now_ms + EXPIRES_MS
        no_wait = rng.random() < 0.2
        pull = partial(Pull, inbox, batch=batch, expires_ms=expires_ms, no_wait=no_wait)
        leader = self._somebody()
        self.world.send((CLIENT, BROKER), self._take_pull, leader, pull)
        self.world.after(EXPIRES_MS * 2, self._give_up, inbox)
        self.world.after(rng.uniform(5, EXPIRES_MS), self.pull)

    def _give_up(self, inbox: bytes) -> None:
        self.inboxes.pop(inbox, None)
        self._report_interest(inbox)

    def _somebody(self) -> SimLeader:
        """Return the leader, or an earlier one that continues."""
        if self.is_calm or self.world.rng.random() < 0.8:
            return self.leader
        return self.world.rng.choice(self.leaders[-3:])

    @staticmethod
    def _take_pull(leader: SimLeader, pull: Callable[[], Pull]) -> None:
        if leader.is_alive and leader.runner is not None and not leader.runner.is_over:
            leader.runner.pull(pull())

    def _receive(self, inbox: bytes, ack: AckSubject) -> None:
        """Receive a record as a client: acknowledge it, do something else, or crash."""
        if inbox not in self.inboxes:
            return
        rng = self.world.rng
        chance = rng.random()
        payload = b"+ACK"
        if not self.is_calm:
            if chance < 0.1:
                return
            if chance < 0.3:
                payload = rng.choice([b"-NAK", b"-NAK 20ms", b"+WPI", b"+TERM"])
        delay_ms = rng.uniform(0.1, ACK_WAIT_MS * (0.3 if self.is_calm else 1.5))
        self.world.after(delay_ms, self._acknowledge, ack, payload)

    def _answer_flow(self, inbox: bytes, subject: str) -> None:
        """Answer a flow control request as a client."""
        if inbox in self.inboxes:
            self.world.send((CLIENT, BROKER), self._take_flow, self.leader, subject)

    @staticmethod
    def _take_flow(leader: SimLeader, subject: str) -> None:
        if leader.is_alive and leader.runner is not None:
            leader.runner.flow_answered(subject)

    def _acknowledge(self, ack: AckSubject, payload: bytes) -> None:
        leader = self._somebody()
        self.world.send((CLIENT, BROKER), self._take_ack, leader, ack, payload)

    def _take_ack(self, leader: SimLeader, ack: AckSubject, payload: bytes) -> None:
        runner, body = leader.runner, parse_ack_body(payload)
        if not leader.is_alive or runner is None or runner.is_over or body.kind is None:
            return
        is_final = body.kind in ("ack", "term")
        is_for_all = is_final and self.config.ack_policy == "all"
        covered = [ack.sequence]
        if is_for_all:
            covered = list(range(1, ack.sequence + 1))
        if is_final:
            self.settled.update(covered)

        def answered() -> None:
            if is_final and leader.is_alive:
                self.confirmed.update(covered)
                self.world.counts["acked"] += 1

        runner.ack(body.kind, ack, delay_ms=body.delay_ms, answer=answered)
        runner.core.check()

    # Faults

    def publish(self) -> None:
        """Publish a record, and schedule the next."""
        if not self.is_over:
            is_one = len(self.partitions) == 1
            (self.partitions[0] if is_one else self.world.rng.choice(self.partitions)).publish()
            self.world.after(self.world.rng.uniform(0, self.publish_ms * 2), self.publish)

    def change_leader(self) -> None:
        """Change the leader; the earlier one is dead, or does not know."""
        rng = self.world.rng
        if rng.random() < 0.6:
            self.leader.kill()
        self.leader = SimLeader(self, self.leader.epoch + 1)
        self.leaders.append(self.leader)
        self.world.counts["leaders"] += 1

    def listen(self, *, is_on: bool) -> None:
        """Connect or disconnect the receiver of pushed records."""
        self.is_listening = is_on
        if is_on:
            self.inboxes[TO.encode()] = 0
        else:
            self.inboxes.pop(TO.encode(), None)
        self._report_interest(TO.encode())

    def _report_interest(self, inbox: bytes) -> None:
        """Report that an inbox has gained or lost its receiver."""
        for leader in self.leaders:
            if leader.is_alive and leader.runner is not None and not leader.runner.is_over:
                leader.runner.interest_changed({inbox})

    def happen(self) -> None:
        """Cause a fault, and schedule the next."""
        if self.is_calm:
            return
        rng = self.world.rng
        chance = rng.random()
        if chance < 0.06:
            self.change_leader()
        elif chance < 0.09:
            self.groups.crash()
        elif chance < 0.15:
            self.listen(is_on=not self.is_listening)
        elif chance < 0.25 and len(self.partitions) > 1:
            self.leader.led = {0, *(each for each in (1, 2) if rng.random() < 0.5)}
        self.world.after(30, self.happen)

    async def run(self) -> None:
        """Run the history: faults for a while, then overload, then quiet."""
        rng, world = self.world.rng, self.world
        loss, late = rng.choice([0.0, 0.03, 0.15]), rng.choice([0.0, 0.03])
        world.faults = NetworkFaults(loss=loss, repeat=loss, straggler=late)
        self.listen(is_on=True)
        for _ in range(3):
            self.pull()
        self.publish()
        self.happen()
        await asyncio.sleep(CHAOS_MS / 1e3)
        self.is_calm = True
        world.calm()
        self.listen(is_on=True)
        for leader in self.leaders[:-1]:
            leader.kill()
        self.is_busy, self.publish_ms = True, 4.0
        known = [each for each in self.deliveries if not self._is_settled(each)]
        await asyncio.sleep(BUSY_MS / 1e3)
        starved = [each for each in known if not self._is_settled(each)]
        hold(not starved, f"{starved} are not delivered again while others are")
        self.is_busy, self.publish_ms = False, 1e9
        for _ in range(CALM_S):
            if self.unsettled():
                await asyncio.sleep(1)
        self.is_over = True
        lost = self.unsettled()
        hold(not lost, f"{len(lost)} are lost, from {lost[:5]} on")

    def crashes(self) -> list[BaseException]:
        """Return the exceptions that ended leaders' work: broken promises, and bugs."""
        tasks = [each.runner_task for each in self.leaders]
        ended = [task for task in tasks if task is not None and task.done()]
        ended = [task for task in ended if not task.cancelled()]
        return [error for task in ended if (error := task.exception()) is not None]


def run(seed: int) -> World:
    """Run one history.

    Raises:
        ConsumerPromiseError: a promise was broken.
    """
    logging.disable()  # the leaders log their many crashes
    loop = VirtualLoop()
    failures: list[BaseException] = []
    loop.set_exception_handler(
        lambda _, context: failures.append(context.get("exception") or ValueError(context))
    )
    try:
        world = LoopWorld(seed, loop)

        async def run_history() -> None:
            history = ConsumerHistory(world, 3 if seed % MERGED_EVERY == 1 else 1)
            try:
                await history.run()
            finally:
                failures.extend(history.crashes())

        try:
            loop.run_until_complete(run_history())
        except ConsumerPromiseError as error:
            failures.append(error)  # after a crash, which explains it
        finally:
            loop.run_until_complete(_cancel_all())
    finally:
        loop.close()
        logging.disable(logging.NOTSET)
    if failures:
        raise failures[0]
    return world


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)

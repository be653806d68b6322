"""A consumer's rounds: what they read, when they send, and what does not wait for them."""

import asyncio
from types import SimpleNamespace

import pytest

from strandline.clock import ManualClock
from strandline.core.consumers.pulls import Pull
from strandline.core.consumers.state import ConsumerState, PendingRecord
from strandline.errors import UnavailableError
from strandline.servers.nats.jetstream import runner as runner_module
from strandline.servers.nats.jetstream.consumer_config import ConsumerConfig
from strandline.servers.nats.jetstream.consumer_info import KeptConsumer
from strandline.servers.nats.jetstream.integers import INT64_MAX
from strandline.servers.nats.jetstream.messages import MessageRun, StoredMessage
from strandline.servers.nats.jetstream.records import messages_at, read_some
from strandline.servers.nats.jetstream.runner import (
    LAZY_STORE_MS,
    ROUND_MS,
    STORE_REST_MS,
    ConsumerRunner,
    RunnerHost,
)
from strandline.servers.nats.jetstream.subjects import AckSubject
from tests.kit.waiting import until_async

ACK_WAIT_MS = 1_000
AT_ONCE = 100


class Bench:
    """A consumer at work; the test decides how long reading and storing take."""

    def __init__(self, records, *, pending=0, ack_policy="explicit", **settings):
        self.records = records
        self.clock = ManualClock()
        self.reads = []
        self.read_ms = 0
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.may_store = asyncio.Event()
        self.may_store.set()
        self.store_errors = []
        self.stored = []
        """The number of pending records, each time."""
        self.sent = []
        leaf = SimpleNamespace(
            knows_interest=False,
            has_interest=lambda _: False,
            has_lost=lambda _: False,
        )
        receivers = SimpleNamespace(
            leaf=leaf,
            is_ready=lambda *_: True,
            deliver=lambda *_, **__: None,
            deliver_run=self._deliver_run,
            flush=lambda: None,
        )
        partition = SimpleNamespace(
            name=SimpleNamespace(stream="S", partition=0),
            log_start_offset=0,
            last_stable_offset=records,
            find_runs=lambda: None,
            watch=lambda _: None,
            unwatch=lambda _: None,
        )
        config = ConsumerConfig(
            name="c",
            durable_name="c",
            deliver_policy="all",
            ack_policy=ack_policy,
            replay_policy="instant",
            max_deliver=-1,
            max_waiting=512,
            num_replicas=1,
            **{"max_ack_pending": 10_000, "ack_wait": ACK_WAIT_MS * 1_000_000, **settings},
        )
        state = ConsumerState(
            delivered_stream=pending,
            delivered_consumer=pending,
            pending={each: PendingRecord(each, 1) for each in range(1, pending + 1)},
        )
        kept = KeptConsumer(config=config, created_ns=0, stream_created_ns=0, state=state)
        counter = SimpleNamespace(
            count=lambda _partition, start, end: end - start, is_dense=lambda _: True
        )
        host = RunnerHost(
            receivers, self.clock, counter, self._on_thread, self._keep, lambda *_: None
        )
        self.runner = ConsumerRunner(host, "S", partition, kept=kept)

    async def _on_thread(self, function, *args):
        if function not in (messages_at, read_some):
            return function(*args)
        await self.may_read.wait()
        self.clock.advance_ms(self.read_ms)
        if function is messages_at:
            offsets = args[1][:AT_ONCE]
            self.reads.append(offsets)
            return {each + 1: self._message(each) for each in offsets}
        start, stop = args[1], min(args[1] + AT_ONCE, self.records)
        return MessageRun.of(self._message(each) for each in range(start, stop)), stop

    def _message(self, offset):
        return StoredMessage(offset + 1, "s", 0, b"", b"%d" % offset)

    async def _keep(self, runner):
        self.stored.append(len(runner.kept.state.pending))
        await self.may_store.wait()
        if self.store_errors:
            raise self.store_errors.pop()

    def _deliver_run(self, _tokens, run, *, queue):
        assert not queue
        self.sent += ((each, run.deliveries) for each in run.messages.sequences)

    def pull(self, batch):
        self.runner.pull(Pull(b"_INBOX.x", batch=batch))

    async def overdue(self, count):
        """Deliver records, and let their acknowledgement wait pass."""
        self.pull(count)
        await until_async(lambda: len(self.sent) == count)
        self.sent.clear()
        self.clock.advance_ms(ACK_WAIT_MS + 1)


@pytest.fixture
async def bench():
    """Makes a consumer of some records."""
    made = []

    def make(records, **settings):
        made.append(Bench(records, **settings))
        return made[-1]

    yield make
    for each in made:
        each.may_read.set()
        each.may_store.set()
        await each.runner.close("over")


async def test_redeliveries_are_read_together(bench):
    """As many at once as the first time, and each one once."""
    consumer = bench(300)
    await consumer.overdue(300)
    consumer.pull(300)
    await until_async(lambda: len(consumer.sent) == 300)
    assert consumer.sent == [(each, 2) for each in range(1, 301)]
    assert [len(each) for each in consumer.reads] == [AT_ONCE] * 3
    assert sorted(each for read in consumer.reads for each in read) == list(range(300))


async def test_single_pulls_share_a_read(bench):
    """What was read ahead waits for the next pull."""
    consumer = bench(50)
    await consumer.overdue(50)
    for count in range(1, 51):
        consumer.pull(1)
        await until_async(lambda count=count: len(consumer.sent) == count)
    assert len(consumer.reads) == 1


async def test_what_was_read_is_sent_before_more_is_read(bench):
    """A round that reads for long ends."""
    consumer = bench(300)
    await consumer.overdue(300)
    consumer.read_ms = ROUND_MS + 1
    seen = []
    deliver_run = consumer.runner._host.receivers.deliver_run

    def noted(tokens, run, **options):
        seen.extend([len(consumer.reads)] * len(run.messages.sequences))
        deliver_run(tokens, run, **options)

    consumer.runner._host.receivers.deliver_run = noted
    consumer.pull(300)
    await until_async(lambda: len(consumer.sent) == 300)
    assert seen == [1] * 100 + [2] * 100 + [3] * 100


async def test_info_does_not_wait_for_a_round(bench):
    """It shows the state while the round reads, and while it stores."""
    consumer = bench(30)
    await consumer.overdue(20)
    consumer.may_read.clear()
    consumer.pull(20)
    await until_async(consumer.runner._round_lock.locked)
    async with asyncio.timeout(5):
        info = await consumer.runner.info()
    assert (info.delivered.stream_seq, info.num_ack_pending, info.num_pending) == (20, 20, 10)
    consumer.may_store.clear()
    consumer.may_read.set()
    await until_async(lambda: consumer.runner.core.count_redelivered(lambda _: False) == 20)
    async with asyncio.timeout(5):
        await consumer.runner.info()


async def test_the_wait_for_acknowledgements_begins_when_records_are_sent(bench):
    """However long storing takes: they are not due before their receiver had its time."""
    consumer = bench(3)
    consumer.may_store.clear()
    consumer.pull(6)
    await until_async(lambda: consumer.runner.kept.state.pending)
    consumer.clock.advance_ms(10 * ACK_WAIT_MS)
    consumer.may_store.set()
    await until_async(lambda: consumer.sent)
    consumer.clock.advance_ms(ACK_WAIT_MS - 1)
    consumer.runner.wake()
    await asyncio.sleep(0.05)
    assert consumer.sent == [(1, 1), (2, 1), (3, 1)]
    consumer.clock.advance_ms(2)
    consumer.runner.wake()
    await until_async(lambda: len(consumer.sent) == 6)
    assert consumer.sent[3:] == [(1, 2), (2, 2), (3, 2)]


async def test_deliveries_are_sent_once_they_are_stored(bench, monkeypatch):
    """If storing fails nothing that was counted is lost."""
    monkeypatch.setattr(runner_module, "RETRY_S", 0.01)
    consumer = bench(3)
    consumer.store_errors += [UnavailableError("not now")] * 3
    consumer.pull(3)
    await until_async(lambda: consumer.sent)
    assert not consumer.store_errors
    assert consumer.sent == [(1, 1), (2, 1), (3, 1)]


async def acknowledge_100(consumer, answers):
    """Acknowledge records one by one; return how many ms it took until all was stored."""
    loop, count = asyncio.get_running_loop(), len(consumer.runner.kept.state.pending)
    begun = loop.time()
    for sequence in range(1, 101):
        ack = AckSubject("S", "c", 1, sequence, sequence)
        consumer.runner.ack("ack", ack, answer=answers)
        for _ in range(5):
            await asyncio.sleep(0)
    consumer.clock.advance_ms(LAZY_STORE_MS)
    consumer.runner.wake()
    await until_async(lambda: consumer.stored[-1:] == [count - 100])
    return (loop.time() - begun) * 1e3


async def test_a_large_state_is_stored_less_often(bench):
    """Each time all of it is encoded; acknowledgements that come meanwhile are stored together."""
    consumer = bench(10_000, pending=10_000)
    took_ms = await acknowledge_100(consumer, lambda: None)
    rest_ms = (10_000 - 100) * STORE_REST_MS
    assert len(consumer.stored) <= took_ms / rest_ms + 2


@pytest.mark.parametrize(("pending", "limit"), [(100, 10_000), (700, 1_000)])
async def test_a_small_state_is_stored_at_once(bench, pending, limit):
    """Nobody waits for a rest that saves nothing; clients have half of the usual limit pending."""
    consumer = bench(pending, pending=pending, max_ack_pending=limit)
    await acknowledge_100(consumer, lambda: None)
    assert len(consumer.stored) == 100


async def test_few_acknowledgements_are_gathered_where_no_more_can_be_pending(bench):
    """Else each of them would cost a store."""
    consumer = bench(1_000, pending=1_000, max_ack_pending=1_000)
    await acknowledge_100(consumer, lambda: None)
    assert len(consumer.stored) < 50


async def test_acknowledgements_without_an_answer_are_stored_together(bench):
    """Nobody waits for that."""
    consumer = bench(100, pending=100)
    await acknowledge_100(consumer, None)
    assert len(consumer.stored) <= 2


async def test_plain_acknowledgements_wait_for_the_next_round(bench, monkeypatch):
    """A round for every few of them would cost more than they do; the last ones are stored, too."""
    consumer, rounds = bench(100, pending=100), []
    core = consumer.runner.core
    monkeypatch.setattr(core, "tick", lambda _: rounds.append(len(core.state.pending)) or [])
    for sequence in range(1, 101):
        consumer.runner.ack_many([(sequence, sequence)])
        for _ in range(5):
            await asyncio.sleep(0)
    consumer.clock.advance_ms(LAZY_STORE_MS)
    await until_async(lambda: consumer.stored[-1:] == [0])
    assert len(rounds) <= 3


async def test_a_plain_acknowledgement_makes_room_at_once(bench, monkeypatch):
    """Also if it is not the first one, as where more are pending than a lowered limit allows."""
    consumer = bench(4, pending=3, max_ack_pending=2, ack_wait=INT64_MAX)
    consumer.runner.ack_many([(1, 1)])
    await until_async(lambda: consumer.stored == [2])
    monkeypatch.setattr(runner_module, "LAZY_STORE_MS", 1e9)  # nothing else lets a round begin
    consumer.pull(1)
    consumer.runner.core.is_changed = True
    for _ in range(5):
        await asyncio.sleep(0)
    consumer.runner.ack_many([(2, 2)])
    await until_async(lambda: consumer.sent == [(4, 1)], seconds=5)


async def test_an_answer_waits_until_a_large_state_is_stored(bench):
    """The promise of an answered acknowledgement is the same for every size."""
    consumer, answers = bench(9_000, pending=9_000), []
    for sequence in (1, 2):
        ack = AckSubject("S", "c", 1, sequence, sequence)
        consumer.runner.ack("ack", ack, answer=lambda: answers.append(consumer.stored[-1]))
        await until_async(lambda wanted=sequence: len(answers) == wanted)
    assert answers == [8_999, 8_998]


async def test_a_consumer_is_used_until_its_last_pull_ends(bench):
    """Its threshold of inactivity begins then, not when the pull came."""
    consumer = bench(0, inactive_threshold=5_000_000_000)
    now_ms = consumer.clock.monotonic_ms()
    consumer.runner.pull(Pull(b"_INBOX.x", expires_ms=now_ms + 30_000))
    await until_async(lambda: not consumer.runner._wake.is_set())
    consumer.clock.advance_ms(30_000)
    consumer.runner.wake()
    await until_async(lambda: not consumer.runner.core.pulls)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not consumer.runner.is_over
    consumer.clock.advance_ms(5_001)
    consumer.runner.wake()
    await until_async(lambda: consumer.runner.is_over)


async def test_the_rest_of_a_pause_fits_the_integers_of_clients(bench):
    """A pause may end in a year whose distance in nanoseconds does not."""
    consumer = bench(0, pause_until="9999-12-31T23:59:59Z")
    info = await consumer.runner.info()
    assert info.pause_remaining == INT64_MAX


async def test_without_acknowledgements_records_do_not_wait_for_their_state(bench):
    """It is stored from time to time, also when nothing more comes, and at the broker's stop."""
    consumer = bench(6, ack_policy="none")
    consumer.may_store.clear()
    consumer.pull(3)
    await until_async(lambda: len(consumer.sent) == 3)
    consumer.may_store.set()
    await until_async(lambda: len(consumer.stored) == 1)
    consumer.pull(3)
    await until_async(lambda: len(consumer.sent) == 6)
    assert len(consumer.stored) == 1
    consumer.clock.advance_ms(LAZY_STORE_MS + 1)
    consumer.runner.wake()
    await until_async(lambda: len(consumer.stored) == 2)
    consumer.records = consumer.runner.partition.last_stable_offset = 9
    consumer.pull(3)
    await until_async(lambda: len(consumer.sent) == 9)
    await consumer.runner.close(runner_module.SHUTDOWN)
    assert len(consumer.stored) == 3

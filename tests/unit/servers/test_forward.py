"""Forwarded publishes: the forwarder's state while they are in flight."""

import asyncio
import queue
from types import SimpleNamespace

import pytest

from strandline.broker.write_path.admission import Admission
from strandline.client.reader.results import Ack, AckFuture
from strandline.clock import ManualClock
from strandline.config import BrokerConfig, LimitsConfig, StreamConfig
from strandline.core.metadata.image import MetadataImage, PartitionImage, StreamImage
from strandline.errors import DisconnectedError, NotEnoughReplicasError, UnavailableError
from strandline.servers import forward
from strandline.servers.forward import Forwarder, LeaderLinks
from strandline.servers.resume_forwarder import PendingForward
from strandline.types import PartitionName

HERE, THERE = PartitionName("s", 0), PartitionName("s", 1)


class Outcomes:
    """A responder that waits for rejections."""

    def __init__(self):
        self.refused = asyncio.Queue()
        self.stored = asyncio.Queue()

    def acked(self, token, partition, offset, *, duplicate):
        self.stored.put_nowait((token, offset))

    def rejected(self, token, error):
        self.refused.put_nowait((token, error))


class LoneBroker:
    """A broker that the cluster does not know yet, so that its forwards are rejected."""

    def __init__(self):
        self.config, self.image = BrokerConfig(), MetadataImage()
        self.admission = Admission(LimitsConfig(), clock=ManualClock(), wake=lambda: None)
        self.membership = SimpleNamespace(me=2)
        self.has_lost_majority = False
        self.flushes = 0
        self.loop = asyncio.get_running_loop()

    def on_streams_changed(self, callback):
        self.streams_changed = callback

    def create(self, **created_ns):
        """There are these streams now."""
        config = StreamConfig(name="s", subject="s")
        streams = {
            name: StreamImage(config=config, created_ns=at_ns, partitions=())
            for name, at_ns in created_ns.items()
        }
        before, self.image = self.image, MetadataImage(streams=streams)
        self.streams_changed(sorted(self.image.table.changed_since(before.table)))

    def check_metadata(self):
        if self.has_lost_majority:
            raise UnavailableError("this broker has lost the majority of its cluster")

    def call_soon(self, function, *args):
        self.loop.call_soon_threadsafe(function, *args)

    def send_answers_soon(self):
        self.flushes += 1


@pytest.fixture
async def broker():
    return LoneBroker()


@pytest.fixture
async def forwarder(broker):
    made = Forwarder(broker)
    yield made
    await made.stop()


@pytest.mark.parametrize("expects", [False, True])
async def test_a_partition_is_busy_until_its_last_publish_is_answered(forwarder, expects):
    """A publish that could be appended here must not overtake forwarded ones."""
    outcomes = Outcomes()
    for token in range(2):
        record = PendingForward(HERE, b"v", subject="s", key=None, headers=None, message_id=None)
        forwarder.append(record, ack_sink=outcomes, token=token, expects=expects)
    assert forwarder.is_busy_with(HERE)
    assert not forwarder.is_busy_with(THERE)
    for expected in range(2):
        token, error = await asyncio.wait_for(outcomes.refused.get(), 60)
        assert token == expected
        assert isinstance(error, UnavailableError)
    assert not forwarder.is_busy_with(HERE)


async def test_there_is_room_again_when_publishes_are_answered(forwarder, monkeypatch):
    """Publishes of a stream wait for it; others are rejected."""
    monkeypatch.setattr(forward, "PENDING_MAX", 2)
    under_way = queue.Queue()
    monkeypatch.setattr(forwarder, "_send", lambda _, done: under_way.put(done))
    outcomes = Outcomes()
    await forwarder.room()
    for token in range(3):
        record = PendingForward(HERE, b"v", subject="s", key=None, headers=None, message_id=None)
        forwarder.append(record, ack_sink=outcomes, token=token)
    assert outcomes.refused.get_nowait()[0] == 2
    waiting = asyncio.create_task(forwarder.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    done = await asyncio.to_thread(under_way.get)
    done(UnavailableError("the leader is away"))
    await asyncio.wait_for(waiting, 60)


class Producers:
    """A client of the cluster whose producers are answered when the test says."""

    def __init__(self):
        self.made, self.ended = [], []
        self.futures = queue.Queue()

    def producer(self, stream, *, linger_ms):
        assert linger_ms == 0
        self.made.append(stream)
        return SimpleNamespace(
            is_usable=True,
            append=lambda *_, **__: self.append(),
            abandon=lambda: self.ended.append(stream),
        )

    def append(self):
        future = AckFuture()
        self.futures.put(future)
        return future

    def close(self):
        pass

    def abandon(self):
        while not self.futures.empty():
            self.futures.get().set_exception(DisconnectedError("ended; the outcome is unknown"))


@pytest.fixture
def producers(monkeypatch):
    """Of the forwarder."""
    made = Producers()
    link = LeaderLinks(made, SimpleNamespace(close=lambda: None), {})
    monkeypatch.setattr(forward, "_connect", lambda _: link)
    return made


async def hand_on(forwarder, producers, stream):
    """Return a publish in flight and the future that answers it."""
    record = PendingForward(
        PartitionName(stream, 0), b"v", subject="s", key=None, headers=None, message_id=None
    )
    outcomes = Outcomes()
    forwarder.append(record, ack_sink=outcomes, token=stream)
    return await asyncio.to_thread(producers.futures.get, timeout=60), outcomes


async def publish(forwarder, producers, *streams):
    """Publish to streams, one after another, and wait until it is stored."""
    for stream in streams:
        future, outcomes = await hand_on(forwarder, producers, stream)
        future.set_result(Ack.at(7, 0))
        assert await asyncio.wait_for(outcomes.stored.get(), 60) == (stream, 7)


async def test_producers_of_streams_not_used_for_long_are_ended(forwarder, producers, monkeypatch):
    """Each has threads, here and at a leader; one that waits for an answer keeps its order."""
    monkeypatch.setattr(forward, "PRODUCERS_MAX", 2)
    waiting, outcomes = await hand_on(forwarder, producers, "busy")
    await publish(forwarder, producers, "a", "b", "a", "c")
    assert (producers.made, producers.ended) == (["busy", "a", "b", "c"], ["b"])
    waiting.set_result(Ack.at(0, 0))
    await asyncio.wait_for(outcomes.stored.get(), 60)
    await publish(forwarder, producers, "b")
    assert producers.ended == ["b", "busy", "a"]


async def test_the_producer_of_a_deleted_stream_is_ended(broker, forwarder, producers):
    """It would keep the files of the log open at its leader; the stream may be there again."""
    broker.create(a=1, b=1, c=1)
    await publish(forwarder, producers, "a", "b", "c")
    broker.create(a=2, c=1)
    await publish(forwarder, producers, "a")
    assert producers.ended == ["a", "b"]
    assert producers.made == ["a", "b", "c", "a"]


@pytest.mark.parametrize(("isr", "leader"), [((1,), 1), ((1, 2), 1), ((1,), None)])
async def test_what_the_leader_would_reject_for_want_of_copies_is_rejected_here(
    broker, forwarder, producers, isr, leader
):
    """At once, instead of being tried until its time is over; an election is waited for."""
    config = StreamConfig(name="s", subject="s", replicas=2, min_isr=2)
    partition = PartitionImage(log_id=1, replicas=(1, 2), isr=isr, leader=leader)
    stream = StreamImage(config=config, created_ns=1, partitions=(partition,))
    broker.image = MetadataImage(streams={"s": stream})
    if len(isr) == 2 or leader is None:
        await publish(forwarder, producers, "s")
        return
    outcomes = Outcomes()
    record = PendingForward(HERE, b"v", subject="s", key=None, headers=None, message_id=None)
    forwarder.append(record, ack_sink=outcomes, token=1)
    _, error = outcomes.refused.get_nowait()
    assert isinstance(error, NotEnoughReplicasError)
    assert "fewer than 2 replicas of s/0" in error.message


@pytest.mark.parametrize(("leader", "is_elsewhere"), [(1, True), (2, False), (None, False)])
async def test_a_partition_is_led_elsewhere_until_what_was_forwarded_is_answered(
    broker, forwarder, producers, leader, is_elsewhere
):
    """A partition without a leader is not, since its next leader is unknown."""
    config = StreamConfig(name="s", subject="s", replicas=2)
    partition = PartitionImage(log_id=1, replicas=(1, 2), isr=(1, 2), leader=leader)
    stream = StreamImage(config=config, created_ns=1, partitions=(partition,))
    broker.image = MetadataImage(streams={"s": stream})
    assert forwarder.is_led_elsewhere(HERE) is is_elsewhere
    future, outcomes = await hand_on(forwarder, producers, "s")
    assert forwarder.is_led_elsewhere(HERE)
    future.set_result(Ack.at(0, 0))
    await asyncio.wait_for(outcomes.stored.get(), 60)
    assert forwarder.is_led_elsewhere(HERE) is is_elsewhere
    await asyncio.sleep(0)
    assert broker.flushes == 1, "the front end is told to send it"


async def test_a_broker_without_a_majority_forwards_nothing(broker, forwarder):
    """It does not know the leader; its publisher asks another broker."""
    broker.has_lost_majority = True
    outcomes = Outcomes()
    record = PendingForward(HERE, b"v", subject="s", key=None, headers=None, message_id=None)
    forwarder.append(record, ack_sink=outcomes, token=1)
    _, error = outcomes.refused.get_nowait()
    assert "lost the majority" in error.message
    assert not forwarder.is_busy


async def test_large_publishes_are_counted_by_their_bytes(broker, forwarder, producers):
    """More than a producer buffers would block the thread that all share."""
    value = bytes(forward.PENDING_BYTES_MAX)
    record = PendingForward(HERE, value, subject="s", key=None, headers=None, message_id=None)
    forwarder.append(record, ack_sink=(first := Outcomes()), token=1)
    assert forwarder.fullness == 1
    forwarder.append(record, ack_sink=(second := Outcomes()), token=2)
    assert isinstance(second.refused.get_nowait()[1], UnavailableError)
    forwarder.append(record, ack_sink=None, token=None)
    assert broker.admission.rejects["unavailable"] == 2
    future = await asyncio.to_thread(producers.futures.get, timeout=60)
    future.set_result(Ack.at(0, 0))
    await asyncio.wait_for(first.stored.get(), 60)
    assert forwarder.fullness == 0


async def test_a_stop_does_not_wait_for_a_leader_that_does_not_answer(
    forwarder, producers, monkeypatch
):
    """Publishes in flight get a moment, then an error that says the outcome is unknown."""
    monkeypatch.setattr(forward, "STOP_WAIT_S", 0.2)
    future, outcomes = await hand_on(forwarder, producers, "s")
    producers.futures.put(future)
    async with asyncio.timeout(10):
        await forwarder.stop()
        _, error = await outcomes.refused.get()
    assert isinstance(error, DisconnectedError)

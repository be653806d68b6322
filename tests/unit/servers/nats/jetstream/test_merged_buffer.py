"""What a consumer of several partitions has read ahead: turns, and parts that do not answer."""

import asyncio

import pytest

from strandline.clock import ManualClock
from strandline.core.consumers.consumer import Wanted
from strandline.core.consumers.state import ConsumerState, merged_sequence
from strandline.errors import UnavailableError
from strandline.servers.nats.jetstream import merged_buffer
from strandline.servers.nats.jetstream.consumer_config import ConsumerConfig
from strandline.servers.nats.jetstream.delivery_buffer import DeliveryBuffer
from strandline.servers.nats.jetstream.merged_buffer import RETRY_MS, MergedBuffer
from strandline.servers.nats.jetstream.messages import MessageRun, StoredMessage
from strandline.servers.nats.jetstream.partition_reader import ReadPart

NEW = Wanted(0, is_again=False)
CONFIG = ConsumerConfig(
    name="c",
    deliver_policy="all",
    ack_policy="explicit",
    max_deliver=-1,
    replay_policy="instant",
    num_replicas=1,
)


class Part:
    """A partition; the test decides when it answers."""

    log_start_offset = 0

    def __init__(self, records):
        self.records = records
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error = None
        self.reads = 0

    async def _answer(self):
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error

    async def read(self, start):
        self.reads += 1
        await self._answer()
        found = [self.message(each) for each in range(start, self.records)]
        return ReadPart(MessageRun.of(found), max(start, self.records), True)

    async def read_at(self, offsets):
        await self._answer()
        return {each + 1: self.message(each) for each in offsets}

    async def count(self, after):
        await self._answer()
        return self.records - after

    def message(self, offset):
        return StoredMessage(offset + 1, "s", 0, b"", b"%d" % offset)

    def passed(self, last, count):
        pass

    def has_more(self, sequence):
        return self.records >= sequence


class Bench:
    def __init__(self, *records):
        self.parts = [Part(each) for each in records]
        self.state = ConsumerState(positions=[0] * len(records))
        self.clock, self.wake = ManualClock(), asyncio.Event()
        buffers = [DeliveryBuffer("S", CONFIG, each) for each in self.parts]
        self.buffer = MergedBuffer(
            "c of S", buffers, self.state, now_ms=self.clock.monotonic_ms, wake=self.wake
        )

    async def take(self):
        """Deliver everything that is there; the sequences, a list for each run."""
        runs = []
        passed = None
        while True:
            run = self.buffer.buffered(NEW)
            if not run.sizes:
                if passed is not None and passed.is_end:
                    return runs
                passed = await self.buffer.read_new(0)
                for each in passed.sequences if passed is not None else ():
                    self.state.advance(each)
                continue
            sequences = run.messages.sequences
            runs.append(sequences)
            self.state.advance(sequences[-1])
            self.buffer.delivered(sequences[-1], len(sequences), is_again=False)


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    monkeypatch.setattr(merged_buffer, "PATIENCE_S", 0.05)


async def test_partitions_take_turns():
    """Each one's records in order, by the sequences that clients know."""
    bench = Bench(2, 0, 1)
    assert await bench.buffer.count(0) == 3
    assert sorted(await bench.take()) == [[1, 4], [3]]
    assert not bench.buffer.has_more(NEW)
    bench.parts[1].records = 1
    assert bench.buffer.has_more(NEW)
    assert await bench.take() == [[2]]
    assert await bench.buffer.count(0, is_exact=True) == 0


async def test_a_partition_that_does_not_answer_holds_up_no_other():
    """It is awaited once. When it has answered the consumer is woken, and gets its records."""
    bench = Bench(2, 2)
    bench.parts[1].may_answer.clear()
    assert await bench.take() == [[1, 3]]
    assert not bench.buffer.has_more(NEW)
    bench.parts[0].records = 3
    assert await bench.take() == [[5]]
    assert bench.parts[1].reads == 1
    assert not bench.wake.is_set()
    bench.parts[1].may_answer.set()
    await asyncio.wait_for(bench.wake.wait(), 5)
    assert await bench.take() == [[2, 4]]


async def test_a_partition_that_cannot_be_read_is_left_out_for_a_while():
    """No longer than that; then it is tried again."""
    bench = Bench(2, 2)
    bench.parts[1].error = UnavailableError("no leader")
    assert await bench.take() == [[1, 3]]
    assert bench.buffer.retry_ms == RETRY_MS
    assert not bench.buffer.has_more(NEW)
    bench.parts[1].error = None
    assert await bench.take() == []
    assert bench.parts[1].reads == 1
    bench.clock.advance_ms(RETRY_MS)
    assert bench.buffer.retry_ms is None, "a time that is over would be waited for in vain"
    assert bench.buffer.has_more(NEW)
    assert await bench.take() == [[2, 4]]


async def test_its_last_count_is_used_meanwhile():
    """But not where an exact one is asked for."""
    bench = Bench(2, 5)
    assert await bench.buffer.count(0) == 7
    bench.parts[1].error = UnavailableError("no leader")
    bench.parts[0].records = 3
    assert await bench.buffer.count(0) == 8
    with pytest.raises(UnavailableError):
        await bench.buffer.count(0, is_exact=True)


async def test_what_cannot_be_read_again_is_named():
    """All that is due of the partition, and nothing of others."""
    bench = Bench(3, 3)
    await bench.take()
    due = [merged_sequence(within, number, 2) for within in (1, 2) for number in (1, 0)]
    assert await bench.buffer.read_again(due[0], due) == []
    run = bench.buffer.buffered(Wanted(due[0], is_again=True))
    assert (run.messages.sequences, run.messages.payloads) == ([due[0]], [b"0"])
    bench.parts[0].may_answer.clear()
    assert await bench.buffer.read_again(due[1], due[1:]) == [1, 3]
    assert await bench.buffer.read_again(due[1], due[1:]) == [1, 3], "it is left out"


async def test_closing_ends_what_is_being_read():
    """Nothing is left behind."""
    bench = Bench(1, 1)
    bench.parts[1].may_answer.clear()
    await bench.take()
    tasks = [each for each in asyncio.all_tasks() if each.get_name() == "jetstream-part"]
    assert len(tasks) == 1
    bench.buffer.close()
    await asyncio.wait(tasks, timeout=5)
    assert tasks[0].cancelled()

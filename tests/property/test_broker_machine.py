"""A broker against a model: acked records are stored once, in order, whatever happens.

Hypothesis makes up appends with and without message ids, deletions, truncations, checkpoints, full
disks, input/output errors, clean stops, kills, and power losses that keep any part of what was not
synced. After each step every partition is read and compared with what publishers were told.
"""

import asyncio
import errno
import gc
import inspect
import random
import shutil
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from strandline.broker import base as base_module
from strandline.broker.broker import Broker
from strandline.broker.write_path import state_loader
from strandline.clock import ManualClock
from strandline.config import BrokerConfig, JournalConfig, StreamConfig
from strandline.record.codec import decode_batches
from strandline.storage.faulty_disk import FaultyDisk

WINDOW_MS = 60_000
CONFIG = JournalConfig(file_bytes=64 << 10)
STREAMS = {"disk": 2, "memory": 1}
UNKNOWN = {"log_poisoned"}
"""Rejections after which a record may be stored all the same; after all others it is not."""

places = st.sampled_from([(name, n) for name, count in STREAMS.items() for n in range(count)])
publishes = st.fixed_dictionaries(
    {
        "place": places,
        "size": st.sampled_from([0, 0, 100, 5_000, 30_000, 30_000]),
        "message_id": st.sampled_from([None, None, "a", "b", "c"]),
        "acks": st.sampled_from([None, None, "memory"]),
        "expects": st.sampled_from([None, None, None, "right", "wrong"]),
    }
)


@pytest.fixture(autouse=True)
def quick_healing(monkeypatch):
    """A failed broker reopens at once."""
    monkeypatch.setattr(base_module, "HEAL_INTERVAL_S", 0.001)
    monkeypatch.setattr(state_loader, "_THREAD", OnTheLoop())


class OnTheLoop(ThreadPoolExecutor):
    """Runs thread work at once, so that a run repeats and ends with its loop."""

    def submit(self, function, /, *args, **kwargs):
        done = Future()
        try:
            done.set_result(function(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - raised where the outcome is awaited
            done.set_exception(error)
        return done


class Publish:
    """One record that was published, and its outcome."""

    def __init__(self, number, place, message_id):
        self.value = b"%d:" % number
        self.place = place
        self.message_id = message_id
        self.answer = None
        self.may_be_stored = True
        self.is_soft = False
        """Acked as 'memory': a power loss may take it until it is committed."""


class Answers:
    """The ack sink; answers of a broker that was killed are ignored."""

    def __init__(self, machine):
        self.machine = machine
        self.is_over = False

    def acked(self, token, partition, offset, *, duplicate):
        if not self.is_over:
            assert token.answer is None, "one answer each"
            token.answer = (offset, duplicate)
            assert partition == token.place
            self.machine.note_ack(token, offset, duplicate=duplicate)

    def rejected(self, token, error):
        if not self.is_over:
            assert token.answer is None, "one answer each"
            token.answer = error
            token.may_be_stored = error.code in UNKNOWN


class PartitionModel:
    """The records that a partition must have."""

    def __init__(self):
        self.stored = {}
        """Offset → value that was acked or read."""
        self.soft = set()
        """Offsets acked as 'memory' and not committed since."""
        self.start = 0
        self.tried = {}
        """Value → publish."""
        self.repeats = {}
        """Offset → the id of which publishers were told that it is there already."""


class BrokerMachine(RuleBasedStateMachine):
    """A broker on a faulty disk; each run has an event loop of its own."""

    def __init__(self):
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="strandline-"))
        self.disk = FaultyDisk(self.root / "scratch")
        self.clock = ManualClock()
        self.models = {}
        self.open_publishes = []
        self.numbers = 0
        self.is_settled = True
        """Whether everything was answered: by what was done, not by what threads reached, so that
        examples replay."""
        self.broker = None
        self.start()
        for name in STREAMS:
            self.create(name)

    def teardown(self):
        if self.broker is not None:
            self.kill()
        shutil.rmtree(self.root)

    # Lives

    def start(self):
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(OnTheLoop())
        config = BrokerConfig(data_dir=str(self.root / "data"), journal=CONFIG)
        self.broker = Broker(config, clock=self.clock, disk=self.disk)
        self.answers = Answers(self)
        self.run(self.broker.start())
        tasks = list(self.broker._tasks)
        for task in tasks:  # checkpoints are steps of their own
            task.cancel()
        self.run(asyncio.wait(tasks))

    def run(self, coroutine):
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 60))

    def end(self):
        """Leave the broker as kill -9 does."""
        self.answers.is_over = True
        self.broker._syncer.close()
        self.broker.lock.release()
        for task in self.broker._tasks:
            task._log_destroy_pending = False
            coroutine = task.get_coro()
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()  # or Python warns that it was never awaited
        self.loop.close()
        self.broker = None
        self.open_publishes.clear()
        self.is_settled = True
        gc.collect(1)  # files of the dead are closed

    def partition(self, place):
        return self.broker.stream(place[0]).partition(place[1])

    def create(self, name):
        config = StreamConfig(
            name=name,
            subject=name,
            partitions=STREAMS[name],
            acks=name,
            segment_bytes=64 << 10,
            dedup_window_ms=WINDOW_MS,
        )
        self.run(self.broker.create_stream(config))
        for number in range(STREAMS[name]):
            self.models[name, number] = PartitionModel()

    def settle(self):
        """Until everything is answered and the broker accepts records."""

        async def wait():
            await self.broker.quiesce()
            while self.broker.admission.write_error is not None:
                self.disk.full = False  # else it may never heal
                await asyncio.sleep(0.001)
            await self.broker.quiesce()
            await asyncio.sleep(0)

        self.run(wait())
        assert all(publish.answer is not None for publish in self.open_publishes)
        self.open_publishes.clear()
        self.is_settled = True
        assert self.broker.admission.pending_bytes == 0

    # What publishers do

    @rule(burst=st.lists(publishes, min_size=1, max_size=8))
    def publish(self, burst):
        """Several appends at once, until they are answered."""
        self.run(self.publish_all(burst))
        self.settle()

    @rule(burst=st.lists(publishes, min_size=1, max_size=8), steps=st.integers(0, 3))
    def begin_to_publish(self, burst, steps):
        """Several appends at once, and only a little time passes."""
        self.run(self.publish_all(burst))
        self.is_settled = False
        for _ in range(steps):
            self.run(asyncio.sleep(0))

    async def publish_all(self, burst):
        """On the loop, as every append."""
        for options in burst:
            self.publish_one(**options)

    def publish_one(self, place, size, message_id, *, acks, expects):
        self.numbers += 1
        publish = Publish(self.numbers, place, message_id)
        partition, model = self.partition(place), self.models[place]
        model.tried[publish.value] = publish
        publish.at_ms = self.clock.monotonic_ms()
        publish.is_soft = acks == "memory" or place[0] == "memory"
        right = partition.next_offset
        headers = [("Nats-Msg-Id", message_id.encode())] if message_id else None
        self.open_publishes.append(publish)
        partition.append(
            publish.value + bytes(size),
            subject=place[0],
            key=b"k" if size else None,
            headers=headers,
            ack_sink=self.answers,
            token=publish,
            message_id=message_id,
            expected_last={None: None, "right": right, "wrong": right + 1}[expects],
            acks=acks,
        )

    def note_ack(self, publish, offset, *, duplicate):
        """Record an acknowledged offset, which is a promise."""
        model = self.models[publish.place]
        if not duplicate:
            assert model.stored.setdefault(offset, publish.value) == publish.value
            if publish.is_soft:
                model.soft.add(offset)
            return
        publish.may_be_stored = False
        model.repeats[offset] = publish.message_id
        first = model.stored.get(offset)
        if first is not None:
            assert model.tried[first].message_id == publish.message_id
            age_ms = publish.at_ms - model.tried[first].at_ms
            assert age_ms <= WINDOW_MS, "a duplicate of what is still in the window"

    # What operators do

    @precondition(lambda self: self.is_settled)
    @rule(name=st.sampled_from(list(STREAMS)))
    def delete_and_create(self, name):
        """Delete the stream and its records, and create another of its name."""
        self.heal()
        self.run(self.broker.delete_stream(name))
        self.create(name)

    @precondition(lambda self: self.is_settled)
    @rule(place=places, share=st.floats(0, 1))
    def truncate(self, place, share):
        """Records at the beginning are removed on purpose."""
        self.heal()
        offset = int(share * self.partition(place).high_watermark)
        start = self.run(self.broker.delete_before(*place, offset))
        self.models[place].start = max(self.models[place].start, start)

    @precondition(lambda self: self.is_settled)
    @rule()
    def checkpoint(self):
        """The journal is recycled, if the disk lets it."""
        schedule = self.broker._checkpoints
        self.run(schedule._attempt("checkpoint", schedule.checkpoint))
        self.settle()

    # What the world does

    def heal(self):
        """End all faults."""
        self.disk._failures.clear()
        self.disk.full = False

    @rule(
        operation=st.sampled_from(["write", "write", "sync", "sync", "open"]),
        after=st.integers(0, 2),
        code=st.sampled_from([errno.EIO, errno.EMFILE]),
    )
    def fail(self, operation, after, code):
        """A call will fail."""
        self.disk.fail(operation, after=after, code=code)

    @rule(
        change=st.sampled_from(["full", "full", "free", "slow", "quick", "time"]),
        milliseconds=st.sampled_from([1, 20_000, 40_000, 60_001]),
    )
    def change(self, change, milliseconds):
        """Space ends or returns, the disk is slow (and synced in the thread), time passes."""
        if change in ("full", "free"):
            self.disk.full = change == "full"
        elif change in ("slow", "quick"):
            self.broker._syncer.average_ms = 1e12 if change == "slow" else 0.0
        elif self.is_settled:
            self.clock.advance_ms(milliseconds)

    @rule(is_clean=st.booleans())
    def restart(self, is_clean):
        """Stop cleanly or kill, after which the system keeps what was written; then start."""
        if is_clean:
            self.run(self.broker.stop())
            assert all(publish.answer is not None for publish in self.open_publishes)
        self.kill()
        self.start()

    def kill(self):
        self.end()
        self.heal()

    @rule(seed=st.integers(0, 1 << 32), chance=st.sampled_from([0.0, 0.5, 1.0]))
    def lose_power(self, seed, chance):
        """Cut the power; of unsynced writes any part survives."""
        choice = random.Random(seed)

        def keep(write):
            if choice.random() < chance:
                return ((0, len(write.data)),)
            cut = choice.randrange(len(write.data) + 1)
            return ((0, cut),) if choice.random() < chance else ()

        self.kill()
        self.disk.crash(keep)
        self.start()
        for place, model in self.models.items():
            self.forget_lost(model, self.partition(place).high_watermark)

    def forget_lost(self, model, end):
        """Records acknowledged with ``memory`` only may be lost, from the end."""
        model.repeats = {o: i for o, i in model.repeats.items() if o < end}
        for offset in [o for o in model.stored if o >= end]:
            assert offset in model.soft or model is self.models["memory", 0]
            model.tried[model.stored.pop(offset)].may_be_stored = False

    # What must hold

    @precondition(lambda self: self.is_settled)
    @invariant()
    def readers_see_what_publishers_were_told(self):
        """Dense offsets, every promised record at its place, nothing that was never sent."""
        for place, model in self.models.items():
            partition = self.partition(place)
            end = partition.high_watermark
            assert end == partition.log_end_offset == partition.next_offset
            assert partition.log_start_offset == model.start or model.start > end
            found = dict(self.read(partition))
            assert list(found) == list(range(partition.log_start_offset, end)), "dense"
            for offset, value in found.items():
                assert value in model.tried, "sent by somebody, to this partition"
                assert model.tried[value].may_be_stored, "not refused for certain"
                assert model.stored.setdefault(offset, value) == value, "one value per offset"
            assert all(o in found for o in model.stored if o >= partition.log_start_offset)
            for offset, message_id in model.repeats.items():
                if offset >= partition.log_start_offset:
                    assert model.tried[found[offset]].message_id == message_id, "a true duplicate"
            numbers = [int(value[:-1]) for value in found.values()]
            assert numbers == sorted(set(numbers)), "in order, each once"
            model.soft.clear()
            self.check_ids(found, model)

    def read(self, partition):
        """Offset and value (without its padding) of all records."""
        offset, end = partition.log_start_offset, partition.high_watermark
        while offset < end:
            buffer = partition.read(offset, 100_000)
            for batch in decode_batches(buffer, columns=["offset", "value"]):
                for at, value in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                    if at >= offset:
                        yield at, value.rstrip(b"\0")
                        offset = at + 1

    def check_ids(self, found, model):
        """Two records of one id are further apart than the window."""
        last = {}
        for value in found.values():
            publish = model.tried[value]
            if publish.message_id is not None:
                before = last.get(publish.message_id)
                assert before is None or publish.at_ms - before > WINDOW_MS
                last[publish.message_id] = publish.at_ms


BrokerMachine.TestCase.settings = settings(stateful_step_count=30)
TestBroker = BrokerMachine.TestCase

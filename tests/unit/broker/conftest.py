"""Shared by broker tests: a disk that fails on command, a counting ack sink, brokers."""

import asyncio
import errno
import fnmatch
import itertools
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from strandline.broker import base as base_module
from strandline.broker.broker import Broker
from strandline.broker.maintenance import checkpoint_schedule
from strandline.broker.write_path import sync_policy as syncer
from strandline.clock import ManualClock
from strandline.config import BrokerConfig, JournalConfig, StreamConfig
from strandline.core.transactions import events as ev
from strandline.core.transactions.state import BatchOfProducer, TransactionalProducer
from strandline.record.codec import decode_batches
from strandline.storage.disk import Disk, failed_sync, translated
from strandline.types import ProducerStamp
from tests.kit.waiting import until_async as until

FILE_BYTES = 64 << 10
FOR_EVER = 1 << 30


class RiggedDisk(Disk):
    """The real file system, except for the faults of a test; syncs do nothing, for speed.

    Operations are ``read``, ``write``, ``begin`` (of writing back), ``sync``, ``drop`` (of what is
    cached), ``open``, ``create``, ``truncate``, ``rename``, ``names`` (the sync of a directory) and
    ``mkdir``, each told by a pattern of its path.
    """

    syncs_plainly = False

    def __init__(self):
        self.orders = []
        self.seen = []
        self.gates = []

    def fail(self, operation, pattern="*", *, code=errno.EIO, times=FOR_EVER, after=0):
        """Let calls fail from now on."""
        self.orders.append([operation, f"*{pattern}*", code, times, after])

    def fill(self, pattern="*"):
        """No space for anything new."""
        for operation in ("write", "create", "mkdir"):
            self.fail(operation, pattern, code=errno.ENOSPC)

    def heal(self):
        """End all faults."""
        self.orders.clear()

    def hold(self, operation, pattern="*", *, after=0):
        """Let calls wait until the gate's ``released`` is set; ``reached`` reports the first.

        So many calls pass before.
        """
        gate = SimpleNamespace(
            operation=operation,
            pattern=f"*{pattern}*",
            after=after,
            reached=threading.Event(),
            released=threading.Event(),
        )
        self.gates.append(gate)
        return gate

    def count(self, operation, pattern="*"):
        """How many calls there have been."""
        found = [path for name, path in self.seen if name == operation]
        return len(fnmatch.filter(found, f"*{pattern}*"))

    def _check(self, operation, path):
        self.seen.append((operation, str(path)))
        for gate in self.gates:
            if gate.operation == operation and fnmatch.fnmatch(str(path), gate.pattern):
                gate.after -= 1
                if gate.after >= 0:
                    continue
                gate.reached.set()
                assert gate.released.wait(60), "a held call was never released"
        for order in self.orders:
            if order[0] != operation or not fnmatch.fnmatch(str(path), order[1]):
                continue
            if order[4]:
                order[4] -= 1
            elif order[3]:
                order[3] -= 1
                error = OSError(order[2], os.strerror(order[2]))
                kind = failed_sync if operation == "sync" else translated
                raise kind(error, f"{operation} of {path}") from error

    def _check_fd(self, operation, fd):
        self._check(operation, Path(f"/proc/self/fd/{fd}").readlink())

    def open(self, path, *, write=False, create=False):
        self._check("create" if create and not path.exists() else "open", path)
        return super().open(path, write=write, create=create)

    def pread(self, fd, length, position):
        self._check_fd("read", fd)
        return super().pread(fd, length, position)

    def map(self, fd, length):
        self._check_fd("read", fd)
        return super().map(fd, length)

    def pwrite(self, fd, data, position):
        self._check_fd("write", fd)
        super().pwrite(fd, data, position)

    def pwritev(self, fd, buffers, position):
        self._check_fd("write", fd)
        super().pwritev(fd, buffers, position)

    def truncate(self, fd, length):
        self._check_fd("truncate", fd)
        super().truncate(fd, length)

    def write_back(self, fd, position, length):
        self._check_fd("begin", fd)
        super().write_back(fd, position, length)

    def fdatasync(self, fd):
        self._check_fd("sync", fd)

    def drop_cache(self, fd):
        self._check_fd("drop", fd)
        super().drop_cache(fd)

    def sync_directory(self, path):
        self._check("names", path)

    def rename(self, source, target):
        self._check("rename", target)
        super().rename(source, target)

    def make_directory(self, path):
        if not path.is_dir():
            self._check("mkdir", path)
        super().make_directory(path)


SHORT = {
    "JournalSync": "the sync that publishers wait for",
    "Journal.sync": "what was answered without a sync: little, as the next turn takes it",
    "Segment._write": "a segment's first bytes make its file",
    "MetadataStore._append": "one line, of one command of an operator or an application",
    "ReplicaWrites.undo": "a turn is taken back out",
    "Log.delete": "the directory of a log that is deleted gets another name",
}
"""Calls that may be made on the event loop, and why: each is short."""


class LoopWatchingDisk(RiggedDisk):
    """Records slow calls on the thread that created it, which is the event loop's."""

    def __init__(self):
        super().__init__()
        self.loop, self.on_the_loop = threading.get_ident(), []

    def _check(self, operation, path):
        super()._check(operation, path)
        if operation in ("sync", "create", "truncate", "rename", "names", "mkdir", "unlink"):
            self._note(operation, path)

    def _note(self, operation, path):
        if threading.get_ident() != self.loop:
            return
        callers, frame = [], sys._getframe(2)
        while frame is not None and "asyncio" not in frame.f_code.co_filename:
            callers.append(frame.f_code.co_qualname)
            frame = frame.f_back
        if not any(short in caller for short in SHORT for caller in callers):
            self.on_the_loop.append(f"{operation} of {path.name} in {' < '.join(callers[:9])}")

    def unlink(self, path):
        if path.exists():
            self._note("unlink", path)
        super().unlink(path)

    def remove_large(self, path):
        self._note("remove_large", path)
        super().remove_large(path)

    def remove_directory(self, path):
        self._note("rmdir", path)
        super().remove_directory(path)


class Answers:
    """An ack sink that keeps every answer and fails on a second one for the same token."""

    is_alone = answers_leaderless = True

    def __init__(self):
        self.acks = {}
        self.errors = {}
        self.duplicates = set()
        self.order = []
        self._changed = asyncio.Event()

    def acked(self, token, partition, offset, *, duplicate):
        self._once(token)
        self.acks[token] = offset
        if duplicate:
            self.duplicates.add(token)

    def acked_many(self, tokens, partition, offset):
        for number, token in enumerate(tokens):
            if token is not None:
                self.acked(token, partition, offset + number, duplicate=False)

    def rejected(self, token, error):
        self._once(token)
        self.errors[token] = error

    def _once(self, token):
        assert token not in self.acks, f"{token} was acked before"
        assert token not in self.errors, f"{token} was rejected before"
        self.order.append(token)
        self._changed.set()

    @property
    def codes(self):
        """Error codes by token."""
        return {token: error.code for token, error in self.errors.items()}

    async def wait(self, count):
        """Wait for this many answers."""
        async with asyncio.timeout(60):
            while len(self.order) < count:
                self._changed.clear()
                await self._changed.wait()


def put(partition, answers, *tokens, **options):
    """Append a record for each token; by default the value is the token's number."""
    for token in tokens:
        given = {"value": str(token).encode(), "subject": "s", **options}
        value = given.pop("value")
        partition.append(value, ack_sink=answers, token=token, **given)


def by_thread(broker):
    """Make the broker believe that the disk is slow, so that it syncs in its thread."""
    broker._syncer.average_ms = 1e12


def values(partition):
    """Every committed value, in order; checks that offsets are dense."""
    found, offset, end = [], partition.log_start_offset, partition.high_watermark
    while offset < end:
        for batch in decode_batches(partition.read(offset, 1 << 20), columns=["offset", "value"]):
            for at, value in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                if at >= offset:
                    assert at == offset, "offsets are dense"
                    found.append(value)
                    offset += 1
    return found


def wait_beyond(partition, offset, timeout_s):
    """Block, as a reader does, until there is something beyond an offset, or the end."""
    waiter = threading.Event()
    partition.watch(waiter)
    try:
        if partition.last_stable_offset <= offset and not partition.closed:
            waiter.wait(timeout_s)
        return partition.last_stable_offset > offset
    finally:
        partition.unwatch(waiter)


def held(directory):
    """Files below a directory that were removed and are still open or mapped here."""
    opened = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    mapped = Path("/proc/self/maps").read_text().splitlines()
    names = (*opened, *mapped)
    return [name for name in names if f"{directory}/" in name and name.endswith(" (deleted)")]


def abandon(broker):
    """Leave a broker as kill -9 does: nothing is finished, everything is released."""
    for task in broker._tasks:
        task.cancel()
    broker._syncer.close()
    broker.lock.release()


@pytest.fixture
def on_the_loop(monkeypatch):
    """Sync group commits of any size on the loop, so that faults before the sync fail them."""
    monkeypatch.setattr(syncer, "INLINE_BYTES_MAX", 1 << 30)


@pytest.fixture
def without_spares(monkeypatch):
    """Create no spare journal file, so that a group commit has to create its own."""
    monkeypatch.setattr(checkpoint_schedule, "POLL_S", 3600)


@pytest.fixture
def disk():
    return RiggedDisk()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def answers():
    return Answers()


@pytest.fixture
def kit():
    """Helpers, since tests are no package."""
    return SimpleNamespace(
        put=put,
        by_thread=by_thread,
        values=values,
        until=until,
        abandon=abandon,
        held=held,
        wait_beyond=wait_beyond,
        Answers=Answers,
        Disk=RiggedDisk,
        LoopWatchingDisk=LoopWatchingDisk,
    )


@pytest.fixture
async def open_broker(tmp_path, disk, clock, monkeypatch):
    """Start brokers on one directory; those still running are stopped at the end."""
    monkeypatch.setattr(base_module, "HEAL_INTERVAL_S", 0.01)
    started = []

    async def start(*, journal=None, master_keys=None, **settings):
        journal = JournalConfig(**{"file_bytes": FILE_BYTES, **(journal or {})})
        config = BrokerConfig(data_dir=str(tmp_path / "data"), journal=journal, **settings)
        broker = Broker(config, clock=clock, disk=disk, master_keys=master_keys)
        started.append(broker)
        await broker.start()
        return broker

    yield start
    disk.heal()
    for gate in disk.gates:
        gate.released.set()
    for broker in started:
        if broker.is_ready:
            await broker.stop()


@pytest.fixture
async def broker(open_broker):
    return await open_broker()


@pytest.fixture
def make_stream():
    """Create a stream and give its partition 0."""

    async def make(broker, name="s", **settings):
        config = StreamConfig(name=name, subject=name, **{"segment_bytes": 64 << 10, **settings})
        return (await broker.create_stream(config)).partition(0)

    return make


@pytest.fixture
async def partition(broker, make_stream):
    return await make_stream(broker)


@pytest.fixture
def data_dir(tmp_path):
    return Path(tmp_path) / "data"


_nonces = itertools.count()


# Transactions


def seen(partition, start=None):
    """Values that a reader sees from an offset on; moves on as ``Cursor`` does."""
    offset = partition.log_start_offset if start is None else start
    end, found = partition.last_stable_offset, []
    while offset < end:
        buffer = partition.read(offset, 1 << 12)
        if not buffer.size:
            break
        for batch in decode_batches(buffer, columns=["offset", "value"]):
            for at, value in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                if offset <= at < end:
                    found.append(value.decode())
                    offset = at + 1
    return found


class Asker:
    """Requests to the office of a broker, as the front end makes them."""

    def __init__(self, broker):
        self.broker = broker
        self.sequences = {}

    @property
    def office(self):
        return self.broker.transactions

    async def begin(self, id_, *, after=None, timeout_ms=60_000, batch=None, nonce=None):
        nonce = nonce or f"nonce {next(_nonces)}"
        batch = None if batch is None else BatchOfProducer(*batch)
        begun = await self.office.begin_transaction(
            lambda token, fresh: ev.Begin(token, id_, after, nonce, timeout_ms, fresh, batch)
        )
        return begun.producer

    async def add(self, id_, who, *names):
        places = self.office.places(list(names))
        await self.office.ask(lambda token: ev.AddTransactionPartitions(token, id_, who, places))

    def write(self, who, partition, answers, *values):
        """Append values as one batch; the token is the first value."""
        number = self.sequences.get((who, partition.name), 0)
        self.sequences[who, partition.name] = number + len(values)
        column = pa.array([value.encode() for value in values], pa.binary())
        partition.append_arrow(
            pa.RecordBatch.from_arrays([column], names=["value"]),
            ack_sink=answers,
            token=values[0],
            producer=ProducerStamp(who.producer_id, who.epoch, number),
            is_transactional=True,
        )

    async def end(self, id_, who, *, is_commit):
        await self.office.ask(lambda token: ev.End(token, id_, who, is_commit=is_commit))

    async def prepare(self, id_, who):
        await self.office.ask(lambda token: ev.Prepare(token, id_, who))

    async def end_staged(self, id_, who, *, is_commit):
        await self.office.ask(
            lambda token: ev.EndStaged(token, id_, TransactionalProducer(*who), is_commit=is_commit)
        )

    async def publish(self, name, number, fingerprint, *parts):
        return await self.office.ask(
            lambda token: ev.Publish(token, BatchOfProducer(name, number), parts, fingerprint)
        )

    async def read(self, question):
        return await self.office.ask(lambda token: ev.QueryTransactions(token, question))


@pytest.fixture
def tx():
    """Shared by the tests here."""
    return SimpleNamespace(Asker=Asker, seen=seen)

"""Logs, journal, checkpoints and recovery together, against lists in memory.

Hypothesis makes up a life: turns, syncs, checkpoints, truncations, deletions, full disks, failing
syncs, and ends of all kinds (a kill, a power loss that keeps any part of what was not synced).
After each the logs must hold every record that was synced and nothing that was never written.
"""

import errno
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strandline.errors import DiskFullError, LogPoisonedError
from strandline.record.batch import iter_headers, read_header
from strandline.record.codec import Stamp, encode_records
from strandline.storage.faulty_disk import FaultyDisk, Unsynced, keep_all, keep_nothing
from strandline.storage.inspect import inspect_directory
from strandline.storage.log import Log
from strandline.storage.recovery import LogPlan, Recovered, recover
from strandline.types import LogId

SEGMENT_BYTES = 1500
JOURNAL_BYTES = 16 << 10
sizes = st.integers(0, 400)
copies = st.sampled_from([0, 0, 0, 1])
turns = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), sizes), min_size=1, max_size=4)


def make_batch(base_offset: int, count: int, size: int, *, epoch: int = 0) -> bytes:
    """A batch whose records say which they are."""
    values = [b"%d:%d:" % (base_offset + i, epoch) + bytes(size) for i in range(count)]
    return bytes(encode_records(values, ["s"], Stamp(base_offset, epoch, 1_000 + base_offset)))


class Model:
    """The batches that a log must have, and how many of them are durable."""

    def __init__(self, log_id: int) -> None:
        self.log_id = LogId(log_id)
        self.batches: list[bytes] = []
        self.safe = 0
        self.start = 0
        self.leader_epoch = 0

        self.cut_off: list[bytes] = []
        """Batches that were cut, and may be back after a crash where nothing has replaced them."""

    @property
    def end(self) -> int:
        return read_header(self.batches[-1]).next_offset if self.batches else 0

    def batch(self, count: int, size: int) -> bytes:
        """The next one, not added yet."""
        return make_batch(self.end, count, size, epoch=self.leader_epoch)


class StorageMachine(RuleBasedStateMachine):
    """A broker's storage in one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="strandline-"))
        self.disk = FaultyDisk(self.root / "scratch")
        self.models: dict[int, Model] = {}
        self.next_id = 1
        self.open: Recovered | None = None

    def teardown(self) -> None:
        self.open = None
        self.disk.forget()
        shutil.rmtree(self.root)

    @initialize()
    def begin(self) -> None:
        for slot in range(3):
            self.models[slot] = Model(self.next_id)
            self.next_id += 1
        self.reopen()

    def reopen(self) -> None:
        self.open = None
        plans = {
            model.log_id: LogPlan(self.directory(model), SEGMENT_BYTES, 10**6)
            for model in self.models.values()
        }
        self.inspect(plans)
        self.open = recover(self.root / "data", plans, disk=self.disk, file_bytes=JOURNAL_BYTES)
        assert self.open.report.corruption == [], "nothing was corrupt, or lost"
        for model in self.models.values():
            self.compare_after_recovery(model)

    def directory(self, model: Model) -> Path:
        return self.root / "data" / "logs" / f"{model.log_id:08d}"

    def inspect(self, plans: dict[LogId, LogPlan]) -> None:
        """Only lost data is reported missing, after any truncation, removal, deletion or crash."""
        reports = inspect_directory(self.root / "data", verify=True, known=set(plans))
        corrupt = [r.findings for r in reports if r.is_corrupt and "index" not in r.kind]
        assert corrupt == [], "an index may be torn, and is made anew"

    def compare_after_recovery(self, model: Model) -> None:
        log = self.log(model)
        self.unread(model)
        ends = [0, *(read_header(batch).next_offset for batch in model.batches)]
        assert log.log_end_offset in ends, "the log ends where a batch ended"
        kept = ends.index(log.log_end_offset)
        assert kept >= model.safe, "what was synced is there"
        del model.batches[kept:]
        model.safe = kept
        assert log.log_start_offset <= model.start or model.start >= model.end
        assert log.log_start_offset >= model.start or log.log_start_offset == model.end

    def unread(self, model: Model) -> None:
        """Truncated batches are back instead of some that were not safe."""
        log = self.log(model)
        found = list(self.read(log, log.log_start_offset))
        first = next((i for i, batch in enumerate(found) if batch not in model.batches), None)
        if first is None:
            return
        base = read_header(found[first]).base_offset
        kept = [batch for batch in model.batches if read_header(batch).base_offset < base]
        assert len(kept) >= model.safe, "what was synced was not replaced"
        assert all(batch in model.cut_off for batch in found[first:])
        model.batches = kept + found[first:]

    @staticmethod
    def read(log: Log, offset: int) -> Iterator[bytes]:
        """Its batches."""
        while offset < log.log_end_offset:
            part = log.read(offset, 700)
            for position, header in iter_headers(part.buffer):
                yield bytes(part.buffer[position : position + header.length])
            offset = part.next_offset

    def log(self, model: Model) -> Log:
        assert self.open is not None
        return self.open.logs[model.log_id]

    @rule(turn=turns)
    def append(self, turn: list[tuple[int, int, int]]) -> None:
        """A group commit: segments, then journal; undone as a whole if the journal rejects it."""
        parts: list[tuple[LogId, bytes]] = []
        taken: list[tuple[Model, int]] = []
        assert self.open is not None
        for slot, count, size in turn:
            model = self.models[slot]
            batch = model.batch(count, size)
            try:
                self.log(model).append(batch, read_header(batch))
            except DiskFullError:
                assert self.disk.full
                continue
            taken.append((model, model.end))
            model.batches.append(batch)
            parts.append((model.log_id, batch))
        try:
            self.open.journal.append(parts)
        except DiskFullError:
            for model, end in reversed(taken):
                model.batches.pop()
                self.log(model).undo_to(end)
            assert self.disk.full

    @rule(slot=copies, counts=st.lists(st.integers(1, 3), min_size=1, max_size=4))
    def append_without_journal(self, slot: int, counts: list[int]) -> None:
        """Large copies go to their segments only, and are safe once these are synced."""
        model = self.models[slot]
        log, end, before = self.log(model), model.end, len(model.batches)
        if not log.can_do_without_journal:
            return
        try:
            for count in counts:
                batch = model.batch(count, 400)
                log.append(batch, read_header(batch))
                model.batches.append(batch)
            log.write_pending()
            log.sync_written()
        except DiskFullError:
            assert self.disk.full
            log.undo_to(end)
            del model.batches[before:]
            return
        model.safe = len(model.batches)

    @rule(slot=copies, share=st.sampled_from([0, 0.4, 0.8]))
    @precondition(lambda self: not self.disk.full)
    def cut(self, slot: int, share: float) -> None:
        """The end of a copy is removed, because its leader has something else there."""
        model = self.models[slot]
        kept = int(share * len(model.batches))
        end = read_header(model.batches[kept - 1]).next_offset if kept else 0
        if end < self.log(model).log_start_offset:
            return
        self.log(model).truncate_to(end)
        model.cut_off += model.batches[kept:]
        del model.batches[kept:]
        model.safe = min(model.safe, kept)
        model.leader_epoch += 1

    @rule()
    def sync(self) -> None:
        """After this everything appended is acknowledged."""
        assert self.open is not None
        self.open.journal.sync()
        for model in self.models.values():
            model.safe = len(model.batches)

    @rule(steps=st.integers(1, 3))
    def checkpoint(self, steps: int) -> None:
        """A checkpoint that gets as far as ``steps`` of its three."""
        assert self.open is not None
        checkpointer = self.open.checkpointer
        try:
            pending = checkpointer.begin(self.open.logs)
            if steps > 1:
                checkpointer.write(pending)
            if steps > 2:
                checkpointer.finish(pending)
        except DiskFullError:
            assert self.disk.full

    @rule(slot=st.integers(0, 2), share=st.floats(0, 1))
    def delete_before(self, slot: int, share: float) -> None:
        """Records at the beginning are removed on purpose; only synced ones, as the broker does."""
        model = self.models[slot]
        safe_end = read_header(model.batches[model.safe - 1]).next_offset if model.safe else 0
        offset = int(share * safe_end)
        try:
            self.log(model).delete_before(offset)
        except DiskFullError:
            assert self.disk.full
        model.start = max(model.start, self.log(model).log_start_offset)

    @rule(slot=st.integers(0, 2))
    @precondition(lambda self: not self.disk.full)
    def delete(self, slot: int) -> None:
        """A stream is deleted and another takes its place, under a new log id."""
        assert self.open is not None
        gone = self.models[slot]
        self.open.logs.pop(gone.log_id).delete()
        model = self.models[slot] = Model(self.next_id)
        self.next_id += 1
        directory = self.directory(model)
        self.open.logs[model.log_id] = Log.open(
            directory, disk=self.disk, segment_bytes=SEGMENT_BYTES, segment_age_ms=10**6
        )

    @rule()
    def fill_disk(self) -> None:
        """From now on nothing that needs new space succeeds."""
        self.disk.full = True

    @rule()
    def free_disk(self) -> None:
        """Space returns; no reopening is needed."""
        self.disk.full = False

    @rule(operation=st.sampled_from(["write", "sync"]))
    @precondition(lambda self: not self.disk.full)
    def break_journal(self, operation: str) -> None:
        """After an I/O error the journal rejects everything until it is reopened."""
        assert self.open is not None
        journal = self.open.journal
        model = self.models[0]
        batch = model.batch(1, 10)
        journal.sync()
        self.disk.fail(operation, code=errno.EIO)

        def append_and_sync() -> None:
            journal.append([(model.log_id, batch)])
            journal.sync()

        with pytest.raises(LogPoisonedError):
            append_and_sync()
        self.disk._failures.clear()
        with pytest.raises(LogPoisonedError):
            journal.append([(model.log_id, batch)])
        # Whether a batch that was written and not synced exists is open; here it was in no segment.
        for other in self.models.values():
            other.safe = len(other.batches)
        model.batches.append(batch)
        self.reopen()

    @rule()
    def kill(self) -> None:
        """Kill the process; the system keeps what was written."""
        self.disk.full = False
        self.reopen()

    @rule(kept=st.sampled_from([keep_nothing, keep_all]))
    def lose_power(self, kept: object) -> None:
        """Cut the power; of unsynced writes nothing, or everything, survives."""
        self.open = None
        self.disk.crash(kept)
        self.reopen()

    @rule(data=st.data())
    def lose_power_in_the_middle(self, data: st.DataObject) -> None:
        """Cut the power during a write: any part of unsynced writes survives."""

        def keep(write: Unsynced) -> list[tuple[int, int]]:
            length = len(write.data)
            cuts = sorted(data.draw(st.lists(st.integers(0, length), max_size=4)))
            return list(zip(cuts[::2], cuts[1::2], strict=False))

        self.open = None
        self.disk.crash(keep)
        self.reopen()

    @invariant()
    def everything_is_readable(self) -> None:
        """Each log returns the batches of its model, from its start to its end."""
        if self.open is None:
            return
        for model in self.models.values():
            log = self.log(model)
            wanted = [b for b in model.batches if read_header(b).next_offset > log.log_start_offset]
            assert list(self.read(log, log.log_start_offset)) == wanted


StorageMachine.TestCase.settings = settings(stateful_step_count=30)
TestStorage = StorageMachine.TestCase

"""Random runs of the real storage on a disk that loses, tears, fails, fills up and lies.

Journal, logs, checkpoints and recovery are used as by a broker, in one thread: group commits to
several logs, syncs, checkpoints with pauses between their three steps, copies without the journal,
truncations, deletions and retention, and logs that are deleted, created again and emptied. Files
are removed later, in order, as on the broker's thread for that. At any call, even in recovery, the
machine may lose power, and any write or sync may fail; then everything is opened again and compared
with plain lists (``recovery_model``). At the end of every fourth run the disk lies: any part of
what it reported as synced may be lost. No recovery can restore that; but the records that it serves
must be those that were written, and it must report every gap.

Rules: everything random comes from the world's generator, so a seed repeats. Calls of the disk and
steps of the driver are the events.
"""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from simulation.recovery_disk import PowerLossError, SimDisk
from simulation.recovery_model import LogModel, check_after_lies
from simulation.world import World
from strandline.errors import DiskFullError, LogPoisonedError
from strandline.record.batch import header_of
from strandline.storage.log import Log
from strandline.storage.log_directory import delete_log_directory
from strandline.storage.log_generation import write_generation
from strandline.storage.recovery import LogPlan, PendingCheckpoint, Recovered, recover
from strandline.storage.retention import RetentionPolicy, retention_start
from strandline.testing.history import ViolationError
from strandline.types import LogId, TimestampNs

DATA: Final = Path("/data")
LOGS: Final = Path("/data/logs")
SEGMENT_BYTES: Final = 2_000
JOURNAL_BYTES: Final = 16 << 10
STEPS: Final = 250
LIES_EVERY: Final = 4
OPENINGS_MAX: Final = 30


class RecoveryPlan(NamedTuple):
    """A step of a run, and its weight."""

    weight: int
    step: Callable[[], None]


class RecoveryRun:
    """One data directory's run; every public method is one possible event.

    Args:
        seed: determines everything.
    """

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.rng = self.world.rng
        self.disk = SimDisk(self.world)
        self.disk.make_directory(DATA)  # as an operator does
        self.models = [LogModel(LogId(i + 1)) for i in range(3)]
        self.doomed: list[LogId] = []
        """Logs whose deletion may not be complete."""
        self.used: set[LogId] = set()
        """Ids of deleted logs, which may be used again."""
        self._next_id = LogId(4)
        self._storage: Recovered | None = None
        self._pending: PendingCheckpoint | None = None
        self._is_durable = False
        self._written = 0
        self._removals: deque[Callable[[], None]] = deque()
        """Pending removals of files of deleted segments and logs."""

    @property
    def storage(self) -> Recovered:
        """The open storage."""
        assert self._storage is not None, "it is open between two steps"
        return self._storage

    def log(self, model: LogModel) -> Log:
        """Return the log of a model."""
        return self.storage.logs[model.log_id]

    def some_log(self) -> tuple[LogModel, Log]:
        """Return any log, with its model."""
        model = self.rng.choice(self.models)
        return model, self.log(model)

    def is_often(self, chance: float) -> bool:
        """Return True with this probability."""
        return self.rng.random() < chance

    # Writing

    def turn(self) -> None:
        """Do a group commit: append batches to some logs, then a journal entry.

        The batches are undone if the journal rejects the entry.
        """
        taken: list[tuple[LogModel, bytes]] = []
        for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
            model, log = self.some_log()
            batch = self._make_batch(model)
            try:
                log.append(batch, header_of(batch))
            except DiskFullError:
                self._undo(model)
            else:
                taken.append((model, batch))
        try:
            self.storage.journal.append([(model.log_id, batch) for model, batch in taken])
        except DiskFullError:
            for model, _ in reversed(taken):
                self._undo(model)
                self.log(model).undo_to(model.end)

    def _make_batch(self, model: LogModel) -> bytes:
        self._written += 1
        length = self.rng.choice((8, 40, 150, 400, 400, 900, 1_500, 2_500))
        return model.next_batch(self.rng.randint(1, 3), b"%07d," % self._written * (length // 8))

    def _undo(self, model: LogModel) -> None:
        self._check_full()
        model.cut(len(model.batches) - 1)

    def _check_full(self) -> None:
        if not self.disk.full:
            raise ViolationError("a disk with free space was reported as full")

    def sync(self) -> None:
        """Sync the journal, perhaps as on another thread; the covered entries are safe."""
        journal = self.storage.journal
        covered = [(model, len(model.batches)) for model in self.models]
        if self.is_often(0.7):
            self._sync_here()
        else:
            fd, sequence = journal.sync_target()
            if fd >= 0:
                try:
                    self.disk.fdatasync(fd)
                except LogPoisonedError:
                    journal.poison()
                    raise
                journal.mark_synced(sequence)
                self.turn()
        for model, count in covered:
            model.safe = max(model.safe, min(count, len(model.batches)))
        self.world.counts["acked"] += 1

    def _sync_here(self) -> None:
        try:
            self.storage.journal.sync()
        except LogPoisonedError:
            if self.is_often(0.5):
                raise
            self.storage.journal.sync()  # must fail: the failed writes are not written again

    def copy(self) -> None:
        """Append batches without the journal; they are safe once the log is synced."""
        model, log = self.some_log()
        if not log.can_do_without_journal:
            return
        before = len(model.batches)
        try:
            for _ in range(self.rng.randint(1, 4)):
                batch = self._make_batch(model)
                log.append(batch, header_of(batch))
            log.write_pending()
            log.sync_written()
        except DiskFullError:
            self._check_full()
            log.undo_to(model.cut(before))
            return
        model.safe = len(model.batches)
        self.world.counts["copies"] += 1

    def write_pending(self) -> None:
        """Write a log's batches from memory to the file, or begin a new segment."""
        _, log = self.some_log()
        try:
            log.roll() if self.is_often(0.2) else log.write_pending()
        except DiskFullError:
            self._check_full()

    def checkpoint(self) -> None:
        """Take the next step of the checkpoint in progress."""
        checkpointer = self.storage.checkpointer
        try:
            if self._pending is None:
                self._pending = checkpointer.begin(self.storage.logs)
                self._is_durable = False
            elif not self._is_durable:
                checkpointer.write(self._pending)
                self._is_durable = True
            else:
                checkpointer.finish(self._pending)
                self._pending = None
                self.world.counts["checkpoints"] += 1
        except DiskFullError:
            self._check_full()
            self._pending = None

    def spare(self) -> None:
        """Create a spare journal file."""
        try:
            if self.storage.journal.needs_spare:
                self.storage.journal.allocate_spare()
        except DiskFullError:
            self._check_full()

    # Removing

    def cut(self) -> None:
        """Truncate a log, because its new leader has other records there."""
        model, log = self.some_log()
        if self.disk.full:
            return
        kept = int(self.rng.choice((0.3, 0.8, 0.95, 1)) * len(model.batches))
        if (model.batches[kept - 1].end if kept else model.first) >= log.log_start_offset:
            model.was_cut = True
            log.truncate_to(model.cut(kept))
            model.epoch += 1
            self.world.counts["cut"] += 1

    def delete_before(self) -> None:
        """Delete safe records at the beginning, as an operator or retention does."""
        model, log = self.some_log()
        offset: int | None = self.rng.randint(model.first, model.safe_end)
        if self.is_often(0.4):
            policy = RetentionPolicy(bytes_max=self.rng.choice((2_000, 6_000)))
            offset = retention_start(log, policy, now_ns=TimestampNs(0))
        if offset is None or not log.log_start_offset < offset <= model.safe_end:
            return
        model.start_max = offset
        try:
            log.delete_before(offset)
        except DiskFullError:
            self._check_full()
        else:
            model.start = offset
        self.world.counts["removed"] += 1

    def start_over(self) -> None:
        """Empty a replica that was offline too long; it continues at a later offset."""
        model, log = self.some_log()
        if self.disk.full:
            return
        model.restart = model.end + self.rng.randint(1, 20)
        model.was_cut = True
        log.restart_at(model.restart)
        model.start_over(model.restart)
        self.world.counts["started over"] += 1

    def delete(self) -> None:
        """Delete a log, and create another, perhaps with the same id."""
        if self.disk.full:
            return
        index = self.rng.randrange(len(self.models))
        gone = self.models[index].log_id
        if self.is_often(0.4):
            self.used.add(gone)
            self.models[index] = LogModel(gone)
        else:
            self.models[index] = LogModel(self._next_id)
            self._next_id = LogId(self._next_id + 1)
        self.doomed.append(gone)
        self.storage.logs.pop(gone).delete()
        while self._removals:
            self._removals.popleft()()
        self.doomed.remove(gone)
        self._make_logs()
        self.world.counts["deleted"] += 1

    def reclaim(self) -> None:
        """Remove the files of removed segments, the oldest first."""
        for _ in range(self.rng.randint(1, 4)):
            if self._removals:
                self._removals.popleft()()

    def _make_logs(self) -> None:
        """Create the logs that do not exist yet."""
        for model in self.models:
            if not model.is_made:
                if model.log_id not in self.storage.logs:
                    log = self._make_log(model.log_id)
                    log.reclaim_with(self._removals.append)
                    self.storage.keep(model.log_id, log)
                model.is_made = True

    def _make_log(self, log_id: LogId) -> Log:
        directory = self._directory(log_id)
        if log_id in self.used:
            delete_log_directory(directory, disk=self.disk)
            write_generation(directory, self.storage.journal.sync(), disk=self.disk)
        log = Log.open(directory, disk=self.disk, segment_bytes=SEGMENT_BYTES, segment_age_ms=0)
        self.disk.sync_directory(LOGS)
        return log

    @staticmethod
    def _directory(log_id: LogId) -> Path:
        return LOGS / str(log_id)

    # Faults

    def fill(self) -> None:
        """Make the disk full, or no longer full."""
        self.disk.full = not self.disk.full and self.is_often(0.5)

    def fail(self) -> None:
        """Let a later write or sync fail."""
        operation = self.rng.choice(("write", "sync", "sync", "name"))
        self.disk.fail_after(operation, self.rng.randint(0, 8))

    def die(self) -> None:
        """Let the machine lose power at a later call."""
        self.disk.die_after(self.rng.choice((0, 5, 20, 80)) + self.rng.randint(0, 5))

    def stop(self) -> None:
        """Kill the process, or lose power, between two calls."""
        self._close()
        if self.is_often(0.6):
            self._lose_power()
        self.open()

    def _lose_power(self) -> None:
        how = self.rng.choice(("nothing", "all", "torn", "torn"))
        self.world.counts[f"power losses, {how} kept"] += 1
        self.disk.crash(how)

    def _close(self) -> None:
        self._storage = self._pending = None
        self._removals.clear()

    def open(self) -> None:
        """Recover, repeatedly if that is interrupted; then compare with the models."""
        for _ in range(OPENINGS_MAX):
            self.disk.be_well()
            self._endanger()
            try:
                self._open()
            except PowerLossError:
                self._close()
                self._lose_power()
            except (LogPoisonedError, DiskFullError):
                self._close()
            else:
                return
        raise ViolationError(f"{OPENINGS_MAX} recoveries in a row did not finish")

    def _endanger(self) -> None:
        """Sometimes plan a fault during recovery."""
        if self.is_often(0.2):
            self.disk.die_after(self.rng.choice((10, 50, 150)) + self.rng.randint(0, 20))
        if self.is_often(0.1):
            self.disk.fail_after(self.rng.choice(("write", "sync", "name")), self.rng.randint(0, 9))
        self.disk.full = self.is_often(0.1)

    def _open(self) -> None:
        self._recover()
        self._check_corruption()
        for model in self.models:
            if model.is_made and model.log_id not in self.storage.logs:
                raise ViolationError(f"the directory of log {model.log_id} is missing")
            if model.is_made:
                model.recovered(self.log(model))
        self._remove_doomed()
        self._make_logs()
        self.world.counts["recoveries"] += 1

    def _recover(self) -> None:
        ids = [*self.doomed, *(model.log_id for model in self.models)]
        plans: dict[LogId, LogPlan] = {}
        for log_id in dict.fromkeys(ids):
            directory = self._directory(log_id)
            if self.disk.exists(directory):
                plans[log_id] = LogPlan(directory, SEGMENT_BYTES, 0)
            else:
                delete_log_directory(directory, disk=self.disk)
        self._storage = recover(DATA, plans, disk=self.disk, file_bytes=JOURNAL_BYTES)
        for log in self._storage.logs.values():
            log.reclaim_with(self._removals.append)

    def _remove_doomed(self) -> None:
        for log_id in list(self.doomed):
            log = self.storage.logs.pop(log_id, None)
            if log is not None:
                log.reclaim_with(_now)
                log.delete()
            self.doomed.remove(log_id)

    def _check_corruption(self) -> None:
        """Check that nothing is corrupt or lost; truncated logs may have missing parts."""
        excused = {str(model.log_id) for model in self.models if model.was_cut}
        excused |= {str(log_id) for log_id in self.doomed}
        for corruption in self.storage.report.corruption:
            if corruption.file.parent.name not in excused:
                raise ViolationError(f"corruption was reported, but there is none: {corruption}")

    # The whole run

    def run_steps(self, steps: int) -> str:
        """Run this many events; return a digest.

        Raises:
            ViolationError: a promise was broken.
        """
        self.open()
        plans = self._plans()
        weights = [plan.weight for plan in plans]
        for _ in range(steps):
            [plan] = self.rng.choices(plans, weights)
            self._take(plan.step)
        self._end()
        return self.world.fingerprint

    def _plans(self) -> list[RecoveryPlan]:
        return [
            RecoveryPlan(40, self.turn),
            RecoveryPlan(20, self.sync),
            RecoveryPlan(12, self.checkpoint),
            RecoveryPlan(5, self.write_pending),
            RecoveryPlan(4, self.copy),
            RecoveryPlan(3, self.cut),
            RecoveryPlan(3, self.delete_before),
            RecoveryPlan(6, self.reclaim),
            RecoveryPlan(2, self.spare),
            RecoveryPlan(2, self.fill),
            RecoveryPlan(2, self.fail),
            RecoveryPlan(2, self.die),
            RecoveryPlan(3, self.stop),
            RecoveryPlan(2, self.delete),
            RecoveryPlan(1, self.start_over),
        ]

    def _take(self, step: Callable[[], None]) -> None:
        self.world.events += 1
        try:
            step()
            if self.is_often(0.2):
                model, log = self.some_log()
                model.check(log)
        except PowerLossError:
            self._close()
            self._lose_power()
            self.open()
        except LogPoisonedError:
            self._close()
            if self.is_often(0.3):
                self._lose_power()
            self.open()
        ends = [self.log(model).log_end_offset for model in self.models]
        self.world.note(f"{step.__name__} {ends} {self.storage.journal.last_sequence}")

    def _end(self) -> None:
        """Check at the end, without faults, that everything written is there."""
        self.disk.be_well()
        for model in self.models:
            model.check(self.log(model))
        self._close()
        self._open()


class LyingDiskRun(RecoveryRun):
    """A run whose disk lies at the end."""

    def _end(self) -> None:
        self.disk.be_well()
        self.disk.lies = True
        steps = (self.turn, self.sync, self.checkpoint, self.write_pending, self.delete_before)
        for _ in range(self.rng.randint(1, 60)):
            self.rng.choice((*steps, self.turn, self.sync))()
        self._close()
        self._lose_power()
        self._recover()
        is_reported = bool(self.storage.report.corruption)
        self.world.counts["lies reported"] += is_reported
        for model in self.models:
            log = self.storage.logs.get(model.log_id)
            if log is not None:
                check_after_lies(model, log, is_corruption_reported=is_reported)
                self.world.note(f"{model.log_id} {log.log_start_offset} {log.log_end_offset}")


def run(seed: int) -> World:
    """Run the history of a seed.

    Raises:
        ViolationError: a promise was broken.
    """
    history = LyingDiskRun(seed) if seed % LIES_EVERY == LIES_EVERY - 1 else RecoveryRun(seed)
    history.run_steps(STEPS)
    return history.world


def _now(removal: Callable[[], None]) -> None:
    removal()

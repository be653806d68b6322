"""One group commit as a value: what it writes, and what follows, in the order that is safe.

    writes              batches of partitions, and copies for replicas: into their logs, unsynced,
                        and as one entry into the journal
    sends_before_sync   frames for followers, and acks at level 'memory'
                        ... here the journal is synced, once ...
    acks, wakeups       high watermarks move, readers wake, publishers are acknowledged
    sends_after_sync    acks to leaders and to publishers, each connection once

``GroupCommitter`` executes a plan in this order. The plan holds the writes. The acknowledgements
that the writes permit gather in the ``SendQueue``, from which the committer sends them. Only the
large writes of a follower that catches up happen outside a plan (``catch_up_writes``).

Rules: each append that is drained into a plan gets exactly one outcome, whatever happens to the
plan. If a partition fails, only its own records are lost: those of the plan, and, since offsets are
dense, all that it has accepted after them.
"""

from strandline.broker.write_path.admission import Admission
from strandline.broker.write_path.append_queue import DrainedBatch
from strandline.broker.write_path.partition import Partition
from strandline.broker.write_path.pending import AckSink, Chunk, reject_waiting
from strandline.broker.write_path.replica_writes import ReplicaWrites
from strandline.errors import (
    DiskFullError,
    InvalidRequestError,
    LogPoisonedError,
    StrandlineError,
    UnavailableError,
)
from strandline.storage.disk import Bytes
from strandline.storage.journal import Journal, entry_bytes
from strandline.storage.log import Log
from strandline.telemetry import Telemetry
from strandline.types import LogId, Offset, TimestampNs

WrittenBatch = tuple[Partition, Chunk, Bytes, Offset]
"""A batch in its partition's log, with the records it came from; then the log's end."""


class IoPlan:
    """The writes of one group commit.

    Args:
        drained: accepted batches, by partition; a batch that is rejected is removed from its list.
        copies: finished batches for the logs of replicas.
        admission: counts rejected records.
        telemetry: counters.
    """

    def __init__(
        self,
        drained: list[DrainedBatch],
        copies: ReplicaWrites,
        *,
        admission: Admission[Partition],
        telemetry: Telemetry,
    ) -> None:
        self._drained = drained
        self._copies = copies
        self._admission = admission
        self._telemetry = telemetry
        self.writes: list[WrittenBatch] = []
        self.parts: list[tuple[LogId, Bytes]] = []
        """The parts of the journal entry: each batch with its log id."""
        self.logs: list[Log] = []
        """The logs that may have to be written to their files soon."""
        self.size = self.records = 0
        """The bytes of all batches, and the number of publishers' records."""
        self.needs_sync = False
        """Whether an ack in this plan requires a sync."""
        self._copied_bytes = 0
        self._met_full_disk = False

    def __repr__(self) -> str:
        writes = [f"{partition.name}@{chunk.base_offset}" for partition, chunk, _, _ in self.writes]
        return f"IoPlan(writes={writes}, parts={len(self.parts)}, bytes={self.size})"

    # Writes

    def write(
        self, journal: Journal, now_ns: TimestampNs, no_file: UnavailableError | None = None
    ) -> bool:
        """Append batches to their logs, and one entry to the journal, unsynced.

        Args:
            journal: the journal of all logs.
            now_ns: the time of the batches.
            no_file: why a journal file could not be made; rejects an entry that needs one.

        Returns:
            False if nothing was written: nothing was pending, or the journal had no room, and
            everything was undone.

        Raises:
            LogPoisonedError: a write failed.
        """
        self._write_logs(now_ns)
        if not self.parts:
            return False
        try:
            if no_file is not None and not journal.has_room(entry_bytes(self.parts)):
                raise no_file
            journal.append(self.parts)
        except LogPoisonedError:
            raise
        except UnavailableError as error:
            self._undo(error)
            return False
        for partition, chunk, batch, _ in self.writes:
            partition.journaled(chunk, batch)
        return True

    def _write_logs(self, now_ns: TimestampNs) -> None:
        """Encode batches and append them to their logs.

        Raises:
            LogPoisonedError: a write failed.
        """
        if self._copies.has_waiting:
            # First: on a follower that has just become leader, new records come after these.
            self.parts = self._copies.write()
            self.logs = self._copies.logs
            self.size = self._copied_bytes = sum(len(batch) for _, batch in self.parts)
            self.needs_sync = bool(self.parts)
        writes, parts, logs = self.writes, self.parts, self.logs
        for partition, chunks in self._drained:
            for index, chunk in enumerate(chunks):
                try:
                    batch = partition.write(chunk, now_ns, logs)
                except LogPoisonedError:
                    raise
                except StrandlineError as error:
                    self._reject_from(partition, chunks, error, index=index)
                    break
                count = chunk.count
                next_offset = Offset(chunk.base_offset + count)
                writes.append((partition, chunk, batch, next_offset))
                parts.append((partition.log_id, batch))
                self.size += len(batch)
                self.records += count
                self.needs_sync = self.needs_sync or partition.needs_sync

    @property
    def only_source(self) -> AckSink | None:
        """The connection that all records came over, judged by the first and last of each batch."""
        source = None
        for _, chunk, _, _ in self.writes:
            waiting = chunk.waiting
            if not waiting:
                continue
            source = source or waiting[0].ack_sink
            if waiting[0].ack_sink is not source or waiting[-1].ack_sink is not source:
                return None
        return source

    # What follows

    def commit(self) -> None:
        """Commit, acknowledge, and wake readers: the entry is as durable as the streams require."""
        telemetry = self._telemetry
        for partition, chunk, _, next_offset in self.writes:
            partition.synced(chunk, next_offset)
        self._drained = []
        self._copies.complete()
        if not self.parts:
            return
        size = self.size - self._copied_bytes
        telemetry.group_commits += 1
        telemetry.disk_full = int(self._met_full_disk)
        telemetry.batches_appended += len(self.writes)
        telemetry.records_appended += self.records
        telemetry.bytes_appended += size
        telemetry.commit_bytes.observe(size)
        telemetry.commit_records.observe(self.records)

    # Failures

    def _undo(self, error: StrandlineError) -> None:
        """Remove all batches from the logs again and reject them: the journal had no room.

        Raises:
            LogPoisonedError: a log could not be truncated.
        """
        self._note_full_disk(error)
        self.writes, self.parts, self.logs = [], [], []
        for partition, chunks in self._drained:
            if not chunks:
                continue
            try:
                partition.log.undo_to(chunks[0].base_offset)
            except UnavailableError as failure:
                raise LogPoisonedError(
                    f"a group commit could not be undone, the log is reopened: {failure.message}"
                ) from failure
            lost = chunks.copy()
            chunks.clear()
            self._reject(partition, lost, error)
        self._copies.undo(error)

    def fail(self, error: StrandlineError) -> None:
        """Reject all: a write or sync failed, so the contents of the disk are unknown."""
        drained, self._drained = self._drained, []
        for partition, chunks in drained:
            self._reject(partition, chunks, error)
        self._copies.fail(error)

    def _reject_from(
        self, partition: Partition, chunks: list[Chunk], error: StrandlineError, *, index: int
    ) -> None:
        """Reject the batch at ``index`` and all records of the partition after it."""
        lost = chunks[index:]
        del chunks[index:]
        if isinstance(error, InvalidRequestError):  # only this batch is wrong
            reject_waiting(lost[:1], error)
            error = UnavailableError("a record before this one could not be stored; retry")
        self._reject(partition, lost, error)

    def _reject(self, partition: Partition, chunks: list[Chunk], error: StrandlineError) -> None:
        self._admission.rejects[error.code] += partition.reject_from(chunks, error)
        self._note_full_disk(error)

    def _note_full_disk(self, error: StrandlineError) -> None:
        if isinstance(error, DiskFullError):
            self._met_full_disk = True
            self._telemetry.count_full_disk()

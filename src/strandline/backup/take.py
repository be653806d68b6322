"""Takes a backup from running brokers; copies only what the backup before does not have.

The state in the backup is determined in this order:
1. its streams are those of the metadata at the start, without those deleted during the backup;
2. internal streams are copied before the others, so that no committed offset, consumer or decided
   transaction is ahead of the records that it is about;
3. the other partitions are copied up to the ends that their leaders' logs had after that;
4. the next free ids are those of the metadata at the end, so that no id in a copied record is used
   again.

Rules: a partition is copied from its leader. Files of the backup before are kept if the leader's
log still has the batch at which they end. A compacted log that has grown is copied whole:
compaction may have removed a tombstone that deletes a record in an older file.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec

from strandline.api.admin import STREAM_INFO, PartitionInfo, StreamInfoRequest
from strandline.api.backup import METADATA_SNAPSHOT, READ_LOG, LogBatches, ReadLogRequest
from strandline.backup.directory import BackupDirectory, FileWriter
from strandline.backup.manifest import BackupFile, BackupManifest, PartitionBackup
from strandline.client.cluster_client import ClusterClient
from strandline.core.metadata.image import MetadataImage, StreamImage
from strandline.core.metadata.internal_streams import is_internal
from strandline.core.metadata.snapshot import decode_json, encode_json
from strandline.errors import (
    CorruptBatchError,
    InvalidRequestError,
    StrandlineError,
    UnknownStreamError,
)
from strandline.record.batch import BatchHeader, read_header
from strandline.storage.scan import OFFSET_MAX, scan
from strandline.version import __version__

FILE_BYTES: Final = 256 << 20
"""A file ends at about this size; an interrupted backup continues after its last file."""
COMMIT_WAIT_S: Final = 10.0
"""The longest wait until the records that a leader had at the start are committed."""
REPAIR_WAIT_S: Final = 10.0
"""The longest wait until a leader has repaired a corrupt batch."""
RETRY_S: Final = 0.1
MOVES_MAX: Final = 3
"""The most further copies of a partition whose first records are deleted during each copy."""


class BackupProgress(NamedTuple):
    """The progress of a backup."""

    partitions_left: int
    copied_bytes: int


class BackupResult(NamedTuple):
    """The result of a backup.

    Attributes:
        manifest: the manifest of the backup.
        copied_bytes: the bytes that the backup before did not have.
        copied_files: the number of files that the backup before did not have.
        uncommitted: partitions whose last records were not committed in time, and are left out.
        left_out: streams that were deleted during the backup, perhaps created again.
        damaged: files of the backup before that were missing or damaged, and are no longer used.
    """

    manifest: BackupManifest
    copied_bytes: int
    copied_files: int
    uncommitted: tuple[str, ...]
    left_out: tuple[str, ...]
    damaged: tuple[str, ...]


Report = Callable[[BackupProgress], None]
T = TypeVar("T")


def take_backup(
    brokers: ClusterClient, directory: BackupDirectory, report: Report, *, verify: bool = False
) -> BackupResult:
    """Take a backup into a directory whose lock the caller holds.

    Args:
        brokers: the brokers of the cluster, or the single broker.
        directory: the directory, which has the backup before or is empty.
        report: called with the progress.
        verify: read the files that are kept and compare their checksums; otherwise only their sizes
            are compared.

    Raises:
        InvalidRequestError: the directory has a backup of other streams.
        CorruptBatchError: a batch, or the manifest of the backup before, is corrupt.
        StrandlineError: a broker does not answer, or does not allow the backup.
    """
    started_ns = time.time_ns()
    before = directory.load()
    [found] = brokers.ask(METADATA_SNAPSHOT, None)
    image = decode_json(found.image)
    if before is not None:
        _check_same(before, found.cluster, image, directory=directory)
    number = 1 if before is None else before.number + 1
    copier = _Copier(
        brokers, directory, number, before=before, image=image, report=report, verify=verify
    )
    copies: list[PartitionBackup] = []
    streams = list(image.streams.values())
    copier.partitions_left = sum(len(stream.partitions) for stream in streams)
    for wanted in (True, False):
        some = [stream for stream in streams if is_internal(stream.config.name) is wanted]
        ends = [(stream, copier.unless_gone(stream, copier.ends)) for stream in some]
        for stream, infos in ends:
            if infos is not None:
                copy = partial(copier.copy_stream, infos=infos)
                copies += copier.unless_gone(stream, copy) or ()
    image = image.with_streams(dict.fromkeys(copier.left_out))
    if before is not None:
        _check_same(before, found.cluster, image, directory=directory)
    [last] = brokers.ask(METADATA_SNAPSHOT, None)
    manifest = BackupManifest(
        number=number,
        cluster=found.cluster,
        strandline=__version__,
        started_ns=started_ns,
        finished_ns=time.time_ns(),
        metadata=msgspec.Raw(encode_json(_with_later(image, decode_json(last.image)))),
        partitions=tuple(copies),
    )
    directory.finish(manifest)
    return BackupResult(
        manifest,
        copier.copied_bytes,
        copier.copied_files,
        tuple(copier.uncommitted),
        tuple(copier.left_out),
        tuple(copier.damaged),
    )


def _check_same(
    before: BackupManifest, cluster: str, image: MetadataImage, *, directory: BackupDirectory
) -> None:
    """Reject a backup that would replace that of other data, such as by a new, empty broker.

    Raises:
        InvalidRequestError: the cluster is another, or has none of the streams in the backup.
    """
    known = {(each.log_id, each.created_ns) for each in before.partitions}
    present = {(part.log_id, s.created_ns) for s in image.streams.values() for part in s.partitions}
    if before.cluster == cluster and (not known or known & present):
        return
    of = f"cluster {before.cluster!r}" if before.cluster else "another broker"
    if before.cluster == cluster:
        of = f"{len(known)} partitions, none of which exists here now"
    raise InvalidRequestError(
        f"{directory.path} has a backup of {of}; choose another directory, or restore that backup"
    )


def _with_later(image: MetadataImage, last: MetadataImage) -> MetadataImage:
    """Return the image with the next free ids and the schemas of a later one.

    Records that were copied in between may need these.
    """
    streams = {
        name: msgspec.structs.replace(stream, schema=last.streams[name].schema)
        for name, stream in image.streams.items()
        if name in last.streams and last.streams[name].created_ns == stream.created_ns
    }
    return msgspec.structs.replace(
        image.with_streams(streams),
        next_log_id=last.next_log_id,
        next_producer_id=last.next_producer_id,
        producer_owners=last.producer_owners,
        next_client_id=last.next_client_id,
        proposals=last.proposals,
        next_group_epoch=last.next_group_epoch,
        next_event_id=last.next_event_id,
    )


class _LogMovedError(Exception):
    """Records that the copy needs were deleted during the copy."""


class _KeptFiles(NamedTuple):
    """The files that are kept, and the header of their last batch, as far as it is known."""

    files: tuple[BackupFile, ...] = ()
    last_crc: int = 0
    leader_epoch: int = 0

    @property
    def end(self) -> int:
        return self.files[-1].end


class _Copier:
    """Copies partitions for one backup."""

    def __init__(
        self,
        brokers: ClusterClient,
        directory: BackupDirectory,
        number: int,
        *,
        before: BackupManifest | None,
        image: MetadataImage,
        report: Report,
        verify: bool,
    ) -> None:
        self._brokers = brokers
        self._directory = directory
        self._number = number
        known = () if before is None else before.partitions
        self._before = {(each.log_id, each.created_ns): each for each in known}
        self._image = image
        """The newest known metadata."""
        self._report = report
        self._verify = verify
        self.partitions_left = 0
        self.copied_bytes = 0
        self.copied_files = 0
        self.uncommitted: list[str] = []
        self.left_out: list[str] = []
        self.damaged: list[str] = []

    def unless_gone(self, stream: StreamImage, step: Callable[[StreamImage], T]) -> T | None:
        """Return the result of a step of a copy; None if the stream was deleted meanwhile.

        Raises:
            StrandlineError: the error of the step, if the stream still exists.
        """
        try:
            if self._exists(stream):
                return step(stream)
        except StrandlineError:
            # A read of files that are being deleted fails in various ways; the metadata shows the
            # reason.
            [now] = self._brokers.ask(METADATA_SNAPSHOT, None)
            self._image = decode_json(now.image)
            if self._exists(stream):
                raise
        self.left_out.append(stream.config.name)
        return None

    def _exists(self, stream: StreamImage) -> bool:
        now = self._image.streams.get(stream.config.name)
        return now is not None and now.created_ns == stream.created_ns

    def ends(self, stream: StreamImage) -> dict[int, PartitionInfo]:
        """Return the offsets of each partition, from its leader."""
        name = stream.config.name
        answers = self._brokers.ask_leaders(
            name, STREAM_INFO, request=lambda led: StreamInfoRequest(name=name, led=led)
        )
        found: dict[int, PartitionInfo] = {}
        for led, info in answers:
            if info.created_ns != stream.created_ns:
                raise UnknownStreamError(f"stream {name!r} was deleted and created again")
            found |= {each.partition: each for each in info.partitions if each.partition in led}
        return found

    def copy_stream(
        self, stream: StreamImage, infos: dict[int, PartitionInfo]
    ) -> list[PartitionBackup]:
        """Copy the partitions of a stream."""
        copies = []
        for number in range(len(stream.partitions)):
            log = _LeaderLog(self._brokers, stream, number)
            copies.append(self._copy_partition(stream, log, infos[number]))
            self.partitions_left -= 1
            self._tell()
        return copies

    def _copy_partition(
        self, stream: StreamImage, log: "_LeaderLog", info: PartitionInfo
    ) -> PartitionBackup:
        start, end = info.log_start_offset, info.log_end_offset
        kept = self._kept(stream, log, start=start, end=end)
        for _ in range(MOVES_MAX):
            try:
                return self._copy(stream, log, kept=kept, start=start, end=end)
            except _LogMovedError:
                now = log.read(0, bytes_max=0)
                start, kept = now.log_start_offset, _KeptFiles()
                end = max(end, start)
        raise InvalidRequestError(
            f"records of {log.label} are deleted faster than they are copied; try again later"
        )

    def _copy(
        self, stream: StreamImage, log: "_LeaderLog", *, kept: _KeptFiles, start: int, end: int
    ) -> PartitionBackup:
        files, last_crc, epoch = list(kept.files), kept.last_crc, kept.leader_epoch
        position = kept.end if files else start
        writer: FileWriter | None = None
        try:
            while position < end:
                found = log.next_batches(position)
                if found is None:
                    self._note_uncommitted(log, position, end)
                    break
                first = read_header(found.batches)
                # The log may start inside its first batch.
                is_first = writer is None and not files
                if first.base_offset > position or (first.base_offset < position and not is_first):
                    raise _LogMovedError
                if writer is None:
                    writer = self._directory.writer(
                        log.log_id, first.base_offset, number=self._number
                    )
                writer.write(found.batches)
                position, last_crc, epoch = found.end, found.last.crc, found.last.leader_epoch
                self.copied_bytes += len(found.batches)
                self._tell()
                if writer.size >= FILE_BYTES:
                    files.append(self._finished(writer, position))
                    writer = None
            if writer is not None:
                files.append(self._finished(writer, position))
        finally:
            if writer is not None:
                writer.close()
        return PartitionBackup(
            stream=stream.config.name,
            partition=log.partition,
            log_id=log.log_id,
            created_ns=stream.created_ns,
            log_start_offset=start,
            end=max(position, start),
            last_crc=last_crc,
            leader_epoch=epoch,
            files=tuple(files),
        )

    def _finished(self, writer: FileWriter, end: int) -> BackupFile:
        self.copied_files += 1
        return writer.finish(end)

    def _note_uncommitted(self, log: "_LeaderLog", position: int, end: int) -> None:
        if log.log_end_offset > position:
            self.uncommitted.append(f"{log.label}: offsets {position} to {end - 1}")

    def _tell(self) -> None:
        self._report(BackupProgress(self.partitions_left, self.copied_bytes))

    # What the backup before has

    def _kept(self, stream: StreamImage, log: "_LeaderLog", *, start: int, end: int) -> _KeptFiles:
        """Return the files of the backup before, and of an interrupted one, that can be kept."""
        before = self._before.get((log.log_id, stream.created_ns))
        found = _KeptFiles()
        if before is not None:
            has = partial(self._directory.has, verify=self._verify)
            damaged = [file.name for file in before.files if not has(file)]
            self.damaged += damaged
            if not damaged:
                found = _KeptFiles(before.files, before.last_crc, before.leader_epoch)
        if stream.config.has_gaps:
            is_same = before is not None and (before.log_start_offset, before.end) == (start, end)
            return found if is_same else _KeptFiles()
        for candidate in (self._with_unfinished(log, found), found):
            files = tuple(file for file in candidate.files if file.end > start)
            if not files or files[0].start > start:
                continue
            if files[-1].end <= end and log.has_batch(files[-1].end, candidate.last_crc):
                return candidate._replace(files=files)
        return _KeptFiles()

    def _with_unfinished(self, log: "_LeaderLog", kept: _KeptFiles) -> _KeptFiles:
        """Add the intact files of an interrupted backup that continue the kept ones."""
        for name in self._directory.unfinished(log.log_id, number=self._number):
            try:
                file, last = self._directory.look_at(name)
            except CorruptBatchError:
                break
            if kept.files and file.start != kept.end:
                break
            kept = _KeptFiles((*kept.files, file), last.crc, last.leader_epoch)
        return kept


class _Batches(NamedTuple):
    """Whole batches, the header of the last one, and the offset after it."""

    batches: bytes
    last: BatchHeader
    end: int


class _LeaderLog:
    """The log of a partition, read from its leader."""

    def __init__(self, brokers: ClusterClient, stream: StreamImage, partition: int) -> None:
        self._brokers = brokers
        self._stream = stream.config.name
        self.partition = partition
        self.log_id = stream.partitions[partition].log_id
        self.log_end_offset = 0
        """The log end offset at the last read."""

    @property
    def label(self) -> str:
        """The partition's name."""
        return f"{self._stream}/{self.partition}"

    def read(self, offset: int, *, bytes_max: int = 4 << 20) -> LogBatches:
        """Read batches from an offset on; wait a while for the repair of a corrupt batch.

        Raises:
            CorruptBatchError: the batch is still corrupt.
            StrandlineError: the leader does not answer.
        """
        deadline_s = time.monotonic() + REPAIR_WAIT_S * self._brokers.is_cluster
        request = ReadLogRequest(
            stream=self._stream,
            partition=self.partition,
            log_id=self.log_id,
            offset=offset,
            bytes_max=bytes_max,
        )
        while True:
            try:
                [(_, found)] = self._brokers.ask_leaders(
                    self._stream,
                    READ_LOG,
                    request=lambda _: request,
                    numbers=(self.partition,),
                    routes=self._brokers.known_routes(self._stream),
                )
            except CorruptBatchError:
                if time.monotonic() >= deadline_s:
                    raise
                time.sleep(RETRY_S)
            else:
                self.log_end_offset = found.log_end_offset
                return found

    def next_batches(self, position: int) -> _Batches | None:
        """Return the next committed batches; None if no more are committed in time.

        Raises:
            CorruptBatchError: a batch is corrupt.
            StrandlineError: the leader does not answer.
        """
        deadline_s = time.monotonic() + COMMIT_WAIT_S
        while True:
            found = self.read(position)
            if found.log_start_offset > position:
                raise _LogMovedError
            if found.batches:
                return _checked(found.batches, self.label)
            # A new leader's log may end before ``end``: the records it lacks were never committed.
            if found.log_end_offset <= position or time.monotonic() >= deadline_s:
                return None
            time.sleep(RETRY_S)

    def has_batch(self, end: int, crc: int) -> bool:
        """Whether the log has the batch with this checksum that ends at this offset."""
        found = self.read(end - 1, bytes_max=1)
        if not found.batches or found.log_start_offset >= end:
            return False
        header = read_header(found.batches)
        return header.crc == crc and header.next_offset == end


def _checked(batches: bytes, label: str) -> _Batches:
    """Check batches that were received from a leader.

    Raises:
        CorruptBatchError: a batch is corrupt.
    """
    run = scan(memoryview(batches), 0, len(batches), below=OFFSET_MAX)
    if run.end != len(batches):
        raise CorruptBatchError(f"a batch of {label} was corrupt when it was received; try again")
    return _Batches(batches, read_header(batches, run.last), run.next_offset)

"""Makes the data directory of a new broker from a backup.

Rules: the directory is empty, or has what an interrupted restore left. Every file that is needed is
verified before anything is written. A file marks the directory until all is written: with it a
broker does not start, and the next restore starts over. Batches are written as they were stored, so
records keep their offsets, times, producers and encryption. Log ids stay the same, since
transactions name them.

Each broker of a new cluster restores the same backup. All get the same metadata, as a snapshot of
the quorum's log. The metadata names the brokers' directories, so the cluster rejects a broker that
did not restore, or restored another backup.
"""

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from strandline.backup.directory import Advance, BackupDirectory
from strandline.backup.manifest import BackupManifest, PartitionBackup, damaged
from strandline.broker.cluster.identity import DirectoryIdentity, save_identity
from strandline.broker.cluster.opening import QUORUM_NAME, QUORUM_SEGMENT_BYTES
from strandline.broker.cluster.watermark_file import save_watermarks
from strandline.broker.lock import FILE_NAME as LOCK_NAME
from strandline.broker.lock import DataDirLock
from strandline.broker.metadata_store import MetadataStore
from strandline.broker.opening import RESTORING_NAME, log_plan
from strandline.broker.quorum_store import QuorumStore
from strandline.config import BrokerConfig, ClusterConfig, StreamConfig, bracketed
from strandline.core.metadata.image import BrokerImage, MetadataImage, PartitionImage, StreamImage
from strandline.core.metadata.internal_streams import COPIES_MAX, is_internal, with_copies
from strandline.core.metadata.placement import place
from strandline.core.metadata.snapshot import encode_image
from strandline.core.metadata.streams import check_stream_config
from strandline.core.raft.messages import HardState, Index, Members, Snapshot, Term
from strandline.errors import InvalidConfigError, InvalidRequestError, UnavailableError
from strandline.record.batch import iter_headers
from strandline.storage.disk import Disk
from strandline.storage.log import Log
from strandline.storage.reserve import Reserve
from strandline.types import BrokerId, LeaderEpoch, LogId, Offset

_INDEX, _TERM = Index(1), Term(1)
"""The index and term of the entry that the restored metadata stands for."""
_FOREIGN: Final = frozenset({LOCK_NAME, "lost+found"})
"""The names that an empty directory may have."""


class RestoreResult(NamedTuple):
    """The result of a restore.

    Attributes:
        manifest: the manifest of the backup.
        data_dir: the new data directory.
        partitions: the number of partitions in the directory.
        size: the bytes of their batches.
        changed: the streams with another number of replicas than in the backup.
    """

    manifest: BackupManifest
    data_dir: Path
    partitions: int
    size: int
    changed: tuple[str, ...]


def load_backup(directory: BackupDirectory) -> BackupManifest:
    """Return the manifest of a backup.

    Raises:
        InvalidRequestError: there is no backup.
        CorruptBatchError: the manifest is damaged.
        InvalidRecordError: a later version wrote the manifest.
    """
    manifest = directory.load()
    if manifest is None:
        raise InvalidRequestError(
            f"{directory.path} has no finished backup; name a directory that 'strandline backup' "
            "has written"
        )
    return manifest


def restore_backup(
    directory: BackupDirectory,
    config: BrokerConfig,
    *,
    replicas: int | None = None,
    advance: Advance = lambda _: None,
) -> RestoreResult:
    """Make a broker's data directory from a backup.

    Args:
        directory: the directory of the backup.
        config: the settings of the new broker: its data directory, and its cluster if it has one.
        replicas: the replicas of each stream; None: as in the backup, if there are enough brokers.
        advance: called with the number of bytes done since its last call; each byte counts twice,
            once when it is verified and once when it is written.

    Raises:
        InvalidRequestError: there is no backup, or the data directory is not empty.
        InvalidConfigError: a stream is not possible on such a broker, or there are too few brokers.
        CorruptBatchError: the backup is damaged; nothing was written.
        DataDirLockedError: a broker uses the data directory.
        UnavailableError: a file cannot be read or written.
    """
    manifest = load_backup(directory)
    data_dir, disk = Path(config.data_dir), directory.disk
    if directory.path.resolve() in data_dir.resolve().parents:
        raise InvalidRequestError(f"{data_dir} is in the backup's directory; choose another one")
    _left_by_restore(data_dir)  # checked before the lock, which is a file in the directory
    image = restored_image(manifest, config.cluster, replicas=replicas)
    copies = list(_copies_here(manifest, image, config.cluster))
    for copy, _ in copies:
        for file in copy.files:
            directory.verify_file(file, advance)
    lock = DataDirLock(data_dir)
    try:
        _prepare(data_dir, disk)
        for copy, stream in copies:
            _write_log(directory, copy, data_dir=data_dir, config=stream.config, advance=advance)
        if config.cluster.is_on:
            _write_quorum(manifest, image, config, disk=disk)
        else:
            store = MetadataStore(data_dir, disk, Reserve(data_dir, disk))
            store.image = image
            store.rewrite()
        disk.unlink(data_dir / RESTORING_NAME)
        disk.sync_directory(data_dir)  # if the mark came back after a crash, no broker would start
    finally:
        lock.release()
    before = manifest.image.streams
    changed = (
        name
        for name, stream in image.streams.items()
        if stream.config.replicas != before[name].config.replicas and not is_internal(name)
    )
    size = sum(copy.size for copy, _ in copies)
    return RestoreResult(manifest, data_dir, len(copies), size, tuple(changed))


def _left_by_restore(data_dir: Path) -> list[Path]:
    """Return the paths that an interrupted restore has left; empty if there are none.

    Raises:
        InvalidRequestError: the directory has other files.
        UnavailableError: the directory cannot be read.
    """
    try:
        paths = [path for path in data_dir.iterdir() if path.name not in _FOREIGN]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UnavailableError(
            f"cannot use data directory {data_dir}: {error.strerror}; choose another --data-dir"
        ) from error
    names = {path.name for path in paths}
    if names and RESTORING_NAME not in names:
        raise InvalidRequestError(
            f"{data_dir} is not empty (it has {min(names)}); a backup is restored into a new data "
            "directory"
        )
    return paths


def _prepare(data_dir: Path, disk: Disk) -> None:
    """Remove what an interrupted restore left, and mark the directory as being restored.

    Raises:
        InvalidRequestError: the directory has other files.
    """
    for path in _left_by_restore(data_dir):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != RESTORING_NAME:  # the mark stays until the end
            path.unlink()
    disk.write_atomically(data_dir / RESTORING_NAME, b"")


# The metadata


def restored_image(
    manifest: BackupManifest, cluster: ClusterConfig, *, replicas: int | None = None
) -> MetadataImage:
    """Return the metadata for new brokers; all brokers of a cluster get the same.

    Args:
        manifest: the manifest of the backup.
        cluster: the cluster's settings; those of a broker without a cluster have it off.
        replicas: the replicas of each stream; None: as in the backup, if there are enough brokers.

    Raises:
        InvalidConfigError: a stream is not possible on such brokers.
        CorruptBatchError: the backup lacks a partition.
    """
    brokers = _new_brokers(manifest, cluster) if cluster.is_on else {}
    image = msgspec.structs.replace(
        manifest.image, streams={}, brokers=brokers, removed=(), sessions={}, groups={}
    )
    count = max(1, len(brokers))
    if replicas is not None and replicas > count:
        raise InvalidConfigError(
            f"{replicas} replicas need as many brokers; there are {count}: name more brokers, or "
            "give --replicas as few"
        )
    copies = {(each.stream, each.partition): each for each in manifest.partitions}
    for name, stream in manifest.image.streams.items():
        settings = _settings(stream.config, count, replicas, is_cluster=cluster.is_on)
        # New brokers are out of service until they register, but partitions are placed on them now.
        open_image = msgspec.structs.replace(image, brokers=_in_service(brokers))
        placed = place(open_image, partitions=len(stream.partitions), replicas=settings.replicas)
        partitions = []
        for number, part in enumerate(stream.partitions):
            copy = copies.get((name, number))
            if copy is None or copy.log_id != part.log_id:
                raise damaged("the backup's manifest", f"it lacks {name}/{number}")
            partitions.append(_partition(part, copy, placed[number] if placed else ()))
        made = msgspec.structs.replace(stream, config=settings, partitions=tuple(partitions))
        image = image.with_streams({name: made})
    return image


def _partition(
    part: PartitionImage, copy: PartitionBackup, replicas: tuple[BrokerId, ...]
) -> PartitionImage:
    return PartitionImage(
        log_id=part.log_id,
        # The epochs in a log must not go back.
        leader_epoch=LeaderEpoch(max(part.leader_epoch, copy.leader_epoch)),
        replicas=replicas,
        isr=tuple(sorted(replicas)),
        log_start_offset=Offset(copy.log_start_offset),
    )


def _settings(
    config: StreamConfig, brokers: int, replicas: int | None, *, is_cluster: bool
) -> StreamConfig:
    """Return a stream's settings on so many brokers.

    Raises:
        InvalidConfigError: the stream is not possible on them.
    """
    wanted = config.replicas if replicas is None else replicas
    if is_internal(config.name):
        wanted = min(COPIES_MAX, brokers)
    wanted = min(wanted, brokers)
    if wanted != config.replicas:
        acks = "disk" if config.acks == "replicated" and wanted == 1 else config.acks
        config = with_copies(msgspec.structs.replace(config, acks=acks), wanted)
    check_stream_config(config, is_cluster=is_cluster)
    return config


def _new_brokers(manifest: BackupManifest, cluster: ClusterConfig) -> dict[BrokerId, BrokerImage]:
    return {
        BrokerId(number): BrokerImage(
            id=BrokerId(number),
            directory_id=_directory_id(manifest, cluster, number),
            incarnation="",
            peer_address=f"{bracketed(host)}:{port}",
        )
        for number, (host, port) in sorted(cluster.peer_addresses.items())
    }


def _in_service(brokers: Mapping[BrokerId, BrokerImage]) -> dict[BrokerId, BrokerImage]:
    return {b: msgspec.structs.replace(each, is_fenced=False) for b, each in brokers.items()}


def _directory_id(manifest: BackupManifest, cluster: ClusterConfig, broker: int) -> str:
    """Return the id of a broker's restored directory; every broker computes the same ids."""
    of = f"{manifest.started_ns} {manifest.finished_ns} {cluster.name} {broker}"
    return hashlib.sha256(of.encode()).hexdigest()[:16]


def _write_quorum(
    manifest: BackupManifest, image: MetadataImage, config: BrokerConfig, *, disk: Disk
) -> None:
    """Write the metadata of a cluster's broker: high watermarks, quorum state, identity."""
    data_dir, cluster = Path(config.data_dir), config.cluster
    ends = {LogId(each.log_id): Offset(each.end) for each in manifest.partitions}
    save_watermarks(data_dir, ends, disk=disk)
    founders = tuple(image.brokers)
    log = Log.open(
        data_dir / QUORUM_NAME,
        disk=disk,
        segment_bytes=QUORUM_SEGMENT_BYTES,
        segment_age_ms=StreamConfig(name="any", subject="any").segment_age_ms,
    )
    try:
        store = QuorumStore(data_dir, disk=disk, log=log)
        store.save_hard(HardState(_TERM))
        store.save_snapshot(Snapshot(_INDEX, _TERM, Members(founders), encode_image(image)))
    finally:
        log.close()
    identity = DirectoryIdentity(
        cluster=cluster.name,
        broker=BrokerId(cluster.broker_id),
        directory_id=_directory_id(manifest, cluster, cluster.broker_id),
        founders=founders,
    )
    save_identity(data_dir, identity, disk=disk)


# The records


def _copies_here(
    manifest: BackupManifest, image: MetadataImage, cluster: ClusterConfig
) -> Iterator[tuple[PartitionBackup, StreamImage]]:
    """Yield the partitions that have a replica on this broker."""
    for copy in manifest.partitions:
        stream = image.streams.get(copy.stream)
        if stream is None or copy.partition >= len(stream.partitions):
            raise damaged("the backup's manifest", f"it has no settings of {copy.label}")
        if not cluster.is_on or cluster.broker_id in stream.partitions[copy.partition].replicas:
            yield copy, stream


def _write_log(
    directory: BackupDirectory,
    copy: PartitionBackup,
    *,
    data_dir: Path,
    config: StreamConfig,
    advance: Advance,
) -> None:
    """Write the batches of a partition to a new log.

    Raises:
        CorruptBatchError: a file has changed since it was verified.
        UnavailableError: the log cannot be written.
    """
    plan = log_plan(data_dir, LogId(copy.log_id), config)
    log = Log.open(
        plan.directory,
        disk=directory.disk,
        segment_bytes=plan.segment_bytes,
        segment_age_ms=plan.segment_age_ms,
    )
    try:
        start = copy.files[0].start if copy.files else copy.log_start_offset
        if start > 0:
            log.restart_at(start)
        for batches, _ in chain.from_iterable(directory.batches(f.name) for f in copy.files):
            for position, header in iter_headers(batches):
                if header.base_offset != log.log_end_offset:
                    raise damaged(copy.label, f"offset {log.log_end_offset} is missing")
                log.append(batches[position : position + header.length], header)
            log.write_pending()
            advance(len(batches))
        log.delete_before(copy.log_start_offset)
        if log.log_end_offset != copy.end:
            raise damaged(copy.label, f"it ends at {log.log_end_offset}, not {copy.end}")
        log.flush()
    finally:
        log.close()
    directory.disk.sync_directory(plan.directory.parent)

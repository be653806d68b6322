"""Opens a data directory: recovers the logs that the metadata names, and no others."""

from pathlib import Path

from strandline.config import BrokerConfig, StreamConfig
from strandline.metadata.image import MetadataImage
from strandline.storage.disk import Disk
from strandline.storage.recovery import LogPlan, Recovered, recover
from strandline.types import LogId

LOGS_NAME = "logs"


def log_plan(data_dir: Path, log_id: LogId, config: StreamConfig) -> LogPlan:
    """Where a partition's log is and how it rolls."""
    directory = data_dir / LOGS_NAME / f"{log_id:08d}"
    return LogPlan(directory, config.segment_bytes, config.segment_age_ms)


def open_storage(
    data_dir: Path, image: MetadataImage, config: BrokerConfig, *, disk: Disk
) -> Recovered:
    """Recover the journal and the logs of every stream in ``image``; remove deleted ones.

    Raises:
        UnavailableError: a file cannot be read or written.
    """
    plans: dict[LogId, LogPlan] = {}
    for stream in image.streams.values():
        for partition in stream.partitions:
            log_id = LogId(partition.log_id)
            plans[log_id] = log_plan(data_dir, log_id, stream.config)
    recovered = recover(data_dir, plans, disk=disk, file_bytes=config.journal.file_bytes)
    _remove_deleted(data_dir / LOGS_NAME, {plan.directory for plan in plans.values()}, disk=disk)
    return recovered


def _remove_deleted(logs_dir: Path, kept: set[Path], *, disk: Disk) -> None:
    """Finish deletions that a crash cut short: directories of logs that no stream has."""
    if not logs_dir.is_dir():
        return
    for directory in logs_dir.iterdir():
        if directory.is_dir() and directory not in kept:
            for name in disk.listing(directory):
                disk.unlink(directory / name)
            disk.remove_directory(directory)

"""Opens a data directory: recovers the logs that the metadata names, and no others.

Rule: a log is removed only if the metadata shows that its stream was deleted. A log whose id the
metadata never allocated means that the metadata was lost: the broker does not start, and keeps the
log.
"""

from collections.abc import Iterator
from pathlib import Path

from strandline.broker.metadata_store import FILE_NAME
from strandline.config import BrokerConfig, StreamConfig
from strandline.core.metadata.image import MetadataImage
from strandline.errors import CorruptBatchError, InvalidConfigError
from strandline.storage.disk import Disk, translated
from strandline.storage.log_directory import (
    DELETED_SUFFIX,
    UNFINISHED_SUFFIX,
    delete_log_directory,
)
from strandline.storage.recovery import LogPlan, Recovered, recover
from strandline.types import LogId

LOGS_NAME = "logs"
RESTORING_NAME = "restore-unfinished"
"""A file that exists while ``strandline restore`` runs, and after it was interrupted."""


def check_restored(data_dir: Path, *, disk: Disk) -> None:
    """Reject a directory into which a backup was restored only in part.

    Raises:
        InvalidConfigError: a restore was interrupted.
    """
    if disk.exists(data_dir / RESTORING_NAME):
        raise InvalidConfigError(
            f"a restore of {data_dir} was interrupted; run 'strandline restore' again, then start "
            "the broker"
        )


def log_plan(data_dir: Path, log_id: LogId, config: StreamConfig) -> LogPlan:
    """Return the directory of a partition's log, and the sizes at which it starts new segments."""
    directory = data_dir / LOGS_NAME / f"{log_id:08d}"
    return LogPlan(directory, config.segment_bytes, config.segment_age_ms)


def open_storage(
    data_dir: Path, image: MetadataImage, config: BrokerConfig, *, disk: Disk
) -> Recovered:
    """Recover the journal and the logs of every stream in ``image``; remove deleted ones.

    Raises:
        UnavailableError: a file cannot be read or written.
        CorruptBatchError: there are records of streams that are not in the metadata.
    """
    plans: dict[LogId, LogPlan] = {}
    for stream in image.streams.values():
        for partition in stream.partitions:
            log_id = LogId(partition.log_id)
            plans[log_id] = log_plan(data_dir, log_id, stream.config)
    others = [found for found in log_directories(data_dir / LOGS_NAME) if found[0] not in plans]
    for log_id, directory in others:
        if log_id >= image.next_log_id and any(disk.listing(directory).values()):
            raise CorruptBatchError(
                f"{directory} holds records of a stream that {FILE_NAME} does not know: that file "
                "is lost or too old; restore it from a backup, or move the directory away",
                file=str(data_dir / FILE_NAME),
            )
    recovered = recover(data_dir, plans, disk=disk, file_bytes=config.journal.file_bytes)
    for _, directory in others:
        delete_log_directory(directory, disk=disk)
    return recovered


def log_directories(logs_dir: Path) -> Iterator[tuple[LogId, Path]]:
    """Return log id and path of each log, deleted or not."""
    try:
        names = sorted(path.name for path in logs_dir.iterdir() if path.is_dir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise translated(error, f"listing {logs_dir}") from error
    for name in names:
        number = name.removesuffix(DELETED_SUFFIX).removesuffix(UNFINISHED_SUFFIX)
        if number.isdigit():
            yield LogId(int(number)), logs_dir / number

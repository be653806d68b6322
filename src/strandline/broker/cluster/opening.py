"""Opens every log in the data directory of a broker of a cluster.

The metadata, which names the streams, is in one of the logs, so all are recovered. The metadata
applier then removes the logs of deleted streams.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from strandline.broker.cluster.identity import DirectoryIdentity, load_identity
from strandline.broker.lock import DataDirLock
from strandline.broker.opening import LOGS_NAME, check_restored, log_directories, log_plan
from strandline.broker.quorum_store import LOG_ID
from strandline.config import JournalConfig, StreamConfig
from strandline.errors import InvalidConfigError, StrandlineError
from strandline.storage.disk import Disk
from strandline.storage.log import Log
from strandline.storage.log_directory import delete_log_directory
from strandline.storage.log_generation import write_generation
from strandline.storage.recovery import LogPlan, Recovered, recover
from strandline.types import LogId, Offset

QUORUM_NAME = "quorum"
QUORUM_SEGMENT_BYTES = 16 << 20
ANY_CONFIG = StreamConfig(name="any", subject="any")
"""Limits of a log until those of its stream are known; they matter only when the log grows."""


def open_all_logs(data_dir: Path, *, disk: Disk, file_bytes: int) -> Recovered:
    """Recover the journal, the quorum's log, and the logs of all partitions.

    Raises:
        UnavailableError: a file cannot be read or written.
        CorruptBatchError: a file that is needed is corrupt.
    """
    quorum = LogPlan(data_dir / QUORUM_NAME, QUORUM_SEGMENT_BYTES, ANY_CONFIG.segment_age_ms)
    plans = {LOG_ID: quorum}
    for log_id, directory in list(log_directories(data_dir / LOGS_NAME)):
        plan = log_plan(data_dir, log_id, ANY_CONFIG)
        if plan.directory == directory:
            plans[log_id] = plan
        else:
            delete_log_directory(plan.directory, disk=disk)
    return recover(data_dir, plans, disk=disk, file_bytes=file_bytes, are_only_copies=False)


@contextmanager
def opened_offline(data_dir: Path, *, disk: Disk) -> Iterator[tuple[DirectoryIdentity, Recovered]]:
    """Lock and open the data directory of a stopped broker of a cluster; close it afterwards.

    Yields the directory's identity, and its journal and logs.

    Raises:
        InvalidConfigError: no broker of a cluster has used the directory.
        DataDirLockedError: the broker is running.
        StrandlineError: as for ``open_all_logs``.
    """
    check_restored(data_dir, disk=disk)
    identity = load_identity(data_dir, disk=disk)
    if identity is None:
        raise InvalidConfigError(
            f"{data_dir} is not the data directory of a broker of a cluster; name another one"
        )
    lock = DataDirLock(data_dir)
    try:
        storage = open_all_logs(data_dir, disk=disk, file_bytes=JournalConfig().file_bytes)
        try:
            yield identity, storage
        finally:
            storage.journal.close()
            for log in storage.logs.values():
                log.close()
    finally:
        lock.release()


class LogToOpen(NamedTuple):
    """A log to open for a new replica.

    Attributes:
        log_id: the log's id.
        plan: the log's directory and limits.
        log: the open but empty log, which has to restart at ``start``; None: open the directory.
        start: the log start offset.
        was_used: whether an older log had this id, and the journal may still have its batches.
    """

    log_id: LogId
    plan: LogPlan
    log: Log | None
    start: Offset
    was_used: bool


def open_logs(
    wanted: Iterable[LogToOpen], *, disk: Disk, synced_sequence: int
) -> dict[LogId, Log | StrandlineError]:
    """Open logs; return each log or its error. Runs on a thread: each log syncs directories.

    Args:
        wanted: the logs to open.
        disk: the file system.
        synced_sequence: as for ``write_generation``.
    """
    outcomes: dict[LogId, Log | StrandlineError] = {}
    for each in wanted:
        try:
            outcomes[each.log_id] = _opened(each, disk, synced_sequence)
        except StrandlineError as error:
            outcomes[each.log_id] = error
    return outcomes


def _opened(wanted: LogToOpen, disk: Disk, synced_sequence: int) -> Log:
    plan, log = wanted.plan, wanted.log
    if log is None and wanted.was_used:
        delete_log_directory(plan.directory, disk=disk)
        write_generation(plan.directory, synced_sequence, disk=disk)
    was_there = disk.exists(plan.directory)
    found = log or Log.open(
        plan.directory,
        disk=disk,
        segment_bytes=plan.segment_bytes,
        segment_age_ms=plan.segment_age_ms,
    )
    try:
        if was_there:
            # The directory's name must survive a power loss, since recovery finds logs by their
            # directories. An earlier attempt may have made it and failed to sync.
            disk.sync_directory(plan.directory.parent)
        if found.log_start_offset == found.log_end_offset < wanted.start:
            found.restart_at(wanted.start)
    except StrandlineError:
        if log is None:
            found.close()
        raise
    return found

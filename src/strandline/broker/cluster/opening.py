"""Opens every log in the data directory of a broker of a cluster.

The image that says which streams exist lies in one of them, so all are recovered; what the image
then shows to be deleted is removed by whoever follows it.
"""

from pathlib import Path

from strandline.broker.opening import LOGS_NAME, log_directories, log_plan
from strandline.broker.quorum_store import LOG_ID
from strandline.config import StreamConfig
from strandline.storage.disk import Disk
from strandline.storage.log_directory import delete_log_directory
from strandline.storage.recovery import LogPlan, Recovered, recover

QUORUM_NAME = "quorum"
QUORUM_SEGMENT_BYTES = 16 << 20
ANY_CONFIG = StreamConfig(name="any", subject="any")
"""Sizes of a log until its stream's are known; they matter only where it grows."""


def open_all_logs(data_dir: Path, *, disk: Disk, file_bytes: int) -> Recovered:
    """Recover the journal, the quorum's log and those of all partitions.

    Raises:
        UnavailableError: a file cannot be read or written.
        CorruptBatchError: something is damaged that cannot be done without.
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

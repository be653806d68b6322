"""Shared by tests of brokers and front ends: a partition with a new leader."""

import pytest

from strandline.broker.write_path.partition import Admission, Partition
from strandline.clock import ManualClock
from strandline.config import LimitsConfig, StreamConfig
from strandline.record.batch import read_header
from strandline.record.codec import Stamp, encode_records
from strandline.storage.disk import Disk
from strandline.storage.log import Log
from strandline.types import PartitionName


@pytest.fixture
async def led_anew(tmp_path):
    """A partition under a new leader, with three records of which one was known to be committed."""
    log = Log.open(tmp_path / "log", disk=Disk(), segment_bytes=1 << 16, segment_age_ms=10**9)
    admission = Admission(LimitsConfig(), clock=ManualClock(), wake=lambda: None)
    config = StreamConfig(name="s", subject="s")
    made = Partition(
        PartitionName("s", 0), config, log, log_id=1, leader_epoch=0, admission=admission
    )
    data = encode_records([b"v"] * 3, ["s"] * 3, Stamp(0, 1, 1, "none"))
    log.append(data, read_header(data))
    made.committed.high_watermark = 1
    made.lead(2)
    return made

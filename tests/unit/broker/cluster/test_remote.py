"""A partition of other brokers: empty here, and every request is sent to its leader."""

import pytest

from strandline.broker.cluster.remote import RemotePartition
from strandline.broker.write_path.admission import Admission
from strandline.clock import ManualClock
from strandline.config import LimitsConfig, StreamConfig
from strandline.errors import NotLeaderError, UnavailableError
from strandline.types import PartitionName


class Sink:
    def __init__(self):
        self.rejections = []

    def rejected(self, token, error):
        self.rejections.append((token, error))


@pytest.fixture
async def partition():
    admission = Admission(LimitsConfig(), clock=ManualClock(), wake=lambda: None)
    config = StreamConfig(name="s", subject="s")
    return RemotePartition(PartitionName("s", 3), config, log_id=7, admission=admission)


async def test_requests_are_sent_to_the_leader(partition):
    """With the error that names it, as soon as it is known."""
    with pytest.raises(NotLeaderError, match="s/3 is kept by other brokers"):
        partition.read(0, 1)
    error = NotLeaderError("broker 2 leads it")
    partition.describe(error)
    for request in (
        lambda: partition.read(0, 1, below=5),
        lambda: partition.offset_for_timestamp(5),
    ):
        with pytest.raises(NotLeaderError, match="broker 2 leads it"):
            request()
    assert partition.remote_error is error
    sink = Sink()
    partition.append(b"v", subject="s", ack_sink=sink, token="t")
    assert sink.rejections == [("t", error)]
    reason = UnavailableError("it cannot be opened")
    partition.describe(reason)
    partition.append(b"v", subject="s", ack_sink=sink, token="u")
    assert sink.rejections[-1] == ("u", reason)


async def test_there_is_nothing_here(partition):
    """No records, bytes or files; and this broker does not lead it."""
    assert (partition.log_start_offset, partition.log_end_offset) == (0, 0)
    assert partition.high_watermark == 0
    assert (partition.log.size_bytes, partition.log.segments) == (0, ())
    assert not partition.log.poisoned
    assert not partition.is_led
    assert partition.log_id == 7

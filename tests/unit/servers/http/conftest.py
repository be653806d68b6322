"""A broker made of plain values, and its front end on a free port."""

import asyncio
import http.client
from dataclasses import dataclass, field

import pytest

from strandline.clock import ManualClock
from strandline.config import BrokerConfig, StreamConfig
from strandline.servers.http import HttpFrontEnd
from strandline.telemetry import GroupSample, Telemetry
from strandline.types import PartitionName

STARTED_NS = ManualClock().now_ns()


@dataclass
class FakePartition:
    name: PartitionName
    log_start_offset: int = 0
    high_watermark: int = 0
    log_end_offset: int = 0
    remote_error: Exception | None = None

    def hidden_between(self, start, stop):
        return 0

    def stored_ns(self, offset):
        return STARTED_NS + 1_000_000_000 * offset if offset < self.high_watermark else None


@dataclass
class FakeStream:
    config: StreamConfig
    partitions: list[FakePartition]
    created_ns: int = 1_700_000_000_000_000_000


@dataclass
class FakeBroker:
    config: BrokerConfig = field(
        default_factory=lambda: BrokerConfig(http_port=0, data_dir="/data/<b>")
    )
    flight_address: str = ""
    clock: ManualClock = field(default_factory=ManualClock)
    telemetry: Telemetry = field(default_factory=Telemetry)
    why_not_ready: str = ""
    held: list[FakeStream] = field(default_factory=list)
    positions: list[GroupSample] = field(default_factory=list)

    def group_positions(self):
        return list(self.positions)

    def streams(self):
        return list(self.held)

    def refresh_telemetry(self):
        self.telemetry.ready = int(not self.why_not_ready)
        self.telemetry.partitions = sum(len(stream.partitions) for stream in self.held)

    def add(self, name, *, partitions=1, records=0, subject="orders.>"):
        self.held.append(
            FakeStream(
                StreamConfig(name=name, subject=subject, partitions=partitions),
                [
                    FakePartition(PartitionName(name, number), 0, records, records)
                    for number in range(partitions)
                ],
            )
        )


@pytest.fixture
def broker():
    return FakeBroker()


@pytest.fixture
async def front_end(broker):
    front_end = HttpFrontEnd(broker, broker.config, lambda: 0)
    await front_end.start()
    yield front_end
    await front_end.stop()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self):
        return self.body.decode()


def request(port, path, *, method="GET"):
    """One blocking HTTP request; call it on a thread."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


@pytest.fixture
def fetch(front_end):
    async def fetch(path, method="GET"):
        return await asyncio.to_thread(request, front_end.port, path, method=method)

    return fetch

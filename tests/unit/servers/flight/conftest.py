"""A partition, a stream and a broker in memory, as far as the Flight front end looks at them."""

import asyncio
import threading
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from strandline.broker.routing import RouteTable
from strandline.clock import SystemClock
from strandline.config import BrokerConfig, StreamConfig
from strandline.errors import (
    CorruptBatchError,
    OffsetOutOfRangeError,
    StrandlineError,
    UnavailableError,
    UnknownPartitionError,
    UnknownStreamError,
)
from strandline.record.batch import read_header
from strandline.record.codec import Stamp, encode_arrow, encode_records
from strandline.servers.flight.server import FlightFrontEnd
from strandline.telemetry import Telemetry
from strandline.types import PartitionName

START_NS = 1_000_000_000


class FakePartition:
    """Batches in a list; each gets one timestamp, a second after the one before."""

    def __init__(self, name: PartitionName, config: StreamConfig) -> None:
        self.name = name
        self.config = config
        self.batches: list[bytes] = []
        self.corrupt: set[int] = set()
        self.has_copies = False
        self.log_start_offset = 0
        self.high_watermark = 0
        self.closed_by: Exception | None = None
        self.schema_check = None
        self.transaction_index = None
        self.addresses: tuple[str, ...] = ()
        self.leader_address = ""
        self.in_sync_addresses: tuple[str, ...] = ()
        self.blocked_by: Exception | None = None
        self.remote_error: Exception | None = None
        self.is_led = self.knows_end = True
        self.appended: list[dict] = []
        self.producers: list = []
        self.refuse: Exception | None = None
        self.holds_acks = False
        self.held: list = []
        self.waiters: list[threading.Event] = []

    @property
    def closed(self) -> bool:
        """Whether it accepts no more records."""
        return self.closed_by is not None

    def hidden_between(self, start, stop):
        return 0

    @property
    def last_stable_offset(self) -> int:
        """The same: there are no transactions."""
        return self.high_watermark

    @property
    def log_end_offset(self) -> int:
        """The same: everything is committed at once."""
        return self.high_watermark

    @property
    def log(self):
        """The log, as far as its size goes."""
        return SimpleNamespace(size_bytes=sum(map(len, self.batches)))

    def store(self, *values, subjects=("s",), keys=None, headers=None, gap=0) -> None:
        """Add one batch; ``gap`` offsets before it do not exist."""
        stamp = Stamp(self.high_watermark + gap, 0, START_NS * (len(self.batches) + 1))
        self._add(encode_records(values, list(subjects), stamp, keys=keys, headers=headers))

    def _add(self, batch) -> None:
        self.batches.append(bytes(batch))
        self.high_watermark = read_header(batch).next_offset
        for waiter in tuple(self.waiters):
            waiter.set()

    def read(self, offset: int, bytes_max: int, *, below: int | None = None) -> pa.Buffer:
        """Whole batches from the one that holds the offset on."""
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise OffsetOutOfRangeError(f"offset {offset}")
        taken = b""
        for place, batch in enumerate(self.batches):
            header = read_header(batch)
            if header.next_offset <= offset:
                continue
            if place in self.corrupt:
                if taken:
                    break
                error = CorruptBatchError("checksum mismatch", file="0.log", position=place)
                error.first_offset, error.next_offset = header.base_offset, header.next_offset
                raise error
            if taken and len(taken) + len(batch) > bytes_max:
                break
            if below is not None and header.base_offset >= below:
                break
            taken += batch
        return pa.py_buffer(taken)

    def find_runs(self, _pattern: str) -> None:
        """There is no subject index."""

    def watch(self, waiter) -> None:
        """Set it when there is more."""
        self.waiters.append(waiter)

    def unwatch(self, waiter) -> None:
        """Remove the watcher."""
        self.waiters.remove(waiter)

    def offset_for_timestamp(self, timestamp_ns: int) -> int:
        """The first record at or after a time."""
        for batch in self.batches:
            header = read_header(batch)
            if header.first_timestamp >= timestamp_ns:
                return header.base_offset
        return self.high_watermark

    def append(self, value, *, ack_sink, token, **record) -> None:
        """Take a record; an id seen before is a duplicate."""
        ids = [item.get("message_id") for item in self.appended]
        if record["message_id"] in ids:
            offset = ids.index(record["message_id"])
            self._answer(lambda: ack_sink.acked(token, self.name, offset, duplicate=True))
            return
        offset = self.high_watermark
        self.appended.append({"value": value, **record})
        self.store(value, subjects=[record["subject"]])
        self._answer(lambda: ack_sink.acked(token, self.name, offset, duplicate=False))

    def append_arrow(
        self,
        batch,
        *,
        ack_sink,
        token,
        acks=None,
        producer=None,
        is_transactional=False,
        verdict=None,
    ) -> None:
        """Take a batch."""
        assert verdict is None, "nothing is checked"
        self.producers.append(producer)
        if self.refuse is not None:
            error = self.refuse
            self._answer(lambda: ack_sink.rejected(token, error))
            return
        offset = self.high_watermark
        stamp = Stamp(offset, 0, START_NS * (len(self.batches) + 1))
        self._add(encode_arrow(batch, stamp, default_subject=self.config.subject))
        self._answer(lambda: ack_sink.acked(token, self.name, offset, duplicate=False))

    def _answer(self, answer) -> None:
        if self.holds_acks:
            self.held.append(answer)
        else:
            answer()


class FakeBroker:
    """Streams by name, and a loop in a thread."""

    def __init__(self) -> None:
        self.unknown: StrandlineError | None = None
        self.config = BrokerConfig(local_reads=False)  # it has no files
        self.clock = SystemClock()
        self.telemetry = Telemetry()
        self.admission = SimpleNamespace(pending_bytes=0)
        self.metadata_index = 0
        self.has_quorum = True
        self.flight_address = ""
        self.flight_addresses: tuple[str, ...] = ()
        self.routes = RouteTable()
        self._streams: dict[str, SimpleNamespace] = {}
        self.answered = []
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the loop."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def make_stream(self, name: str = "s", *, partitions: int = 1, **config) -> SimpleNamespace:
        """A stream with empty partitions."""
        settings = StreamConfig(
            **{"name": name, "subject": name, "partitions": partitions, **config}
        )
        made = [FakePartition(PartitionName(name, n), settings) for n in range(partitions)]

        def partition(number: int) -> FakePartition:
            if not 0 <= number < partitions:
                raise UnknownPartitionError(f"no partition {number}")
            return made[number]

        stream = SimpleNamespace(
            name=name, config=settings, created_ns=1, partitions=made, partition=partition
        )
        self._streams[name] = stream
        self.routes.replace(name, stream)
        return stream

    def stream(self, name: str) -> SimpleNamespace:
        """By name."""
        if self.unknown is not None:
            raise self.unknown
        if name not in self._streams:
            raise UnknownStreamError(f"no stream {name!r}")
        return self._streams[name]

    def check_metadata(self) -> None:
        """Raise the error that a test has set."""
        if self.unknown is not None:
            raise self.unknown
        if not self.has_quorum:
            raise UnavailableError("this broker has lost the majority of its cluster")

    def copy_of(self, name: str) -> SimpleNamespace:
        """By name, also where it is not known which streams there are."""
        return self._streams[name]

    @property
    def stream_count(self) -> int:
        """The number of streams."""
        return len(self.streams())

    def streams(self) -> list[SimpleNamespace]:
        """All."""
        return list(self._streams.values())

    async def create_stream(self, config: StreamConfig) -> SimpleNamespace:
        """Make one."""
        return self.make_stream(config.name, partitions=config.partitions)

    async def delete_stream(self, name: str) -> None:
        """Remove one."""
        self.stream(name)
        for partition in self._streams.pop(name).partitions:
            partition.closed_by = UnknownStreamError(f"stream {name!r} was deleted")

    async def delete_before(self, name: str, partition: int, offset: int) -> int:
        """Forget a prefix."""
        target = self.stream(name).partition(partition)
        target.log_start_offset = offset
        return offset

    def on_answered(self, callback) -> None:
        """Register the callback."""
        self.answered.append(callback)

    def call_soon(self, function, *args) -> None:
        """Hop onto the loop."""
        self.loop.call_soon_threadsafe(function, *args)

    def run_coroutine(self, coroutine):
        """Run on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)


@pytest.fixture(scope="session")
def new_partition():
    """Makes partitions that no test shares."""

    def make() -> FakePartition:
        return FakePartition(PartitionName("s", 0), StreamConfig(name="s", subject="s"))

    return make


@pytest.fixture
def make_broker():
    """Makes empty brokers."""
    made = []

    def make() -> FakeBroker:
        made.append(FakeBroker())
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def broker(make_broker):
    """An empty broker."""
    return make_broker()


@pytest.fixture
def stream(broker):
    """Stream ``s`` of one partition."""
    return broker.make_stream()


@pytest.fixture
def partition(stream):
    """Its partition."""
    return stream.partitions[0]


@pytest.fixture
def front_end(broker):
    """A listening front end."""
    made = FlightFrontEnd(broker, BrokerConfig(flight_port=0))
    asyncio.run(made.start())
    yield made
    asyncio.run(made.stop())


@pytest.fixture
def client(front_end):
    """A plain Flight client of it."""
    with fl.connect(("127.0.0.1", front_end.port)) as made:
        yield made

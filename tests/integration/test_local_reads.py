"""Reads from the broker's files return the same as reads through the broker, whatever happens."""

import base64
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import strandline
from strandline.client.reader.local import LocalStream, begin_read
from strandline.client.reader.reading import BatchStream, read_request
from strandline.errors import CorruptBatchError, DataLossError, StrandlineError
from strandline.testing import Server

SEGMENT_BYTES = 1 << 20
VALUE_BYTES = 2000
RECORDS = 12_000


@pytest.fixture(scope="module")
def url():
    """A broker."""
    with Server() as running:
        yield running


@pytest.fixture(scope="module")
def client(url):
    """Its client."""
    with strandline.connect(url) as connected:
        yield connected


def rows(first: int, count: int = 500) -> pa.RecordBatch:
    """Records that differ in everything."""
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "value": [b"%d " % n + bytes(VALUE_BYTES) for n in numbers],
            "key": [b"k%d" % (n % 7) for n in numbers],
            "subject": [f"{'ab'[n % 2]}.{n % 3}" for n in numbers],
        }
    )


def fill(client, name: str, *, records: int = RECORDS, **config) -> None:
    """A stream of several segments."""
    client.create_stream(name, segment_bytes=SEGMENT_BYTES, **config)
    append(client, name, 0, records)


def append(client, name: str, first: int, records: int) -> None:
    """More records."""
    for start in range(first, first + records, 500):
        client.append_batch(name, rows(start))


def broker_stream(client, name: str, **options) -> BatchStream:
    """The same read without files."""
    connection = client._brokers.connection(client._brokers.home)
    return BatchStream(connection, read_request(name, **options))


def read_until_error(batches) -> tuple[list[int], StrandlineError | None]:
    """Return the offsets read, and the error at the end."""
    found: list[int] = []
    try:
        for batch in batches:
            found += batch["offset"].to_pylist()
    except StrandlineError as error:
        return found, error
    return found, None


@pytest.fixture(scope="module")
def whole(client):
    """A stream of three partitions, which does not change."""
    fill(client, "whole", subject="whole.>", partitions=3, partition_by="key")
    return "whole"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"partition": 1},
        {"columns": ["offset", "value"]},
        {"columns": ["partition", "key"], "subject": "a.*"},
        {"keys": [b"k1", b"k4"]},
        {"timestamp_to": datetime(2100, 1, 1, tzinfo=UTC), "subject": "b.2"},
        {"start": -5000},
    ],
)
def test_the_same_records_come(client, whole, options):
    """All of them, of a partition, some columns, and filtered, in the same order."""
    stream = client.open_read(whole, **options)
    assert isinstance(stream, LocalStream), "the broker is on this machine"
    found = stream.reader().read_all()
    expected = broker_stream(client, whole, **options).reader().read_all()
    assert found.num_rows == expected.num_rows > 0
    assert found.schema == expected.schema
    assert found.to_pylist() == expected.to_pylist()


def test_a_descending_read_is_an_ascending_one_in_reverse(client, whole):
    """Of each partition, whether the ascending one comes from files or through the broker."""
    for number in range(3):
        options = {"partition": number, "columns": ["offset", "value"]}
        down = client.read(whole, order="descending", **options).read_all()
        up = client.read(whole, **options).read_all()
        assert down.num_rows > 3000
        assert down["offset"].to_pylist() == up["offset"].to_pylist()[::-1]
        assert down["value"].to_pylist() == up["value"].to_pylist()[::-1]


def test_a_range_of_a_partition(client):
    """Begins and ends in the middle of batches, and of files."""
    fill(client, "range", subject="range.>")
    found = client.open_read("range", start=1_234, stop=9_876)
    assert isinstance(found, LocalStream)
    assert found.reader().read_all()["offset"].to_pylist() == list(range(1_234, 9_876))


def test_a_read_ends_where_the_log_ended_when_it_began(client):
    """Though publishers continue; files and broker join without a gap or a repeat."""
    fill(client, "growing", subject="growing.>")
    stop = threading.Event()

    def publish() -> None:
        first = RECORDS
        with strandline.connect(client.address) as other:
            while not stop.is_set():
                append(other, "growing", first, 500)
                first += 500

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        for _ in range(5):
            end = client.offsets("growing")[0]
            found = client.read("growing", columns=["offset"]).read_all()["offset"].to_pylist()
            assert found == list(range(len(found)))
            assert len(found) >= end
    finally:
        stop.set()
        publisher.join()


def test_records_deleted_meanwhile_are_a_loss_that_is_told(client):
    """An open file is read to its end; later deleted records are an error."""
    fill(client, "cut", subject="cut.>")
    batches = client.open_read("cut").batches()
    seen = next(batches)["offset"].to_pylist()
    client.delete_records("cut", RECORDS - 10)
    more, error = read_until_error(batches)
    assert isinstance(error, DataLossError)
    assert "were deleted" in error.message
    seen += more
    assert seen == list(range(len(seen)))
    assert len(seen) < RECORDS - 10


def test_corruption_is_found_and_named_as_by_the_broker(client):
    """Earlier records are read; then the same error, with file and position."""
    fill(client, "corrupt", subject="corrupt.>")
    [part] = client.open_read("corrupt")._parts
    paths = [Path(file.path) for file in part.files]
    [path] = [path for path in paths if b"7000 " in path.read_bytes()]
    content = bytearray(path.read_bytes())
    content[content.index(b"7000 ") + 50] ^= 1
    path.write_bytes(content)
    from_files, error = read_until_error(client.open_read("corrupt").batches())
    through, expected = read_until_error(broker_stream(client, "corrupt").batches())
    assert from_files == through
    assert 0 < len(through) <= 7000
    assert isinstance(expected, CorruptBatchError)
    assert str(error) == str(expected)


def test_a_stream_with_transactions_gives_what_counts(client):
    """Committed ones as they are, nothing of aborted ones, and nothing behind one that is open."""
    fill(client, "traded", subject="traded.>", records=4_000)
    for number in range(10):
        transaction = client.transaction(f"t{number % 3}")
        transaction.append_batch("traded", rows(10_000 * number))
        append(client, "traded", 4_000 + 500 * number, 500)
        if number % 2:
            transaction.commit()
        else:
            transaction.abort()
    still_open = client.transaction("open")
    still_open.append_batch("traded", rows(0))
    append(client, "traded", 9_000, 1_000)
    for options in ({}, {"partition": 0, "start": 4_100}, {"partition": 0, "start": 4_750}):
        stream = client.open_read("traded", **options)
        assert isinstance(stream, LocalStream)
        found = stream.reader().read_all()
        expected = broker_stream(client, "traded", **options).reader().read_all()
        assert found.to_pylist() == expected.to_pylist()
        [part] = stream._parts
        assert part.end > 0.9 * part.stop, "most came from files"
        assert stream._rest is None or stream._rest._request.start == part.end, "nothing failed"
    assert client.read("traded").read_all().num_rows == 4_000 + 10 * 500 + 5 * 500
    still_open.abort()


@pytest.mark.parametrize("options", [{}, {"start": 4_321, "stop": 64_000}, {"keys": [b"odd 7"]}])
def test_a_compacted_stream_gives_what_is_left(changelog, options):
    """Placeholders in its files are not records."""
    client, left = changelog
    stream = client.open_read("changes", partition=0, **options)
    assert isinstance(stream, LocalStream)
    found = stream.reader().read_all()
    assert 0 < found.num_rows <= left
    [part] = stream._parts
    assert stream._rest is None or stream._rest._request.start == part.end, "nothing failed"
    assert (
        found.to_pylist()
        == broker_stream(client, "changes", partition=0, **options).reader().read_all().to_pylist()
    )


def test_a_stream_that_is_compacted_meanwhile_gives_each_key_its_last_value(changelog):
    """Files are replaced while they are read; the rest of such a read is the broker's."""
    client, _ = changelog
    stop = threading.Event()

    def publish() -> None:
        with strandline.connect(client.address) as other:
            while not stop.is_set():
                other.append_batch("changes", changes(range(100)))

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        for _ in range(20):
            found = client.read("changes", columns=["offset", "key"]).read_all()
            offsets = found["offset"].to_pylist()
            assert offsets == sorted(set(offsets))
            assert set(found["key"].to_pylist()) == KEYS
    finally:
        stop.set()
        publisher.join()


KEYS = {b"even %d" % n for n in range(0, 4_000, 2)} | {b"odd %d" % n for n in range(1, 4_000, 2)}


def changes(numbers) -> pa.RecordBatch:
    """Records with a key for each number, in runs of one kind."""
    names = [b"%s %d" % (b"odd" if n % 2 else b"even", n) for n in numbers]
    return pa.record_batch({"value": [bytes(VALUE_BYTES)] * len(names), "key": names})


@pytest.fixture(scope="module")
def changelog():
    """A compacted stream of some keys written often and some once; return the remaining records."""
    with Server(cleaner_interval_ms=100) as url, strandline.connect(url) as connected:
        connected.create_stream("changes", segment_bytes=SEGMENT_BYTES, compact=True)
        connected.append_batch("changes", changes(range(1, 4_000, 2)))
        for _ in range(20):
            connected.append_batch("changes", changes(range(0, 4_000, 2)))
        connected.append_batch("changes", changes([0] * 3_000))
        for _ in range(10):
            connected.append_batch("changes", changes(range(1, 4_000, 2)))
        deadline = time.monotonic() + 60
        found = [65_000]
        # A pass may take seconds on a busy machine; each replaces files.
        while found[-1] == 65_000 or len(set(found[-6:])) > 1 or len(found) < 6:
            assert time.monotonic() < deadline, f"not compacted: {found[-1]} records"
            time.sleep(0.5)
            found.append(connected.read("changes", columns=["offset"]).read_all().num_rows)
        yield connected, found[-1]


def test_encrypted_streams_are_the_brokers(tmp_path):
    """The keys stay with it."""
    key = tmp_path / "master.key"
    key.write_bytes(base64.b64encode(bytes(32)))
    settings = {"encryption": {"key_file": str(key)}}
    with Server(**settings) as url, strandline.connect(url) as client:
        fill(client, "secret", subject="secret.>", encryption=True)
        stream = client.open_read("secret")
        assert not isinstance(stream, LocalStream)
        assert stream.reader().read_all().num_rows == RECORDS


def test_small_reads_do_not_ask(client, whole):
    """Neither a few records nor a small stream are worth it."""
    assert not isinstance(client.open_read(whole, partition=0, start=1, stop=9), LocalStream)
    client.create_stream("small", subject="small.>")
    client.append("small", b"x")
    assert not isinstance(client.open_read("small"), LocalStream)


def test_the_broker_can_be_told_not_to(tmp_path):
    """``local_reads: false``: everything goes through it."""
    with Server(local_reads=False) as url, strandline.connect(url) as client:
        fill(client, "s", subject="s.>")
        connection = client._brokers.connection(client._brokers.home)
        stream = begin_read(connection, read_request("s"))
        assert not isinstance(stream, LocalStream)
        assert stream.reader().read_all().num_rows == RECORDS

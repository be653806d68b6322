"""The client against a real broker: streams, appends and reads, as a user meets them."""

import gc
import queue
import re
import threading
import time
import weakref
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

import strandline
from strandline.errors import (
    DisconnectedError,
    InvalidConfigError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidSubjectError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    StreamExistsError,
    UnknownPartitionError,
    UnknownStreamError,
)
from strandline.record.partitioner import partition_of
from strandline.record.schema import COLUMNS, HEADERS_TYPE
from strandline.testing import Server


@pytest.fixture(scope="module")
def server():
    """One broker for the module; each test has a stream of its own."""
    with Server(limits={"record_bytes": 200_000}) as url:
        yield url


@pytest.fixture
def client(server):
    """A client of it."""
    with strandline.connect(server) as made:
        yield made


@pytest.fixture
def name(request):
    """A stream name no other test uses."""
    return re.sub(r"\W+", "-", request.node.name).strip("-")


def values(reader) -> list[bytes]:
    """Every value of a read."""
    return [value for batch in reader for value in batch.column("value").to_pylist()]


def test_what_is_appended_is_read_back(client, name):
    """Offsets from 0, times of now, subject, key, value and headers as given."""
    before = datetime.now(UTC)
    client.create_stream(name, subject="orders")
    assert client.append(name, b"first", key=b"k", headers={"a": "1"}) == 0
    assert client.append(name, "zweite é", subject="orders.eu") == 1
    assert client.append(name, None, key="k", headers=[("x", b"1"), ("x", b"2")]) == 2
    table = client.read(name).read_all()
    assert table.column_names == list(COLUMNS)
    first, second, third = table.to_pylist()
    assert before - timedelta(seconds=5) < first["timestamp"] < datetime.now(UTC)
    assert (first["subject"], first["key"], first["value"]) == ("orders", b"k", b"first")
    assert first["headers"] == [("a", b"1")]
    assert (second["subject"], second["value"]) == ("orders.eu", "zweite é".encode())
    assert (third["value"], third["headers"]) == (None, [("x", b"1"), ("x", b"2")])


def test_streams_are_described(client, name):
    """Configuration and extent of each partition; listed by name."""
    client.create_stream(name, subject=f"{name}.>", partitions=2, retention_age_ms=1000)
    client.append(name, b"v", partition=1)
    info = client.stream_info(name)
    assert (info.name, info.subject) == (name, f"{name}.>")
    assert info.config.retention_age_ms == 1000
    assert [part.records for part in info.partitions] == [0, 1]
    assert info.partitions[1].size_bytes > 0
    assert name in [stream.name for stream in client.list_streams()]


def test_a_deleted_stream_is_gone(client, name):
    """Its name is free, and a new stream of that name begins empty."""
    client.create_stream(name)
    client.append(name, b"old")
    client.delete_stream(name)
    for call in (client.stream_info, client.delete_stream, client.read, client.producer):
        with pytest.raises(UnknownStreamError, match=name):
            call(name)
    with pytest.raises(UnknownStreamError):
        client.append(name, b"x")
    client.create_stream(name)
    assert values(client.read(name)) == []
    assert client.append(name, b"new") == 0


@pytest.mark.parametrize(
    ("arguments", "error", "part"),
    [
        ({"subject": "a b"}, InvalidSubjectError, "white space"),
        ({"partitions": 0}, InvalidRequestError, "partitions"),
        ({"partitions": 10_001}, InvalidRequestError, "partitions"),
        ({"retention_age": 5}, InvalidConfigError, "retention_age_ms"),
        ({"acks": "some"}, InvalidConfigError, "acks"),
    ],
)
def test_wrong_settings_are_rejected_with_the_remedy(client, name, arguments, error, part):
    """Names the setting, and the nearest valid one for an unknown."""
    with pytest.raises(error, match=part):
        client.create_stream(name, **arguments)


def test_a_stream_name_is_taken_once(client, name):
    """Two streams with one name: a clear error."""
    client.create_stream(name)
    with pytest.raises(StreamExistsError, match=name):
        client.create_stream(name)


def test_a_wildcard_stream_takes_records_without_a_subject(client, name):
    """They get a subject that the stream's pattern matches."""
    client.create_stream(name, subject="f.*.>", partitions=3)
    client.append(name, b"v", key=b"k")
    [row] = client.read(name).read_all().to_pylist()
    assert row["subject"] == "f._._"
    assert row["partition"] == partition_of(b"k", 3)


def test_producers_batch_and_keep_order(client, name):
    """Ten thousand futures, each with its offset; per partition in order."""
    client.create_stream(name, partitions=3, partition_by="key")
    with client.producer(name) as producer:
        futures = [
            producer.append(b"%d" % number, key=b"%d" % (number % 7)) for number in range(10_000)
        ]
    rows = client.read(name).read_all().to_pylist()
    placed = {(row["partition"], row["offset"]): row for row in rows}
    assert len(placed) == 10_000
    for number, future in enumerate(futures):
        ack = future.result()
        assert placed[ack.partition, ack]["value"] == b"%d" % number
    for key in range(7):
        mine = [int(row["value"]) for row in rows if row["key"] == b"%d" % key]
        assert mine == sorted(mine)


def test_tables_are_appended_whole(client, name):
    """From Arrow or a data frame, split by key, acked with the ranges."""
    client.create_stream(name, partitions=4, partition_by="key")
    rows = 50_000
    table = pa.table(
        {
            "value": [b"%d" % number for number in range(rows)],
            "key": [b"%d" % (number % 50) for number in range(rows)],
            "subject": [f"{name}.{number % 3}" for number in range(rows)],
        }
    )
    ack = client.append_batch(name, table)
    assert ack.records == rows == sum(stored.records for stored in ack.ranges)
    found = client.read(name, columns=["value", "key", "partition"]).read_all()
    assert sorted(map(int, found["value"].to_pylist())) == list(range(rows))
    for key, partition in set(
        zip(found["key"].to_pylist(), found["partition"].to_pylist(), strict=True)
    ):
        assert partition == partition_of(key, 4)


def test_records_and_tables_of_one_producer_keep_their_order(client, name):
    """A table does not overtake the records before it; columns may come and go."""
    client.create_stream(name)
    with client.producer(name, linger_ms=1000) as producer:
        producer.append(b"0")
        producer.append_batch(pa.table({"value": ["1", "2"]}))
        producer.append(b"3", key=b"k")
        producer.append_batch(pa.table({"value": ["4"], "subject": ["x.y"]}))
        producer.append(b"5", headers={"h": "v"})
        producer.append(b"6", message_id="i")
        producer.append(b"7")
    assert values(client.read(name)) == [b"%d" % number for number in range(8)]


def test_a_repeated_message_id_is_stored_once(client, name):
    """The second ack gives the first one's offset and says that it is a duplicate."""
    client.create_stream(name)
    first = client.append(name, b"v", message_id="a")
    again = client.append(name, b"v", message_id="a")
    assert (first, first.duplicate, again, again.duplicate) == (0, False, 0, True)
    assert len(values(client.read(name))) == 1


def test_a_producer_numbers_its_records_unless_told_otherwise(client, name):
    """So that a retry is stored once; with message ids those are enough. All share an order."""
    client.create_stream(name)
    with client.producer(name) as producer:
        producer.append(b"a")
        producer.flush()
        producer.append(b"b", message_id="m")
        producer.append_batch(pa.table({"value": ["c", "d"]}))
    with client.producer(name, idempotent=False) as producer:
        producer.append(b"e")
    assert values(client.read(name)) == [b"a", b"b", b"c", b"d", b"e"]
    with pytest.raises(InvalidRequestError, match="at most 300 s"):
        client.producer(name, delivery_timeout_s=301)


def test_a_rejected_batch_does_not_hold_up_those_behind_it(client, name):
    """They get new numbers; only the one that is wrong fails."""
    client.create_stream(name)
    with client.producer(name) as producer:
        tables = [pa.table({"value": [str(number)]}) for number in range(40)]
        wrong = pa.table({"value": ["v"], "headers": pa.array([[("n" * 2000, b"")]], HEADERS_TYPE)})
        futures = [producer.append_batch(table) for table in tables[:20]]
        refused = producer.append_batch(wrong)
        futures += [producer.append_batch(table) for table in tables[20:]]
        with pytest.raises(InvalidRecordError, match="header name"):
            refused.result(20)
        assert [future.result(20).records for future in futures] == [1] * 40
    assert values(client.read(name)) == [b"%d" % number for number in range(40)]


def test_a_stream_that_others_recreated_is_appended_to(client, server, name):
    """The first append raises that the old stream is gone, later ones go to the new one."""
    client.create_stream(name)
    client.append(name, b"old")
    with strandline.connect(server) as other:
        other.delete_stream(name)
        other.create_stream(name)
    with pytest.raises(UnknownStreamError):
        client.append(name, b"lost")
    assert client.append(name, b"new") == 0


def test_a_wrong_partition_spoils_nothing_else(client, name):
    """Neither the records beside it nor later appends."""
    client.create_stream(name, partitions=2)
    with client.producer(name, linger_ms=50) as producer:
        good = [producer.append(b"v", partition=np.int64(number % 2)) for number in range(10)]
        with pytest.raises(InvalidRequestError, match="whole number"):
            producer.append(b"v", partition=0.5)
        assert [future.result(20) for future in good] == [number // 2 for number in range(10)]
    assert client.append(name, b"v", partition=np.int64(1)) == 5
    table = pa.table({"value": ["v"]})
    assert client.append_batch(name, table, partition=np.int64(1)).ranges == ((1, 6, 1),)


def test_callbacks_append_past_a_full_buffer(client, name):
    """Two producers whose callbacks append to each other: only they could make room."""
    client.create_stream(name)
    appended, over = [], threading.Event()
    sizes = {"linger_ms": 0, "buffer_bytes": 100, "delivery_timeout_s": 15}
    with client.producer(name, **sizes) as one, client.producer(name, **sizes) as other:

        def answer(to):
            def append(_future):
                appended.extend([to.append(bytes(200)), to.append(bytes(200))])
                if len(appended) >= 40:
                    over.set()
                else:
                    appended[-1].add_done_callback(answer(one if to is other else other))

            return append

        for first, second in ((one, other), (other, one)):
            first.append(b"begin").add_done_callback(answer(second))
        assert over.wait(12), "a callback waits for itself"
    assert all(future.result(20) is not None for future in appended)


def test_a_callback_cannot_wait_for_itself(client, name):
    """It gets an error, and other flushes do not wait for it."""
    client.create_stream(name)
    heard = queue.SimpleQueue()
    with client.producer(name) as producer:

        def flush(_future):
            try:
                producer.flush()
            except InvalidRequestError as error:
                heard.put(error)

        producer.append(b"v").add_done_callback(flush)
        assert "callback" in heard.get(timeout=20).message


@pytest.mark.parametrize(
    ("arguments", "error", "part"),
    [
        ({"value": b"x" * 200_001}, RecordTooLargeError, "limits.record_bytes"),
        ({"value": b"x" * 150_000, "key": b"k" * 60_000}, RecordTooLargeError, "200000"),
        ({"value": b"v", "subject": "a.*"}, InvalidSubjectError, "wildcard"),
        ({"value": b"v", "subject": "a..b"}, InvalidSubjectError, "empty token"),
        ({"value": b"v", "partition": 2}, UnknownPartitionError, "0 to 1"),
        ({"value": 5}, InvalidRecordError, "int"),
        ({"value": {"a": 1}}, InvalidRecordError, "JSON"),
        ({"value": b"v", "headers": [b"x"]}, InvalidRecordError, "pairs"),
        ({"value": b"v", "subject": b"a"}, InvalidSubjectError, "text"),
        ({"value": b"v", "message_id": 5}, InvalidRecordError, "text"),
        ({"value": "\udc80"}, InvalidRecordError, "value has .*half of"),
        ({"value": b"v", "key": "\udc80"}, InvalidRecordError, "key has .*half of"),
        (
            {"value": b"v", "message_id": "\udc80"},
            InvalidRecordError,
            "id has .*half of",
        ),
        ({"value": b"v", "headers": {"\udc80": ""}}, InvalidRecordError, "name has .*half of"),
        ({"value": b"v", "headers": {"h": "\udc80"}}, InvalidRecordError, "header has .*half of"),
    ],
)
def test_wrong_records_are_rejected_at_once(client, name, arguments, error, part):
    """Before they join a batch with others; the message names the limit or the fix."""
    client.create_stream(name, partitions=2)
    given = dict(arguments)
    with client.producer(name) as producer, pytest.raises(error, match=part):
        producer.append(given.pop("value"), **given)


def test_a_rejected_row_names_the_limit(client, name):
    """The broker rejects a table with a record over the limit."""
    client.create_stream(name)
    with pytest.raises(RecordTooLargeError, match=r"limits.record_bytes is 200000"):
        client.append_batch(name, pa.table({"value": [b"ok", b"x" * 200_001]}))


def test_failures_nobody_looked_at_are_raised_at_the_end(client, name):
    """Leaving the block raises, unless every future was examined."""
    client.create_stream(name)
    big = pa.table({"value": [b"x" * 200_001]})
    producer = client.producer(name)
    producer.append_batch(big)
    producer.append_batch(big)
    with pytest.raises(RecordTooLargeError) as caught:
        producer.close()
    assert caught.value.__notes__[-1] == "and 1 more failed"
    with client.producer(name) as producer:
        future = producer.append_batch(big)
        assert isinstance(future.exception(10), RecordTooLargeError)


def test_what_was_rejected_is_let_go_once_somebody_was_told(client, name):
    """A producer of many rejected records does not keep what their callbacks hold."""
    client.create_stream(name)
    told = threading.Semaphore(0)

    def append():
        held = threading.Event()
        future = producer.append(b"v", message_id="i" * 1025)
        future.add_done_callback(lambda _: (held.set(), told.release()))
        return weakref.ref(held)

    with client.producer(name, linger_ms=50) as producer:
        held = [append() for _ in range(3)]
        for _ in held:
            assert told.acquire(timeout=60)
        deadline = time.monotonic() + 60
        while any(each() for each in held) and time.monotonic() < deadline:
            gc.collect()
        assert not any(each() for each in held)


@pytest.fixture
def numbered(client, name):
    """A stream of 100 records in several batches, offset equal to value."""
    client.create_stream(name)
    for start in range(0, 100, 10):
        rows = range(start, start + 10)
        client.append_batch(
            name,
            pa.table(
                {
                    "value": [b"%d" % row for row in rows],
                    "subject": [f"n.{'even' if row % 2 == 0 else 'odd'}" for row in rows],
                    "key": [b"%d" % (row % 5) for row in rows],
                }
            ),
        )
    return name


def numbers(reader) -> list[int]:
    """Values as numbers."""
    return [int(value) for value in values(reader)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, range(100)),
        ({"start": 37}, range(37, 100)),
        ({"start": 37, "stop": 41}, range(37, 41)),
        ({"start": "latest"}, []),
        ({"start": 100}, []),
        ({"start": "earliest", "stop": "latest", "partition": 0}, range(100)),
        ({"subject": "n.even", "stop": 10}, range(0, 10, 2)),
        ({"subject": "*.odd", "start": 91}, range(91, 100, 2)),
        ({"keys": [b"3", "4"], "stop": 10}, [3, 4, 8, 9]),
        ({"records_max": 15}, range(15)),
        ({"records_max": 0}, ()),
        ({"records_max": 0, "follow": True}, ()),
        ({"records_max": 0, "order": "descending"}, ()),
        ({"starts": {0: 95}}, range(95, 100)),
        ({"batch_bytes": 4096}, range(100)),
        ({"start": -10}, range(90, 100)),
        ({"start": -1000}, range(100)),
        ({"start": -10, "subject": "n.odd"}, range(91, 100, 2)),
        ({"start": -10, "order": "descending"}, range(99, 89, -1)),
        ({"order": "descending"}, range(99, -1, -1)),
        ({"order": "descending", "start": 13, "stop": 31}, range(30, 12, -1)),
        ({"order": "descending", "records_max": 15}, range(99, 84, -1)),
        ({"order": "descending", "keys": ["3"], "records_max": 3}, [98, 93, 88]),
    ],
)
def test_reads_give_exactly_what_was_asked(client, numbered, arguments, expected):
    """Ranges, filters and limits, alone and together."""
    assert numbers(client.read(numbered, **arguments)) == list(expected)


def test_reads_by_time(client, numbered):
    """A moment is the first record stored at or after it."""
    client.append(numbered, b"100")
    times = client.read(numbered, columns=["timestamp"]).read_all()["timestamp"]
    stored_ns = times.cast(pa.int64()).to_pylist()
    middle = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=stored_ns[50] // 1000)
    first = next(place for place, time_ns in enumerate(stored_ns) if time_ns >= stored_ns[50])
    found = numbers(client.read(numbered, start=middle))
    assert found[0] == first
    assert numbers(client.read(numbered, start=datetime(2100, 1, 1, tzinfo=UTC))) == []
    assert numbers(client.read(numbered, start=datetime(1990, 1, 1, tzinfo=UTC)))[0] == 0
    assert numbers(client.read(numbered, stop=datetime(1990, 1, 1, tzinfo=UTC))) == []
    assert len(numbers(client.read(numbered, timestamp_to=datetime(2100, 1, 1, tzinfo=UTC)))) == 101


@pytest.mark.parametrize(
    ("arguments", "error", "part"),
    [
        ({"start": 101}, OffsetOutOfRangeError, "starts at 0 and its high watermark is 100"),
        ({"stop": 101}, OffsetOutOfRangeError, "starts at 0 and its high watermark is 100"),
        ({"stop": -1}, OffsetOutOfRangeError, "negative"),
        ({"start": -1, "stop": 4}, InvalidRequestError, "leave 'stop' out"),
        ({"order": "descending", "follow": True}, InvalidRequestError, "leave 'follow'"),
        ({"order": "downwards"}, InvalidRequestError, "order"),
        ({"start": 9, "stop": 4}, InvalidRequestError, "before start"),
        ({"partition": 1}, UnknownPartitionError, "0 to 0"),
        ({"columns": ["values"]}, InvalidRequestError, "columns are: partition"),
        ({"subject": "a b"}, InvalidSubjectError, "white space"),
        ({"start": "soon"}, InvalidRequestError, "datetime"),
        ({"timestamp_from": "2026-01-01"}, InvalidRequestError, "datetime"),
        ({"keys": "abc"}, InvalidRequestError, "keys must be a list"),
        ({"keys": 5}, InvalidRequestError, "keys must be a list"),
        ({"columns": "value"}, InvalidRequestError, "columns must be a list"),
        ({"columns": 5}, InvalidRequestError, "columns must be a list"),
        ({"starts": [0]}, InvalidRequestError, "offsets by partition"),
        ({"keys": ["\udc80"]}, InvalidRecordError, "half of a character"),
    ],
)
def test_impossible_reads_are_rejected_at_the_call(client, numbered, arguments, error, part):
    """Not in the middle of a loop; the message has the valid forms."""
    with pytest.raises(error, match=part):
        client.read(numbered, **arguments)


@pytest.fixture(scope="module")
def stream_s(server):
    """A stream that is only there."""
    with strandline.connect(server) as made:
        made.create_stream("s")


@pytest.mark.usefixtures("stream_s")
@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda client: client.producer("s", linger_ms=float("nan")), "linger_ms must be a number"),
        (lambda client: client.producer("s", buffer_bytes="1"), "buffer_bytes must be a number"),
        (lambda client: client.producer("s", acks="all"), "memory, disk, replicated"),
        (lambda client: client.subscribe("s", columns=["value"]), "takes no 'columns'"),
        (lambda client: client.subscribe("s", follow=True), "takes no 'follow'"),
        (lambda client: client.consumer("g", "s", commit_interval_s="5"), "commit_interval_s"),
        (lambda client: client.consumer("g", "s", poll_interval_max_s=None), "poll_interval_max"),
        (lambda client: strandline.connect([client.address]), "separated by commas"),
        (lambda client: strandline.connect(client.address, timeout_s=None), "timeout_s must be a"),
    ],
)
def test_what_cannot_be_an_argument_is_rejected_where_it_is_given(client, call, part):
    """And not by a thread later, whose records wait meanwhile."""
    with pytest.raises(InvalidRequestError, match=part):
        call(client)


def test_a_truncated_prefix_is_gone(client, name):
    """Reads from earliest begin after it; its offsets no longer exist."""
    client.create_stream(name, segment_bytes=1 << 20)
    for _ in range(5):
        client.append_batch(name, pa.table({"value": [b"x" * 100_000] * 8}))
    info = client.delete_records(name, 24)
    start = info.partitions[0].log_start_offset
    assert start == 24
    assert client.offsets(name, "earliest") == {0: 24}
    offsets = client.read(name, columns=["offset"]).read_all()["offset"].to_pylist()
    assert offsets == list(range(24, 40))
    with pytest.raises(OffsetOutOfRangeError, match="starts at 24"):
        client.read(name, start=23)
    with pytest.raises(OffsetOutOfRangeError):
        client.delete_records(name, 41)


def test_following_sees_what_comes(client, name):
    """The reader waits for records and gets each as it is stored."""
    client.create_stream(name)
    client.append(name, b"0")

    def append():
        for number in range(1, 20):
            client.append(name, b"%d" % number)

    thread = threading.Thread(target=append)
    with client.read(name, follow=True) as reader:
        thread.start()
        found = []
        for batch in reader:
            found += [int(value) for value in batch.column("value").to_pylist()]
            if len(found) == 20:
                break
    thread.join()
    assert found == list(range(20))


def test_leaving_a_followed_read_ends_it(strandline_url, strandline_server):
    """The broker is notified although the reader object is kept."""
    with strandline.connect(strandline_url) as client:
        client.create_stream("left")
        client.append("left", b"0")
        connections = strandline_server.app.broker.telemetry.connections
        others = connections["flight"]  # the append's
        with client.read("left", follow=True) as reader:
            reader.read_next_batch()
        deadline_s = time.monotonic() + 90
        while connections["flight"] > others:
            assert time.monotonic() < deadline_s, "the read goes on"
            time.sleep(0.01)
        assert list(reader) == []


def test_a_read_that_waits_is_ended_from_another_thread(client, name):
    """Closing the reader wakes a thread that waits for a batch."""
    client.create_stream(name)
    with client.read(name, follow=True) as reader:
        closing = threading.Timer(0.1, reader.close)
        closing.start()
        with pytest.raises((DisconnectedError, StopIteration)):  # it waited, or came too late
            reader.read_next_batch()
        closing.join()


def test_following_to_an_offset_ends_there(client, numbered):
    """A read may wait for records that do not exist yet."""
    thread = threading.Timer(0.2, client.append, (numbered, b"100"))
    thread.start()
    assert numbers(client.read(numbered, start=98, stop=101, follow=True)) == [98, 99, 100]
    thread.join()


def test_a_long_poll_returns_with_what_there_is(client, numbered):
    """Nothing new: after its time, with nothing; something new: at once."""
    started = time.monotonic()
    assert numbers(client.read(numbered, start="latest", wait_ms_max=300)) == []
    assert time.monotonic() - started > 0.25
    thread = threading.Timer(0.1, client.append, (numbered, b"100"))
    thread.start()
    assert numbers(client.read(numbered, start=100, wait_ms_max=20_000)) == [100]
    thread.join()
    assert time.monotonic() - started < 10


def test_waiting_for_a_partition(client, name):
    """The driver of a streaming query sleeps until there is something to read."""
    client.create_stream(name, partitions=2)
    assert client.wait_for(name, {0: 0, 1: 0}, timeout_s=0.05) == {0: 0, 1: 0}
    thread = threading.Timer(0.1, client.append, (name, b"v"), {"partition": 1})
    thread.start()
    assert client.wait_for(name, {0: 0, 1: 0}, timeout_s=20) == {0: 0, 1: 1}
    thread.join()


def test_a_subscription_gives_records_as_objects(client, name):
    """From now on by default, all partitions, until it is closed."""
    client.create_stream(name, partitions=2, partition_by="key")
    client.append(name, b"before", key=b"a")
    with client.subscribe(name) as subscription:
        acks = [
            client.append(name, b"%d" % n, key=b"%d" % n, headers={"n": str(n)}) for n in range(9)
        ]
        records = [next(subscription) for _ in range(9)]
    by_value = {record.value: record for record in records}
    for number, ack in enumerate(acks):
        record = by_value[b"%d" % number]
        assert (record.stream, record.partition, record.offset) == (name, ack.partition, ack)
        assert (record.key, record.headers) == (b"%d" % number, [("n", b"%d" % number)])
        assert abs(record.timestamp - datetime.now(UTC)) < timedelta(minutes=1)
    assert list(subscription) == []
    with client.subscribe(name, starts=subscription.positions) as resumed:
        client.append(name, b"next", key=b"a")
        assert next(resumed).value == b"next"


@pytest.mark.parametrize(
    ("start", "first"),
    [(2, b"c"), ("earliest", b"a"), ("latest", b"new"), (datetime(2000, 1, 1, tzinfo=UTC), b"a")],
)
def test_a_subscription_to_one_partition_begins_where_it_is_told(client, start, first):
    """At an offset, a word or a time of that partition; others are not read."""
    name = f"one-{first.decode()}-{type(start).__name__}"
    client.create_stream(name, partitions=3)
    for partition, values_of in ((0, "xyz"), (1, "abcd"), (2, "u")):
        for value in values_of:
            client.append(name, value, partition=partition)
    with client.subscribe(name, partition=1, start=start) as subscription:
        client.append(name, b"elsewhere", partition=0)
        client.append(name, b"new", partition=1)
        record = next(subscription)
        assert (record.partition, record.value) == (1, first)
        assert subscription.positions == {1: record.offset + 1}


def test_a_closed_subscription_wakes_its_reader(client, name):
    """A thread that waits for the next record ends when another closes it."""
    client.create_stream(name)
    subscription = client.subscribe(name)
    threading.Timer(0.2, subscription.close).start()
    started = time.monotonic()
    assert list(subscription) == []
    assert time.monotonic() - started < 30


def test_reads_work_in_polars_duckdb_and_pandas(client, numbered):
    """The reader is a plain pyarrow.RecordBatchReader; of a read without end it is as good."""
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    reader = client.read(numbered)
    assert isinstance(reader, pa.RecordBatchReader)
    frame = polars.from_arrow(reader)
    assert frame.filter(polars.col("subject") == "n.odd").height == 50
    records = client.read(numbered)  # noqa: F841 - DuckDB finds it by its name
    counted = duckdb.sql("select subject, count(*) c from records group by 1 order by 1").fetchall()
    assert counted == [("n.even", 50), ("n.odd", 50)]
    relation = duckdb.from_arrow(client.read(numbered, columns=["offset", "value"]))
    assert relation.aggregate('max("offset")').fetchall() == [(99,)]
    pandas = client.read(numbered).read_pandas()
    assert list(pandas.columns) == list(COLUMNS)
    assert len(pandas) == 100
    assert isinstance(client.read(numbered, follow=True, stop=100), pa.RecordBatchReader)
    with client.read(numbered, follow=True) as endless:
        first = pa.RecordBatchReader.from_stream(endless).read_next_batch()
    assert first.column("offset")[0].as_py() == 0


def test_what_was_read_can_be_appended_elsewhere(client, numbered, name):
    """A copy of a stream is one line; subjects, keys and headers go along."""
    client.create_stream(name + "-copy")
    ack = client.append_batch(name + "-copy", client.read(numbered))
    assert ack.records == 100
    columns = ["subject", "key", "value", "headers"]
    assert (
        client.read(name + "-copy", columns=columns).read_all().to_pylist()
        == client.read(numbered, columns=columns).read_all().to_pylist()
    )


def test_several_threads_share_a_client(client, name):
    """Appends of many threads are all stored, each once."""
    client.create_stream(name)

    def append(thread):
        for number in range(50):
            client.append(name, b"%d-%d" % (thread, number))

    threads = [threading.Thread(target=append, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = values(client.read(name))
    assert len(found) == len(set(found)) == 400


def test_a_small_buffer_slows_the_producer_down_but_loses_nothing(client, name):
    """Memory is bounded: append waits for acks."""
    client.create_stream(name)
    with client.producer(name, buffer_bytes=100_000, batch_bytes=20_000) as producer:
        for number in range(500):
            producer.append(b"%d" % number + b"x" * 5000)
    assert len(values(client.read(name))) == 500


def test_an_option_that_does_not_exist_is_rejected_by_the_method_called(client, name):
    """As Python does for its own arguments, with the nearest one there is."""
    client.create_stream(name)
    calls = {
        "read": (lambda: client.read(name, colums=["value"]), "columns"),
        "subscribe": (lambda: client.subscribe(name, strat="earliest"), "start"),
        "consumer": (lambda: client.consumer("g", name, comit_interval_s=1), "commit_interval_s"),
    }
    for method, (call, nearest) in calls.items():
        with pytest.raises(TypeError, match=rf"^{method}\(\) got .* did you mean '{nearest}'"):
            call()
    with client.stage("t", 0) as stage, pytest.raises(TypeError, match=r"^append\(\) .*'key'"):
        stage.append(name, b"x", kye=b"k")
    with pytest.raises(TypeError, match=r"'whatever'; it has partition, start, "):
        client.read(name, whatever=1)


def test_partitions_are_added_in_a_cluster_only_and_never_removed(client, name):
    """As many as there are is no change."""
    client.create_stream(name, partitions=2)
    assert len(client.add_partitions(name, 2).partitions) == 2
    with pytest.raises(InvalidRequestError, match="must be at least 2, got 1"):
        client.add_partitions(name, 1)
    with pytest.raises(InvalidRequestError, match="not part of a cluster"):
        client.add_partitions(name, 3)
    with pytest.raises(UnknownStreamError):
        client.add_partitions("none", 3)

"""The Flight surface itself, spoken by a stock pyarrow client against a broker in memory."""

import asyncio
import socket
import threading
import time

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from strandline.api import admin
from strandline.api.commands import COMMANDS
from strandline.api.put import PutAck, PutRequest
from strandline.api.status import from_flight
from strandline.api.tickets import ReadRequest, decode_ticket
from strandline.api.wire import decode, encode
from strandline.client.cluster_client import ClusterClient
from strandline.client.producer.accumulator import ProducerRecord
from strandline.client.producer.conditional_appender import ConditionalAppender
from strandline.config import BrokerConfig, StreamConfig
from strandline.errors import (
    DisconnectedError,
    InvalidConfigError,
    InvalidRequestError,
    NotLeaderError,
    ShuttingDownError,
    StrandlineError,
    StreamExistsError,
    UnavailableError,
    UnknownStreamError,
)
from strandline.record.schema import RECORD_SCHEMA
from strandline.servers.flight.server import FlightFrontEnd
from strandline.servers.flight.writer import PutSession


def read(client, **request):
    """Begin a read."""
    return client.do_get(fl.Ticket(encode(ReadRequest(**request))))


def action(client, command, body=None):
    """Run a command; returns the results' JSON."""
    data = b"" if body is None else encode(body)
    return [each.body.to_pybytes() for each in client.do_action(fl.Action(command.name, data))]


def error_of(function, *args, **kwargs) -> StrandlineError:
    """Return our error that a call ends with."""
    with pytest.raises(fl.FlightError) as caught:
        function(*args, **kwargs)
    return from_flight(caught.value, address="here")


def test_a_read_streams_record_batches(client, partition):
    """With the schema first, dictionaries that change, and everything in place."""
    for number in range(20):
        partition.store(b"%d" % number, subjects=[f"s.{number % 3}"])
    table = read(client, stream="s").read_all()
    assert table.schema.equals(RECORD_SCHEMA)
    assert table.column("offset").to_pylist() == list(range(20))
    assert table.column("subject").to_pylist() == [f"s.{number % 3}" for number in range(20)]


def test_following_sends_the_schema_before_any_record(client, stream):
    """A reader of an empty stream can begin at once."""
    reader = read(client, stream="s", follow=True)
    assert reader.schema.equals(RECORD_SCHEMA)
    reader.cancel()


def test_errors_have_codes_before_and_within_a_stream(client, partition):
    """A wrong ticket, an unknown stream, and corruption after good records."""
    assert isinstance(error_of(lambda: read(client, stream="x").schema), UnknownStreamError)
    bad = error_of(lambda: client.do_get(fl.Ticket(b"\xff")).schema)
    assert isinstance(bad, InvalidRequestError)
    partition.store(b"a")
    partition.store(b"b")
    partition.corrupt = {1}
    reader = read(client, stream="s")
    assert reader.read_chunk().data.num_rows == 1
    corruption = error_of(reader.read_chunk)
    assert corruption.code == "corrupt_batch"
    assert corruption.next_offset == 2


def test_a_fault_of_ours_tells_no_secrets(client, partition, monkeypatch):
    """The client learns that it is not its fault; traces stay in the broker's log."""

    def fault(*_):
        raise ZeroDivisionError("secret")

    partition.store(b"a")
    monkeypatch.setattr(partition, "read", fault)
    error = error_of(lambda: read(client, stream="s").read_all())
    assert "internal error" in error.message
    assert "secret" not in error.message


def test_a_put_is_acked_by_metadata(client, partition):
    """Over a path as well as over a command."""
    batch = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})
    for descriptor in (
        fl.FlightDescriptor.for_path("s"),
        fl.FlightDescriptor.for_path("s", "0"),
        fl.FlightDescriptor.for_command(encode(PutRequest(stream="s"))),
    ):
        writer, acks = client.do_put(descriptor, batch.schema)
        with writer:
            writer.write_batch(batch)
            ack = decode(acks.read().to_pybytes(), PutAck, what="ack")
        assert ack.ranges[0].records == 2
    assert partition.high_watermark == 6


@pytest.mark.parametrize(
    ("descriptor", "code"),
    [
        (fl.FlightDescriptor.for_path("nobody"), "unknown_stream"),
        (fl.FlightDescriptor.for_path("s", "9"), "unknown_partition"),
        (fl.FlightDescriptor.for_path("s", "x"), "invalid_request"),
        (fl.FlightDescriptor.for_path(), "invalid_request"),
        (fl.FlightDescriptor.for_command(b"{"), "invalid_request"),
        (fl.FlightDescriptor.for_command(b'{"stream":"s","acks":"x"}'), "invalid_request"),
    ],
)
def test_a_put_to_nowhere_is_rejected(client, stream, descriptor, code):
    """Whatever the descriptor holds."""

    def put():
        writer, acks = client.do_put(descriptor, pa.schema([("value", pa.binary())]))
        writer.done_writing()
        acks.read()
        writer.close()

    assert error_of(put).code == code


def test_streams_are_administered_by_actions(client, broker):
    """Create, list, describe, truncate, delete: each answers JSON."""
    action(client, admin.CREATE_STREAM, StreamConfig(name="a", subject="a", partitions=2))
    names = [
        decode(data, admin.StreamInfo, what="x").name for data in action(client, admin.LIST_STREAMS)
    ]
    assert names == ["a"]
    broker.stream("a").partitions[1].store(b"v", b"v")
    body = admin.DeleteRecords(name="a", partition=1, offset=1)
    [data] = action(client, admin.DELETE_RECORDS, body)
    extent = decode(data, admin.StreamInfo, what="x").partitions[1]
    assert (extent.log_start_offset, extent.high_watermark) == (1, 2)
    [data] = action(client, admin.OFFSETS, admin.OffsetsRequest(name="a", at="latest"))
    assert decode(data, admin.Offsets, what="x").offsets == {0: 0, 1: 2}
    assert action(client, admin.DELETE_STREAM, admin.StreamName(name="a")) == []
    [data] = action(client, admin.SERVER_INFO)
    assert decode(data, admin.ServerInfo, what="x").streams == 0


@pytest.mark.parametrize(
    ("name", "body", "part"),
    [
        ("reboot", b"", "actions are: create_stream"),
        ("", b"", "unknown action"),
        ("create_stream", b'{"name":"a","subjekt":"b"}', "did you mean 'subject'"),
        ("create_stream", b'{"name":"a"}', "subject"),
        ("create_stream", b'{"name":"","subject":"a"}', "name"),
        ("create_stream", b"[]", "keys and values"),
        ("delete_stream", b"", "delete_stream"),
        ("list_streams", b"[1]", "no body"),
        ("wait_beyond", b'{"name":"s","beyond":{"5":0}}', "partition"),
    ],
)
def test_wrong_actions_are_rejected_with_the_remedy(client, stream, name, body, part):
    """The message has the field, the nearest setting, or the existing names."""
    error = error_of(lambda: list(client.do_action(fl.Action(name, body))))
    assert isinstance(error, InvalidRequestError)
    assert part in error.message


def test_errors_of_the_broker_keep_their_class(client, broker, monkeypatch):
    """The client gets the error that the broker raises on its loop."""

    async def refuse(_):
        raise StreamExistsError("stream 's' exists")

    monkeypatch.setattr(broker, "create_stream", refuse)
    error = error_of(action, client, admin.CREATE_STREAM, StreamConfig(name="s", subject="s"))
    assert isinstance(error, StreamExistsError)


def test_waiting_ends_with_the_first_record(client, front_end, broker):
    """A long poll on offsets, as Spark's driver does it."""
    stream = broker.make_stream("m", partitions=2)

    def store():
        time.sleep(0.1)
        stream.partitions[1].store(b"v")
        for callback in broker.answered:
            callback()

    thread = threading.Thread(target=store)
    thread.start()
    started = time.monotonic()
    body = admin.WaitRequest(name="m", beyond={0: 0, 1: 0}, wait_ms_max=20_000)
    [data] = action(client, admin.WAIT_BEYOND, body)
    thread.join()
    assert decode(data, admin.Offsets, what="x").offsets == {0: 0, 1: 1}
    assert time.monotonic() - started < 15


@pytest.mark.parametrize("attribute", ["remote_error", "closed_by"])
def test_nobody_waits_for_a_partition_that_is_at_other_brokers(client, broker, attribute):
    """A high watermark of 0 would be wrong: the client asks the leader instead."""
    setattr(broker.make_stream("m").partitions[0], attribute, NotLeaderError("broker 2 leads m/0"))
    body = admin.WaitRequest(name="m", beyond={0: 5}, wait_ms_max=60_000)
    assert isinstance(error_of(action, client, admin.WAIT_BEYOND, body), NotLeaderError)


def test_actions_and_streams_can_be_listed(client, broker):
    """A foreign client can discover both."""
    assert {kind.type for kind in client.list_actions()} == set(COMMANDS)
    broker.make_stream("logs.a")
    broker.make_stream("other")
    assert len(list(client.list_flights())) == 2
    [found] = client.list_flights(b"logs")
    assert found.descriptor.path == [b"logs.a"]


def test_a_broker_that_does_not_know_the_streams_denies_none(client, broker):
    """Lists and reads are unavailable, retriable; its own copy can be read when it is asked for."""
    broker.make_stream("m").partitions[0].store(b"a", b"b")
    broker.unknown = UnavailableError("ask again")
    asked = fl.Action(admin.LIST_STREAMS.name, b"")
    ticket = fl.Ticket(encode(ReadRequest(stream="m")))
    for call in (
        lambda: list(client.do_action(asked)),
        lambda: list(client.list_flights()),
        lambda: client.do_get(ticket).read_all(),
    ):
        with pytest.raises(fl.FlightError) as caught:
            call()
        assert from_flight(caught.value, address="here").code == "unavailable"
    ticket = fl.Ticket(encode(ReadRequest(stream="m", of_copy=True)))
    assert client.do_get(ticket).read_all()["value"].to_pylist() == [b"a", b"b"]


def test_flight_info_has_an_endpoint_per_partition(client, front_end, broker):
    """Each ticket reads its own extent, and the location is this broker."""
    stream = broker.make_stream("m", partitions=2)
    stream.partitions[1].store(b"a", b"b")
    info = client.get_flight_info(fl.FlightDescriptor.for_path("m"))
    assert info.total_records == 2
    assert info.schema.names[0] == "partition"
    tickets = [decode_ticket(endpoint.ticket.ticket) for endpoint in info.endpoints]
    assert [(t.partition, t.start, t.stop) for t in tickets] == [(0, 0, 0), (1, 0, 2)]
    assert str(front_end.port) in info.endpoints[0].locations[0].uri.decode()
    stream.partitions[1].store(b"c")
    table = client.do_get(info.endpoints[1].ticket).read_all()
    assert table.column("value").to_pylist() == [b"a", b"b"]
    assert table.schema.equals(info.schema)


def test_flight_info_of_a_request_keeps_its_filters(client, partition):
    """A ticket's JSON is a valid command."""
    partition.store(b"a", b"b", keys=[b"k", b"l"])
    command = encode(ReadRequest(stream="s", keys=[b"l"], columns=["value"]))
    descriptor = fl.FlightDescriptor.for_command(command)
    info = client.get_flight_info(descriptor)
    table = client.do_get(info.endpoints[0].ticket).read_all()
    assert table.to_pydict() == {"value": [b"b"]}
    assert client.get_schema(descriptor).schema.names == ["value"]


def test_a_client_that_leaves_frees_its_thread(client, front_end, broker, stream):
    """Dropping a follow ends it on the broker within a fraction of a second."""
    reader = read(client, stream="s", follow=True)
    assert reader.schema is not None
    reader.cancel()
    deadline = time.monotonic() + 60
    while broker.telemetry.connections["flight"] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert broker.telemetry.connections["flight"] == 0


def test_stopping_ends_every_kind_of_call(broker, stream, partition):
    """A follower, a stalled reader, an idle put and a long poll hold nothing up."""
    for _ in range(30):
        partition.store(b"x" * 900_000)
    front_end = FlightFrontEnd(broker, BrokerConfig(flight_port=0))
    asyncio.run(front_end.start())
    client = fl.connect(("127.0.0.1", front_end.port))
    stalled = read(client, stream="s")
    stalled.read_chunk()
    follower = read(client, stream="s", start="latest", follow=True)
    follower.schema  # noqa: B018 - begins it
    writer, _ = client.do_put(
        fl.FlightDescriptor.for_path("s"), pa.schema([("value", pa.binary())])
    )
    writer.write_batch(pa.RecordBatch.from_pydict({"value": [b"v"]}))
    started = time.monotonic()
    asyncio.run(front_end.stop())
    assert time.monotonic() - started < 8
    assert isinstance(error_of(lambda: list(follower)), ShuttingDownError)
    client.close()


def test_a_taken_port_is_a_clear_error(broker):
    """It names the address and the setting."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        front_end = FlightFrontEnd(broker, BrokerConfig(flight_port=port))
        with pytest.raises(InvalidConfigError, match=f"{port}.*flight_port"):
            asyncio.run(front_end.start())


def test_a_record_that_a_stopping_broker_took_may_be_stored(front_end, stream, monkeypatch):
    """Its call ends with shutting_down, which says of other requests that nothing was done."""

    def take_and_stop(_session, read):
        read()
        raise ShuttingDownError("the broker is stopping")

    monkeypatch.setattr(PutSession, "run", take_and_stop)
    appender = ConditionalAppender(
        ClusterClient(f"127.0.0.1:{front_end.port}", timeout_s=20), timeout_s=20
    )
    record = ProducerRecord(b"v", None, None, None, None)
    with pytest.raises(DisconnectedError, match=r"is stopping; .*unknown"):
        appender.append("s", 0, record, expected_offset=0)
    appender.close()

"""Hostile bytes on the Flight port: malformed protobuf, IPC and batches affect their sender only.

Speaks gRPC with raw bytes, because a stock Flight client would refuse to send them.
"""

import random
import re
import socket
import struct

import pyarrow as pa
import pytest

import strandline
from strandline.api.put import PutRequest
from strandline.api.wire import encode
from strandline.testing import Server

grpc = pytest.importorskip("grpc")

SERVICE = "/arrow.flight.protocol.FlightService/"
SUBJECT = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")


@pytest.fixture(scope="module")
def server():
    """One broker for all of it: it must outlive every test."""
    with Server() as url, strandline.connect(url) as client:
        client.create_stream("s")
        client.append("s", b"before", headers={"a": "b"}, key=b"k")
        yield url


@pytest.fixture(autouse=True)
def still_serves(server, caplog):
    """Check that a normal client is served, stored data is intact, and no bug was logged."""
    yield
    with strandline.connect(server) as client:
        client.append("s", b"after")
        batches = list(client.read("s"))
    for batch in batches:
        batch.validate(full=True)
        assert all(SUBJECT.fullmatch(subject) for subject in batch["subject"].to_pylist())
    assert batches[-1]["value"].to_pylist()[-1] == b"after"
    assert not [record for record in caplog.records if record.exc_info]


def field(number: int, data: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(number: int) -> bytes:
    """A protobuf integer."""
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def ipc_messages(batch: pa.RecordBatch) -> list[tuple[bytes, bytes]]:
    """Metadata and body of the IPC messages that carry a batch: schema, dictionaries, rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    messages = []
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    for message in reader:
        body = b"" if message.body is None else message.body.to_pybytes()
        messages.append((message.metadata.to_pybytes(), body))
    return messages


def flight_data(
    header: bytes, body: bytes, *, descriptor: bytes = b"", metadata: bytes = b""
) -> bytes:
    """A FlightData message."""
    parts = [field(1, descriptor)] if descriptor else []
    parts.append(field(2, header))
    if metadata:
        parts.append(field(3, metadata))
    return b"".join(parts) + field(1000, body)


PUT_TO_S = varint(1 << 3) + varint(2) + field(2, encode(PutRequest(stream="s")))


def batch(rows: int = 5) -> pa.RecordBatch:
    """A batch with every kind of column."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([b"v%d" % row for row in range(rows)]),
            pa.array([b"k", None] * rows)[:rows],
            pa.array([f"s.{row % 2}" for row in range(rows)]).dictionary_encode(),
            pa.array([[("h", b"x")]] * rows, pa.map_(pa.string(), pa.binary())),
        ],
        names=["value", "key", "subject", "headers"],
    )


def put(server: str, messages: list[bytes]) -> str:
    """Send raw messages as a put; return its end, or the code of a rejected batch."""
    with grpc.insecure_channel(str(server)) as channel:
        call = channel.stream_stream(SERVICE + "DoPut", lambda raw: raw, lambda raw: raw)(
            iter(messages), timeout=20
        )
        return outcome(call)


def outcome(call) -> str:
    """Drain a call; return its end. A call that hangs, or shows a bug, fails the test."""
    rejections = []
    try:
        for answer in call:
            rejections += re.findall(rb'"code":"(\w+)"', answer)
    except grpc.RpcError as error:
        code, details = error.code().name, error.details()
        assert code != "DEADLINE_EXCEEDED", "the call hung"
        assert "internal error" not in details
        return code
    return rejections[0].decode() if rejections else "OK"


def good_put() -> list[bytes]:
    """The messages of a put that is as it should be."""
    first, *rest = ipc_messages(batch())
    return [flight_data(*first, descriptor=PUT_TO_S), *(flight_data(*part) for part in rest)]


def test_the_forgery_is_good(server):
    """Uncorrupt, these bytes are a put: so the corrupt ones get as far as they can."""
    assert put(server, good_put()) == "OK"


@pytest.mark.parametrize("seed", range(40))
def test_flipped_bytes_in_ipc_metadata_and_bodies(server, seed):
    """Schema, dictionary and batch messages with random bytes overwritten."""
    source = random.Random(seed)
    messages = ipc_messages(batch())
    corrupt = []
    for header, body in messages:
        parts = [bytearray(header), bytearray(body)]
        for _ in range(source.randrange(1, 6)):
            part = source.choice([p for p in parts if p])
            part[source.randrange(len(part))] = source.randrange(256)
        corrupt.append((bytes(parts[0]), bytes(parts[1])))
    kept = source.randrange(len(messages) + 1)
    mixed = messages[:kept] + corrupt[kept:]
    put(
        server,
        [
            flight_data(*part, descriptor=PUT_TO_S if place == 0 else b"")
            for place, part in enumerate(mixed)
        ],
    )


@pytest.mark.parametrize(
    ("messages", "end"),
    [
        ([b""], "UNKNOWN"),
        ([b"\xff" * 100], "UNKNOWN"),
        ([flight_data(b"", b"", descriptor=PUT_TO_S)], "UNKNOWN"),
        ([flight_data(b"\xff" * 64, b"", descriptor=PUT_TO_S)], "UNKNOWN"),
        ([flight_data(b"", b"x" * 100, descriptor=PUT_TO_S)] * 3, "UNKNOWN"),
        (good_put()[1:], "UNKNOWN"),
        ([good_put()[0], good_put()[0]], "UNKNOWN"),
        ([good_put()[0], good_put()[-1]], "UNKNOWN"),
        ([good_put()[0], *[good_put()[1]] * 50], "OK"),
        ([*good_put(), flight_data(b"", b"", metadata=b"\xff")], "UNKNOWN"),
    ],
    ids=[
        "empty",
        "no protobuf",
        "no schema",
        "junk schema",
        "bodies only",
        "no descriptor",
        "two schemas",
        "no dictionary",
        "dictionaries only",
        "metadata alone",
    ],
)
def test_messages_out_of_order_or_missing(server, messages, end):
    """The call ends with an error (Flight has one code for all), and without records."""
    assert put(server, messages) == end


def test_lengths_that_lie(server):
    """A body shorter than its buffers say, or empty."""
    first, *before, (header, body) = ipc_messages(batch(1000))
    begin = [flight_data(*first, descriptor=PUT_TO_S), *(flight_data(*part) for part in before)]
    assert put(server, [*begin, flight_data(header, body)]) == "OK"
    for cut in (0, 1, 8, len(body) // 2, len(body) - 64):
        assert put(server, [*begin, flight_data(header, body[:cut])]) == "UNKNOWN"


def test_compressed_bodies_are_still_checked(server):
    """A compressed batch over the limit is rejected, also with a false size."""
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    big = pa.RecordBatch.from_pydict({"value": [b"\0" * (20 << 20)]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, big.schema, options=options) as writer:
        writer.write_batch(big)
    messages = [
        (part.metadata.to_pybytes(), b"" if part.body is None else part.body.to_pybytes())
        for part in pa.ipc.MessageReader.open_stream(sink.getvalue())
    ]
    (schema, _), (header, body) = messages
    assert len(body) < 1 << 20
    lying = bytearray(body)
    at = lying.rindex(struct.pack("<q", 20 << 20))  # the offsets before it have the number, too
    lying[at : at + 8] = struct.pack("<q", 1 << 50)
    ends = [
        put(server, [flight_data(schema, b"", descriptor=PUT_TO_S), flight_data(header, part)])
        for part in (body, bytes(lying))
    ]
    assert ends == ["record_too_large", "UNKNOWN"]


@pytest.mark.parametrize(
    "method", ["DoGet", "DoAction", "GetFlightInfo", "ListFlights", "GetSchema"]
)
def test_random_protobuf_to_every_method(server, method):
    """Tickets, actions and descriptors of random bytes, well-formed as protobuf or not."""
    source = random.Random(method)
    with grpc.insecure_channel(str(server)) as channel:
        is_stream = method.startswith(("Do", "List"))
        kind = channel.unary_stream if is_stream else channel.unary_unary
        call = kind(SERVICE + method, lambda raw: raw, lambda raw: raw)
        for _ in range(60):
            data = source.randbytes(source.randrange(80))
            wrapped = source.choice([data, field(1, data), field(2, data), field(1, b"{}") + data])
            if is_stream:
                outcome(call(wrapped, timeout=10))
            else:
                future = call.future(wrapped, timeout=10)
                assert future.code() is not grpc.StatusCode.DEADLINE_EXCEEDED


def test_bytes_that_are_not_even_http2(server):
    """Browsers, scanners and lost NATS clients."""
    host, port = server.split(":")
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"PUB s 5\r\nhello\r\n", b"\0" * 4096, b"\xff" * 9):
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(data)


def test_connections_that_end_in_the_middle(server):
    """A client that vanishes within a message, a hundred times."""
    for _ in range(100):
        with grpc.insecure_channel(str(server)) as channel:
            call = channel.stream_stream(SERVICE + "DoPut", lambda raw: raw, lambda raw: raw)(
                iter(good_put()), timeout=20
            )
            call.cancel()

"""How fast one gRPC client is sent records: Liftbridge's Subscribe, 100 B a record.

The client is native in what matters: it reads HTTP/2 frames from a socket, counts the bytes of
messages and decodes nothing, so that the broker is what is measured. Prints records a second and
the broker's CPU per record, for frames as clients take them by default and for large ones.

    python -m benchmarks.liftbridge [--records N]
"""

import argparse
import socket
import statistics
import time
from typing import NamedTuple

import grpc
import pyarrow as pa
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes

import strandline
from strandline.frontends.grpc._generated import liftbridge_pb2 as pb
from strandline.frontends.grpc.framing import framed
from strandline.testing import ProcessServer

VALUE_BYTES = 100
BATCH = 10_000
WINDOW = (1 << 31) - 1
FRAME_HEADER_BYTES = 9
DATA, HEADERS, END_STREAM = 0, 1, 1
RUNS = 3
REQUEST = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/proto.API/Subscribe"),
    (b":authority", b"benchmark"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
]


class Run(NamedTuple):
    """One subscription, from the first record to the last."""

    message_bytes: int
    seconds: float
    broker_cpu_s: float


def cpu_s(pid: int) -> float:
    """CPU seconds a process has used."""
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123  not a file of ours
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def subscribe(port: int, frame_bytes: int) -> socket.socket:
    """A socket on which a subscription to everything begins to come in."""
    client = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    client.initiate_connection()
    client.update_settings(
        {SettingCodes.INITIAL_WINDOW_SIZE: WINDOW, SettingCodes.MAX_FRAME_SIZE: frame_bytes}
    )
    client.increment_flow_control_window(WINDOW - 65_535)
    client.send_headers(1, REQUEST)
    request = pb.SubscribeRequest(
        stream="s", startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST
    )
    client.send_data(1, framed(request.SerializeToString()), end_stream=True)
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(client.data_to_send())
    return connection


def drain(connection: socket.socket) -> int:
    """Read frames to the end of the stream; bytes of messages."""
    reader = connection.makefile("rb", buffering=1 << 20)
    message_bytes = 0
    while header := reader.read(FRAME_HEADER_BYTES):
        size, kind, flags = int.from_bytes(header[:3], "big"), header[3], header[4]
        reader.read(size)
        if kind == DATA:
            message_bytes += size
        if kind == HEADERS and flags & END_STREAM:
            break
    return message_bytes


def measure(server: ProcessServer, frame_bytes: int) -> Run:
    """One run."""
    before, started = cpu_s(server.pid), time.perf_counter()
    with subscribe(server.ready["grpc_port"], frame_bytes) as connection:
        message_bytes = drain(connection)
    return Run(message_bytes, time.perf_counter() - started, cpu_s(server.pid) - before)


def fill(server: ProcessServer, records: int) -> None:
    """Make the stream and its records."""
    with grpc.insecure_channel(f"127.0.0.1:{server.ready['grpc_port']}") as channel:
        create = channel.unary_unary("/proto.API/CreateStream")
        create(pb.CreateStreamRequest(name="s", subject="s").SerializeToString(), timeout=30)
    values = pa.array([b"x" * VALUE_BYTES] * BATCH, pa.binary())
    with strandline.connect(server.flight) as client:
        for _ in range(records // BATCH):
            client.append_batch("s", pa.record_batch([values], ["value"]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    records = parser.parse_args().records // BATCH * BATCH
    server = ProcessServer(arguments=("--grpc-port", "0", "--log-level", "warning"))
    with server:
        fill(server, records)
        for frame_bytes in (16 << 10, 1 << 20):
            runs = [measure(server, frame_bytes) for _ in range(RUNS)]
            rate = statistics.median(records / run.seconds for run in runs)
            cpu = statistics.median(run.broker_cpu_s / records * 1e6 for run in runs)
            size = runs[0].message_bytes / records
            print(
                f"frames of {frame_bytes >> 10} KiB: {rate:,.0f} records/s of {size:.0f} B, "
                f"{cpu:.2f} µs of the broker's CPU a record (median of {RUNS})"
            )


if __name__ == "__main__":
    main()

"""The speed of one gRPC subscriber: Liftbridge's Subscribe, 100 B a record.

Run it from the root of the repository: `python -m benchmarks.liftbridge`. The client is native in
what matters: it reads HTTP/2 frames from a socket, counts the bytes of messages and decodes
nothing, so that the broker is what is measured: records a second and the broker's CPU per record,
for frames as clients take them by default and for large ones.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import time
from dataclasses import dataclass
from typing import Final

import grpc
import pyarrow as pa
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes

import strandline
from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings
from benchmarks.peers.process import LOOPBACK, cpu_seconds, fresh_dir
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.grpc_messages import framed
from strandline.testing import ProcessServer

SYSTEM: Final = "Subscribe"
RATE_AIM: Final = 100_000
MICROSECONDS: Final = 1e6
INTRO: Final = (
    "One client subscribes to {records:,} records of {size} bytes in the broker's page cache, from "
    "the first to the last. It counts the bytes of messages and decodes nothing. CPU: of the "
    "broker, for each record."
)
VALUE_BYTES = 100
BATCH = 10_000
FRAME_KIB = (16, 1024)
"""What clients take by default, and what they may ask for."""
WINDOW = (1 << 31) - 1
FRAME_HEADER_BYTES = 9
DATA, HEADERS, END_STREAM = 0, 1, 1
REQUEST = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/proto.API/Subscribe"),
    (b":authority", b"benchmark"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
]


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
    connection = socket.create_connection((LOOPBACK, port))
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


@dataclass(frozen=True)
class Run:
    """One subscription, from the first record to the last."""

    frame_kib: int
    message_bytes: int
    records_per_s: float
    cpu_us: float


def subscribe_once(server: ProcessServer, frame_kib: int, records: int) -> Run:
    """One run."""
    before, started = cpu_seconds(server.pid), time.perf_counter()
    with subscribe(server.ready["grpc_port"], frame_kib << 10) as connection:
        message_bytes = drain(connection)
    seconds = time.perf_counter() - started
    if message_bytes < records * VALUE_BYTES:
        raise SystemExit(f"the subscription ended after {message_bytes} bytes of messages")
    cpu_us = (cpu_seconds(server.pid) - before) / records * MICROSECONDS
    run = Run(frame_kib, message_bytes, records / seconds, cpu_us)
    print(f"  frames of {frame_kib:>4} KiB {run.records_per_s:>11,.0f} records/s", flush=True)
    return run


def fill(server: ProcessServer, records: int) -> None:
    """Make the stream and its records."""
    with grpc.insecure_channel(f"{LOOPBACK}:{server.ready['grpc_port']}") as channel:
        create = channel.unary_unary("/proto.API/CreateStream")
        create(pb.CreateStreamRequest(name="s", subject="s").SerializeToString(), timeout=30)
    values = pa.array([b"x" * VALUE_BYTES] * BATCH, pa.binary())
    with strandline.connect(server.flight) as client:
        for _ in range(records // BATCH):
            client.append_batch("s", pa.record_batch([values], ["value"]))


def measure(args: argparse.Namespace, records: int) -> list[Run]:
    """All runs, on one broker."""
    preparation, runs = runner.preparation_of(args), []
    arguments = ("--grpc-port", "0", "--log-level", "warning")
    with (
        fresh_dir(args.data_root, "liftbridge") as folder,
        ProcessServer(folder, arguments=arguments) as server,
    ):
        fill(server, records)
        for run in range(args.runs):
            for frame_kib in FRAME_KIB if run % 2 else reversed(FRAME_KIB):
                preparation.run()
                runs.append(subscribe_once(server, frame_kib, records))
    return runs


def listed(runs: list[Run], records: int) -> list[Figure]:
    """Rates with each size of frames."""
    found = []
    for frame_kib in FRAME_KIB:
        same = [run for run in runs if run.frame_kib == frame_kib]
        cpu_us = statistics.median(run.cpu_us for run in same)
        size = same[0].message_bytes / records
        note = f"messages of {size:.0f} B, {cpu_us:.2f} µs of CPU"
        rates = [run.records_per_s for run in same]
        found.append(Figure(f"frames of {frame_kib} KiB", SYSTEM, "records/s", rates, note))
    return found


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.liftbridge",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--records", type=int, default=1_000_000, help="in the stream (1000000)")
    add("--runs", type=int, default=5, help="with each size of frames; medians are reported (5)")
    runner.add_place_options(parser)
    return parser.parse_args()


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    records = max(1, args.records // BATCH) * BATCH
    host = machine.describe(args.data_root, VALUE_BYTES)
    rates = listed(measure(args, records), records)
    findings = Findings(
        name="liftbridge",
        title="Liftbridge's Subscribe to one client",
        intro=INTRO.format(records=records, size=VALUE_BYTES),
        machine=host,
        settings={"records": records, "bytes": VALUE_BYTES},
        figures=rates,
        aims=[Aim(f"{SYSTEM}, {f.case}", RATE_AIM, f.median, "records/s") for f in rates],
        module="benchmarks.liftbridge",
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()

"""Idle subscribers: what each costs the broker in memory and CPU while nothing is published.

Run it from the root of the repository: `python -m benchmarks.idle`. 1,000 subscriptions of
Liftbridge's API to a stream without records, on one connection and on a connection each.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Final

import grpc
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ResponseReceived

from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings
from benchmarks.peers.process import LOOPBACK, cpu_seconds, fresh_dir
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.grpc_messages import framed
from strandline.testing import ProcessServer

STREAM: Final = "quiet"
CPU_AIM: Final = 5.0
MEMORY_AIM_KIB: Final = 50.0
KIB: Final = 1024
SETTLE_S: Final = 2.0
TIMEOUT_S: Final = 30.0
REQUEST: Final = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/proto.API/Subscribe"),
    (b":authority", b"benchmark"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
]
INTRO: Final = (
    "{count} subscriptions that wait for records which never come. Memory: growth of the broker's "
    "resident set, over the subscriptions; CPU: of one core, over {seconds:g} s, all together."
)


def resident_bytes(pid: int) -> int:
    """The resident set of a process."""
    with open(f"/proc/{pid}/status") as status:  # noqa: PTH123  not a file of ours
        line = next(line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) * KIB


def subscribe(port: int, count: int) -> socket.socket:
    """A connection on which so many subscriptions have begun."""
    client = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    client.initiate_connection()
    request = framed(
        pb.SubscribeRequest(stream=STREAM, startPosition=pb.NEW_ONLY).SerializeToString()
    )
    connection = socket.create_connection((LOOPBACK, port), timeout=TIMEOUT_S)
    for number in range(count):
        client.send_headers(2 * number + 1, REQUEST)
        client.send_data(2 * number + 1, request, end_stream=True)
        connection.sendall(client.data_to_send())
    begun = 0
    while begun < count:  # each is answered with an empty message at once
        data = connection.recv(1 << 20)
        if not data:
            raise SystemExit(f"the broker hung up after {begun} of {count} subscriptions")
        begun += sum(isinstance(each, ResponseReceived) for each in client.receive_data(data))
        connection.sendall(client.data_to_send())
    return connection


@contextlib.contextmanager
def subscribed(port: int, count: int, connections: int) -> Iterator[None]:
    """So many subscriptions, over so many connections."""
    with contextlib.ExitStack() as stack:
        for number in range(connections):
            share = count // connections + (number < count % connections)
            stack.enter_context(subscribe(port, share))
        yield


def measure(
    server: ProcessServer, connections: int, *, count: int, seconds: float
) -> tuple[float, float]:
    """KiB of memory for each, and per cent of a core for all."""
    port = server.ready["grpc_port"]
    time.sleep(SETTLE_S)
    before = resident_bytes(server.pid)
    with subscribed(port, count, connections):
        time.sleep(SETTLE_S)
        memory_kib = (resident_bytes(server.pid) - before) / KIB / count
        used_s, started_s = cpu_seconds(server.pid), time.monotonic()
        time.sleep(seconds)
        used_s = cpu_seconds(server.pid) - used_s
        return memory_kib, used_s / (time.monotonic() - started_s) * 100


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.idle",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--count", type=int, default=1000, help="subscriptions (1000)")
    add("--seconds", type=float, default=20.0, help="to look at the CPU (20)")
    runner.add_place_options(parser)
    return parser.parse_args()


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    host = machine.describe(args.data_root, 2048)
    listed, aims = [], []
    for connections in (1, args.count):
        with fresh_dir(args.data_root, "idle") as folder:
            server = ProcessServer(folder, arguments=("--grpc-port", "0", "--log-level", "warning"))
            with server:
                address = f"{LOOPBACK}:{server.ready['grpc_port']}"
                with grpc.insecure_channel(address) as channel:
                    create = channel.unary_unary("/proto.API/CreateStream")
                    request = pb.CreateStreamRequest(name=STREAM, subject=STREAM)
                    create(request.SerializeToString(), timeout=TIMEOUT_S)
                found = measure(server, connections, count=args.count, seconds=args.seconds)
        case = f"{connections} connection{'s' if connections > 1 else ''}"
        listed.append(Figure(f"memory of each, {case}", "strandline", "KiB", [found[0]]))
        listed.append(Figure(f"CPU of all, {case}", "strandline", "% of a core", [found[1]]))
        aims.append(Aim(f"memory, {case}", MEMORY_AIM_KIB, found[0], "KiB", at_most=True))
        aims.append(Aim(f"CPU, {case}", CPU_AIM, found[1], "% of a core", at_most=True))
    findings = Findings(
        name="idle",
        title=f"{args.count} idle subscribers",
        intro=INTRO.format(count=args.count, seconds=args.seconds),
        machine=host,
        settings={"subscriptions": args.count, "seconds": args.seconds},
        figures=listed,
        aims=aims,
        module="benchmarks.idle",
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()

"""The link between brokers: frames of our own against gRPC, over loopback, two processes.

Run it from the root of the repository: `python -m benchmarks.peer_link`. The sender keeps a window
of messages under way, the receiver in its own process counts them and acknowledges every quarter
of a window; a window of one is a round trip. gRPC carries the same bytes in one bidirectional
stream, without protobuf: its asyncio form, which a broker's loop would use, and its threaded one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
import uvloop

from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings
from strandline.broker.peers.frame import Frame
from strandline.broker.peers.handshake import PeerIdentity
from strandline.broker.peers.link import PeerLinks
from strandline.broker.peers.peer import Address
from strandline.types import BrokerId

OURS: Final = "strandline"
AIO: Final = "grpc.aio"
THREADS: Final = "grpc, threads"
SYSTEMS: Final = (OURS, AIO, THREADS)
SENDER, RECEIVER = BrokerId(1), BrokerId(2)
DATA, ACK, END = 1, 2, 3
LAST: Final = b""
METHOD: Final = "/strandline.PeerLink/Messages"
OPTIONS: Final = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
]
START_TIMEOUT_S = 30.0
MIB: Final = 1 << 20
INTRO = (
    "One sender, one receiver, each a process of its own on the same machine; {runs} runs of "
    "{seconds:g} s of each, in turn. Messages of 100 bytes and of 1 MiB; 'round trip' is a window "
    "of one message. Ours runs on uvloop and checks a CRC-32C over every byte."
)
EPILOG = """\
example:
  python -m benchmarks.peer_link --runs 1 --seconds 1 --label brief
"""


@dataclass(frozen=True)
class Load:
    """The load of one run."""

    case: str
    size_bytes: int
    window: int
    seconds: float

    @property
    def every(self) -> int:
        """Messages per acknowledgement."""
        return max(1, self.window // 4)


def loads(seconds: float) -> list[Load]:
    """Every case."""
    return [
        Load("100 B, one way", 100, 1024, seconds),
        Load("1 MiB, one way", MIB, 32, seconds),
        Load("100 B, round trip", 100, 1, seconds),
    ]


@dataclass(frozen=True)
class Rate:
    """The rate and CPU time of one run; CPU time is steadier on a shared machine."""

    messages_s: float
    cpu_us: float
    """Of both processes, for each message."""


class Meter:
    """Time, and the CPU time of two processes, from now on."""

    def __init__(self, receiver_pid: int) -> None:
        self._pids = (os.getpid(), receiver_pid)
        self._cpu_s = self._used_s()
        self.begin = time.perf_counter()

    def rate(self, messages: int) -> Rate:
        """So far."""
        seconds = time.perf_counter() - self.begin
        cpu_s = self._used_s() - self._cpu_s
        return Rate(messages / seconds, cpu_s * 1e6 / messages)

    def _used_s(self) -> float:
        ticks = 0
        for pid in self._pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])  # utime and stime
        return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Child:
    """The process of a receiver."""

    port: int
    pid: int


# Ours


class Receiver:
    """Counts frames and acknowledges."""

    def __init__(self, every: int) -> None:
        self.links = PeerLinks(_identity(RECEIVER), self)
        self._every = every
        self._count = 0

    def on_peer_back(self, peer: BrokerId) -> None:
        """The sender is there."""

    def on_peer_lost(self, peer: BrokerId) -> None:
        """The sender is done; whoever started us ends us."""

    def on_frame(self, peer: BrokerId, frame: Frame) -> None:
        """Count; the last frame is acknowledged at once."""
        if frame.channel == DATA:
            self._count += 1
        if frame.channel == END or self._count % self._every == 0:
            self.links.send(peer, ACK, b"%d" % self._count)


class Sender:
    """Keeps the window full until the time is over."""

    def __init__(self, load: Load) -> None:
        self.links = PeerLinks(_identity(SENDER), self)
        self._load = load
        small = load.size_bytes < 1024
        self._header = bytes(load.size_bytes) if small else b"header"
        self._attachments = () if small else (bytes(load.size_bytes),)
        self._loop = asyncio.get_running_loop()
        self._sent = self.acked = 0
        self._stop_at = 0.0
        self._peer: BrokerId | None = None
        self.back = asyncio.Event()
        self.done = asyncio.Event()

    def on_peer_back(self, peer: BrokerId) -> None:
        """The receiver is there."""
        self._peer = peer
        self.back.set()

    def on_peer_lost(self, peer: BrokerId) -> None:
        """A run without its receiver has no result."""
        raise RuntimeError(f"the receiver, broker {peer}, is gone")

    def on_frame(self, peer: BrokerId, frame: Frame) -> None:
        """An acknowledgement makes room."""
        assert peer == self._peer, "there is one receiver"
        self.acked = int(frame.header)
        self._fill()

    def begin(self) -> None:
        """Send for as long as the load says."""
        self._stop_at = self._loop.time() + self._load.seconds
        self._fill()

    def _fill(self) -> None:
        if self._loop.time() >= self._stop_at:
            if self.acked == self._sent:
                self.done.set()
            elif self._stop_at:
                self.links.send(RECEIVER, END, LAST)
            return
        while self._sent - self.acked < self._load.window:
            if not self.links.send(RECEIVER, DATA, self._header, attachments=self._attachments):
                raise RuntimeError("the receiver takes nothing")
            self._sent += 1


def _identity(broker: BrokerId) -> PeerIdentity:
    return PeerIdentity(cluster_id="benchmark", broker_id=broker, incarnation="only")


async def send_ours(load: Load) -> Rate:
    """One run."""
    sender = Sender(load)
    await sender.links.start()
    with serving(OURS, load, sender.links.port) as child:
        sender.links.add_peer(RECEIVER, Address("127.0.0.1", child.port))
        async with asyncio.timeout(START_TIMEOUT_S + load.seconds):
            await sender.back.wait()
            meter = Meter(child.pid)
            sender.begin()
            await sender.done.wait()
        rate = meter.rate(sender.acked)
        await sender.links.stop()
    return rate


async def receive_ours(every: int, peer_port: int) -> None:
    """Until it is ended."""
    receiver = Receiver(every)
    await receiver.links.start()
    receiver.links.add_peer(SENDER, Address("127.0.0.1", peer_port))
    print(receiver.links.port, flush=True)
    await asyncio.Event().wait()


# gRPC


async def send_aio(load: Load) -> Rate:
    """One run."""
    message = bytes(load.size_bytes)
    sent = acked = 0
    room = asyncio.Semaphore(load.window)
    with serving(AIO, load, 0) as child:
        target = f"127.0.0.1:{child.port}"
        async with grpc.aio.insecure_channel(target, options=OPTIONS) as channel:
            await channel.channel_ready()
            call = channel.stream_stream(METHOD)()
            meter = Meter(child.pid)

            async def write() -> None:
                nonlocal sent
                while time.perf_counter() - meter.begin < load.seconds:
                    await room.acquire()
                    await call.write(message)
                    sent += 1
                await call.write(LAST)
                await call.done_writing()

            writer = asyncio.create_task(write())
            async for ack in call:
                for _ in range(int(ack) - acked):
                    room.release()
                acked = int(ack)
            await writer
            return meter.rate(acked)


async def receive_aio(every: int) -> None:
    """Until it is ended."""

    async def serve(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        count = 0
        async for message in requests:
            count += message != LAST
            if message == LAST or count % every == 0:
                yield b"%d" % count

    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((_Handler(serve),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


def send_threads(load: Load) -> Rate:
    """One run."""
    message = bytes(load.size_bytes)
    acked = 0
    room = threading.Semaphore(load.window)
    with (
        serving(THREADS, load, 0) as child,
        grpc.insecure_channel(f"127.0.0.1:{child.port}", options=OPTIONS) as channel,
    ):
        grpc.channel_ready_future(channel).result(START_TIMEOUT_S)
        meter = Meter(child.pid)

        def messages() -> Iterator[bytes]:
            while time.perf_counter() - meter.begin < load.seconds:
                room.acquire()
                yield message
            yield LAST

        for ack in channel.stream_stream(METHOD)(messages()):
            if int(ack) > acked:
                room.release(int(ack) - acked)
            acked = int(ack)
        return meter.rate(acked)


def receive_threads(every: int) -> None:
    """Until it is ended."""

    def serve(requests: Iterator[bytes], _: object) -> Iterator[bytes]:
        count = 0
        for message in requests:
            count += message != LAST
            if message == LAST or count % every == 0:
                yield b"%d" % count

    server = grpc.server(ThreadPoolExecutor(2), options=OPTIONS)
    server.add_generic_rpc_handlers((_Handler(serve),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio ships no types
    """Bytes in, bytes out."""

    def __init__(self, serve: object) -> None:
        self._handler = grpc.stream_stream_rpc_method_handler(serve)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """The one method there is."""
        return self._handler if handler_call_details.method == METHOD else None


# Running


@contextlib.contextmanager
def serving(system: str, load: Load, peer_port: int) -> Iterator[Child]:
    """A receiver in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.peer_link", "--serve", system]
    command += ["--every", str(load.every), "--peer-port", str(peer_port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None, "piped"
        try:
            yield Child(int(process.stdout.readline()), process.pid)
        finally:
            process.kill()


def serve(args: argparse.Namespace) -> None:
    """Run the receiver's process."""
    if args.serve == OURS:
        uvloop.run(receive_ours(args.every, args.peer_port))
    elif args.serve == AIO:
        asyncio.run(receive_aio(args.every))
    else:
        receive_threads(args.every)


def rate_of(system: str, load: Load) -> Rate:
    """One run."""
    if system == OURS:
        return uvloop.run(send_ours(load))
    if system == AIO:
        return asyncio.run(send_aio(load))
    return send_threads(load)


def figure(load: Load, system: str, rates: list[Rate]) -> Figure:
    """In the unit that suits the case."""
    found = [rate.messages_s for rate in rates]
    note = f"{statistics.median(rate.cpu_us for rate in rates):,.1f} us of CPU a message, both ends"
    if load.window == 1:
        return Figure(load.case, system, "us", [1e6 / rate for rate in found], note)
    if load.size_bytes >= MIB:
        scaled = [rate * load.size_bytes / MIB for rate in found]
        return Figure(load.case, system, "MiB/s", scaled, note)
    return Figure(load.case, system, "messages/s", found, note)


def aims(found: list[Figure]) -> list[Aim]:
    """Ours over the better form of gRPC, case by case."""
    listed = []
    for mine in found:
        others = [each for each in found if each.case == mine.case and each.system != OURS]
        if mine.system != OURS or not others:
            continue
        if mine.unit == "us":
            ratio = min(each.median for each in others) / mine.median
        else:
            ratio = mine.median / max(each.median for each in others)
        listed.append(Aim(f"{mine.case}: how much better than gRPC", 1.5, ratio, "x"))
    return listed


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peer_link",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--runs", type=int, default=3, help="runs of each (3)")
    add("--seconds", type=float, default=3.0, help="length of a run (3)")
    add("--serve", choices=SYSTEMS, help=argparse.SUPPRESS)
    add("--every", type=int, default=1, help=argparse.SUPPRESS)
    add("--peer-port", type=int, default=0, help=argparse.SUPPRESS)
    runner.add_place_options(parser)
    return parser.parse_args()


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    if args.serve:
        serve(args)
        return
    host = machine.describe(args.data_root, 100)
    found: list[Figure] = []
    for load in loads(args.seconds):
        rates: dict[str, list[Rate]] = {system: [] for system in SYSTEMS}
        for _ in range(args.runs):
            for system in SYSTEMS:
                rates[system].append(rate_of(system, load))
                last = rates[system][-1].messages_s
                print(f"  {load.case}, {system}: {last:,.0f}/s", flush=True)
        found += [figure(load, system, rates[system]) for system in SYSTEMS]
    findings = Findings(
        name="peer-link",
        title="The link between brokers",
        intro=INTRO.format(**vars(args)),
        machine=host,
        settings={"window, 100 B": 1024, "window, 1 MiB": 32, "acknowledged": "every quarter"},
        figures=found,
        aims=aims(found),
        module="benchmarks.peer_link",
        versions={"grpcio": grpc.__version__, "uvloop": uvloop.__version__},
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()

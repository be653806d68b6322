"""Stock NATS clients side by side with JetStream: publishing, reading, buckets, idle consumers.

Run it from the root of the repository: `python -m benchmarks.jetstream_clients`. The `nats` command
(nats.go) publishes and reads at the broker's nats-server, at its ingest listener, and at a
nats-server with JetStream (file, R1, its default: a sync every two minutes), in turns; what is
published also at one that syncs every message. Beside each rate stands the CPU that the server
used for a message, with that of its own nats-server: on a busy machine it says more than the rate.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import broker as brokers
from benchmarks import figures, machine, runner
from benchmarks.aims import Aim
from benchmarks.figures import Figure, Findings
from benchmarks.peers import jetstream
from benchmarks.peers.natswire import NatsRequests
from benchmarks.peers.process import (
    LOOPBACK,
    cpu_seconds,
    find_program,
    free_ports,
    fresh_dir,
    server,
    wait_for_port,
)

HOW_TO_GET: Final = "`go install github.com/nats-io/natscli/nats@v0.5.1`, and put it on the PATH"
STREAM: Final = "benchstream"
SEVERAL: Final = "benchseveral"
"""A stream with several partitions, whose consumers read them all; JetStream's is one as any."""
PARTITIONS, SUBJECTS = 4, 64
BUCKET: Final = "benchbucket"
SERVER, LISTENER = "strandline, nats-server", "strandline, ingest listener"
PEER, SYNCED_PEER = "JetStream", "JetStream, sync always"
RATE: Final = re.compile(r"stats: ([\d,]+) msgs/sec")
COMMAND_TIMEOUT_S: Final = 300
CONSUMERS, ACTIVE = 1_000, 10
TASKS: Final = 64
"""That put and get at the same time."""
INTRO: Final = (
    "{messages:,} messages of 256 bytes are read, {published:,} are published. Strandline's "
    "publishes are acknowledged when they are synced; JetStream's when they are written, its "
    "default, or when they are synced, where a row says so. At the ingest listener the hop through "
    "nats-server is left out. Where a case names partitions, a consumer of ours reads all "
    "{partitions} of a stream, and JetStream's a stream of the same messages."
)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.jetstream_clients", description=__doc__
    )
    add = parser.add_argument
    add("--messages", type=int, default=500_000, help="messages to read (500000)")
    add("--published", type=int, default=100_000, help="messages of each publishing case (100000)")
    add("--no-publishing", action="store_true", help="leave out the cases that publish")
    add("--runs", type=int, default=3, help="runs of each case (3)")
    add("--idle-s", type=float, default=10.0, help="seconds of the idle measurement (10)")
    runner.add_place_options(parser)
    return parser.parse_args()


class Measured(NamedTuple):
    """One run of a case."""

    rate: float
    """Messages a second."""
    cpu_us: float
    """CPU of the server and its children for each."""


Runs = dict[str, dict[str, list[Measured]]]
"""By case and system."""


class Client:
    """The `nats` command against one server.

    Args:
        program: its path.
        port: the server's.
        pid: its process.
        home: where it keeps its settings.
    """

    def __init__(self, program: str, port: int, pid: int, home: Path) -> None:
        self.port = port
        self.pid = pid
        self._words = [program, "--server", f"nats://{LOOPBACK}:{port}"]
        self._env = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home)}

    def rate(self, *words: str) -> float:
        """Run a benchmark of the command; return its messages per second."""
        done = subprocess.run(
            [*self._words, "bench", *words, "--no-progress"],
            env=self._env,
            capture_output=True,
            text=True,
            check=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        return float(RATE.findall(done.stdout + done.stderr)[-1].replace(",", ""))

    def measured(self, count: int, *words: str) -> Measured:
        """Run a benchmark of the command with a number of messages."""
        before = cpu_seconds(self.pid)
        rate = self.rate(*words, "--msgs", str(count))
        return Measured(rate, 1e6 * (cpu_seconds(self.pid) - before) / count)

    def ask(self, operation: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request of the JetStream API."""
        with contextlib.closing(NatsRequests(LOOPBACK, self.port)) as connection:
            payload = json.dumps(body).encode() if body is not None else b""
            return connection.request(f"$JS.API.{operation}", payload)

    def make_stream(self, name: str = STREAM, subject: str = "bench.>") -> None:
        """Make a stream anew."""
        self.ask(f"STREAM.DELETE.{name}")
        config = {"name": name, "subjects": [subject], "allow_atomic": True}
        found = self.ask(f"STREAM.CREATE.{name}", config)
        if "error" in found:
            raise RuntimeError(found)

    def make_bucket(self) -> None:
        """Make the bucket anew."""
        name = f"KV_{BUCKET}"
        self.ask(f"STREAM.DELETE.{name}")
        settings = {"max_msgs_per_subject": 1, "allow_direct": True, "allow_rollup_hdrs": True}
        config = {"name": name, "subjects": [f"$KV.{BUCKET}.>"], "deny_delete": True, **settings}
        found = self.ask(f"STREAM.CREATE.{name}", config)
        if "error" in found:
            raise RuntimeError(found)


def publishing_cases() -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each case that publishes, and the words of the command."""
    for size in ("256B", "2KiB"):
        for clients in (1, 8):
            for how in ("async", "atomic"):
                words = ["js", "pub", how, "bench.x", "--size", size, "--clients", str(clients)]
                yield f"publish {how}, {size}, {clients} clients", words


def reading_cases() -> Iterator[tuple[str, str, list[str]]]:
    """Yield the name of each case that reads, its stream, and the words of the command."""
    yield "ordered, acks none", STREAM, ["js", "ordered", "--size", "256B", "--stream", STREAM]
    for stream, where in ((STREAM, ""), (SEVERAL, f" of {PARTITIONS} partitions")):
        for how in ("consume", "fetch"):
            for acks in ("none", "explicit"):
                words = ["js", how, "--size", "256B", "--acks", acks, "--stream", stream]
                yield f"{how}{where}, acks {acks}", stream, words


def fill(client: Client, count: int, *, is_first: bool) -> None:
    """Fill the streams that are read: that of one partition anew, the other one once."""
    client.make_stream()
    several = ["several", "--multisubject", "--multisubjectmax", str(SUBJECTS)]
    for stream, to in ((STREAM, ["bench.x"]), *([(SEVERAL, several)] if is_first else [])):
        words = ["js", "pub", "async", *to, "--stream", stream, "--size", "256B"]
        client.rate(*words, "--msgs", str(count))


def measure(args: argparse.Namespace, clients: dict[str, Client]) -> Runs:
    """Return what was measured by case and system."""
    runs: Runs = {}

    def note(case: str, system: str, found: Measured) -> None:
        runs.setdefault(case, {}).setdefault(system, []).append(found)
        print(f"  {case}, {system}: {found.rate:,.0f}/s, {found.cpu_us:.1f} µs", flush=True)

    readers = {system: client for system, client in clients.items() if system != SYNCED_PEER}
    for run in range(args.runs):
        for case, words in [] if args.no_publishing else publishing_cases():
            for system, client in clients.items():
                client.make_stream()
                note(case, system, client.measured(args.published, *words))
        for client in (clients[SERVER], clients[PEER]):
            fill(client, args.messages, is_first=not run)
        for case, stream, words in reading_cases():
            for system, client in readers.items():
                client.ask(f"CONSUMER.DELETE.{stream}.nats-bench")
                note(case, system, client.measured(args.messages, *words))
        for system, client in readers.items():
            client.make_bucket()
            found = asyncio.run(bucket_runs(client, args.published // 10))
            for case, each in found.items():
                note(f"bucket: {case}", system, each)
        print(f"run {run + 1} of {args.runs} is done", flush=True)
    return runs


async def bucket_runs(server: Client, count: int) -> dict[str, Measured]:
    """Put, get and watch keys with nats.py, which makes no bucket of the command's kind.

    The command's own benchmark of buckets asks for a limit of bytes, which buckets here lack.
    """
    import nats

    client = await nats.connect(f"nats://{LOOPBACK}:{server.port}")
    bucket, value = await client.jetstream().key_value(BUCKET), bytes(256)
    parts = [range(first, count, TASKS) for first in range(TASKS)]

    async def put(keys: range) -> None:
        for key in keys:
            await bucket.put(f"k{key}", value)

    async def get(keys: range) -> None:
        for key in keys:
            await bucket.get(f"k{key}")

    async def watch(keys: range) -> None:
        watcher = await bucket.watchall()
        for _ in keys:
            await watcher.updates(timeout=COMMAND_TIMEOUT_S)
        await watcher.stop()

    found = {}
    for name, action, work in (("put", put, parts), ("get", get, parts), ("watch", watch, None)):
        before, started = cpu_seconds(server.pid), time.perf_counter()
        await asyncio.gather(*map(action, work or [range(count)]))
        rate = count / (time.perf_counter() - started)
        found[name] = Measured(rate, 1e6 * (cpu_seconds(server.pid) - before) / count)
    await client.close()
    return found


def idle_cpu(client: Client, pid: int, seconds: float) -> float:
    """Return the share of a core, in percent, that 1,000 consumers take of which 10 have pulls."""
    client.make_stream()
    for number in range(CONSUMERS):
        config = {"durable_name": f"c{number}", "ack_policy": "explicit"}
        body = {"stream_name": STREAM, "config": config}
        found = client.ask(f"CONSUMER.CREATE.{STREAM}.c{number}", body)
        if "error" in found:
            raise RuntimeError(found)
    with contextlib.ExitStack() as stack:
        for number in range(ACTIVE):
            connection = NatsRequests(LOOPBACK, client.port)
            stack.callback(connection.close)
            beat = '"idle_heartbeat":5000000000'
            pull = f'{{"batch":100,"expires":{int((seconds + 20) * 1e9)},{beat}}}'.encode()
            to = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.c{number}"
            line = f"PUB {to} {connection.inbox}.0 {len(pull)}\r\n".encode()
            connection.send(line + pull + b"\r\n")
        time.sleep(2)
        before, started = cpu_seconds(pid), time.perf_counter()
        time.sleep(seconds)
        used = cpu_seconds(pid) - before
        return 100 * used / (time.perf_counter() - started)


@contextlib.contextmanager
def peer(root: Path, sync_interval: str) -> Iterator[tuple[int, int]]:
    """A nats-server with JetStream; its port and process id."""
    [port] = free_ports(1)
    with fresh_dir(root, "jetstream") as folder:
        config = jetstream.write_config(folder, port, folder / "store", sync_interval)
        log = folder / "server.log"
        with server([jetstream.find_nats_server(), "-c", str(config)], log) as process:
            wait_for_port(process, port, log)
            yield port, process.pid


def figures_of(runs: Runs) -> list[Figure]:
    """The rates, then the CPU."""

    def figures(unit: str, value: Callable[[Measured], float]) -> list[Figure]:
        return [
            Figure(case, system, unit, list(map(value, each)))
            for case, found in runs.items()
            for system, each in found.items()
        ]

    rates = figures("messages/s", lambda run: run.rate)
    return rates + figures("µs of CPU a message", lambda run: run.cpu_us)


def aims_of(medians: dict[str, dict[str, float]], idle: float) -> list[Aim]:
    """What should be reached, at the better of our two ports."""
    wanted = {"ordered": 1.5, "consume, acks none": 1.5, "fetch, acks none": 1.5}
    aims = []
    for case, found in medians.items():
        least = next((aim for name, aim in wanted.items() if case.startswith(name)), 1.0)
        for system in (SERVER, LISTENER):
            ratio = found[system] / found[PEER]
            aims.append(Aim(f"{case}, {system}, to JetStream's", least, ratio, ""))
            if SYNCED_PEER in found:
                ratio = found[system] / found[SYNCED_PEER]
                aims.append(Aim(f"{case}, {system}, to JetStream's synced", 10.0, ratio, ""))
    what = f"CPU of {CONSUMERS:,} consumers, {ACTIVE} of them with a pull"
    return [*aims, Aim(what, 5.0, idle, "% of a core", at_most=True)]


def main() -> None:
    """Runs the benchmark."""
    args = parse_args()
    program = find_program("nats", HOW_TO_GET)
    host = machine.describe(args.data_root, 256)
    home = Path(tempfile.mkdtemp(prefix="nats-"))
    try:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(fresh_dir(args.data_root, "strandline"))
            broker = stack.enter_context(brokers.running(folder))
            broker.connect().create_stream(SEVERAL, subject="several.>", partitions=PARTITIONS)
            servers = {
                SERVER: (int(broker.ready["nats_port"]), broker.pid),
                LISTENER: (broker.ingest_port, broker.pid),
                PEER: stack.enter_context(peer(args.data_root, "2m")),
                SYNCED_PEER: stack.enter_context(peer(args.data_root, "always")),
            }
            clients = {system: Client(program, *each, home) for system, each in servers.items()}
            clients[PEER].make_stream(SEVERAL, "several.>")
            runs = measure(args, clients)
            idle = idle_cpu(clients[SERVER], broker.pid, args.idle_s)
    finally:
        shutil.rmtree(home)
    medians = {
        case: {
            system: statistics.median(run.rate for run in each) for system, each in found.items()
        }
        for case, found in runs.items()
    }
    findings = Findings(
        name="jetstream-clients",
        title="Stock NATS clients, beside JetStream",
        intro=INTRO.format(partitions=PARTITIONS, **vars(args)),
        machine=host,
        settings={
            "runs": args.runs,
            "peer": "file, R1, sync_interval: 2m or always",
            "ours": "synced",
        },
        figures=[
            *figures_of(runs),
            Figure("idle consumers", SERVER, "% of a core", [idle]),
        ],
        aims=aims_of(medians, idle),
        module="benchmarks.jetstream_clients",
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()

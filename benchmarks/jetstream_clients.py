"""Stock NATS clients side by side with JetStream: publishing, reading, buckets, idle consumers.

Run it from the root of the repository: `python -m benchmarks.jetstream_clients`. The `nats` command
(nats.go) publishes and reads at the broker's nats-server, at its ingest listener, and at a
nats-server with JetStream (file, R1, its default: a sync every two minutes), in turns; what is
published also at one that syncs every message.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

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
    "nats-server is left out."
)


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.jetstream_clients", description=__doc__
    )
    add = parser.add_argument
    add("--messages", type=int, default=500_000, help="messages to read (500000)")
    add("--published", type=int, default=100_000, help="messages of each publishing case (100000)")
    add("--runs", type=int, default=3, help="runs of each case (3)")
    add("--idle-s", type=float, default=10.0, help="seconds of the idle measurement (10)")
    runner.add_place_options(parser)
    return parser.parse_args()


Rates = dict[str, dict[str, list[float]]]


class Client:
    """The `nats` command against one server.

    Args:
        program: its path.
        port: the server's.
        home: where it keeps its settings.
    """

    def __init__(self, program: str, port: int, home: Path) -> None:
        self.port = port
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

    def ask(self, operation: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request of the JetStream API."""
        with contextlib.closing(NatsRequests(LOOPBACK, self.port)) as connection:
            payload = json.dumps(body).encode() if body is not None else b""
            return connection.request(f"$JS.API.{operation}", payload)

    def make_stream(self) -> None:
        """Make the stream anew."""
        self.ask(f"STREAM.DELETE.{STREAM}")
        config = {"name": STREAM, "subjects": ["bench.>"], "allow_atomic": True}
        found = self.ask(f"STREAM.CREATE.{STREAM}", config)
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


def cases_of(args: argparse.Namespace) -> Iterator[tuple[str, list[str], bool]]:
    """Yield the name of each case, the words of the command, and whether it publishes."""
    for size in ("256B", "2KiB"):
        for clients in (1, 8):
            for how in ("async", "atomic"):
                words = ["js", "pub", how, "bench.x", "--msgs", str(args.published)]
                words += ["--size", size, "--clients", str(clients)]
                yield f"publish {how}, {size}, {clients} clients", words, True
    for how in ("ordered", "consume", "fetch"):
        for acks in ("none", "explicit"):
            words = ["js", how, "--msgs", str(args.messages), "--size", "256B"]
            if how != "ordered":
                words += ["--acks", acks]
            elif acks != "none":
                continue
            yield f"{how}, acks {acks}", words, False


def measure(
    args: argparse.Namespace, clients: dict[str, Client]
) -> dict[str, dict[str, list[float]]]:
    """Return the rates by case and system."""
    rates: dict[str, dict[str, list[float]]] = {}

    def note(case: str, system: str, rate: float) -> None:
        rates.setdefault(case, {}).setdefault(system, []).append(rate)
        print(f"  {case}, {system}: {rate:,.0f}/s", flush=True)

    for run in range(args.runs):
        for case, words, publishes in cases_of(args):
            for system, client in clients.items():
                if publishes:
                    client.make_stream()
                    note(case, system, client.rate(*words))
        for client in (clients[SERVER], clients[PEER]):
            client.make_stream()
            full = ["--msgs", str(args.messages), "--size", "256B"]
            client.rate("js", "pub", "async", "bench.x", *full)
        for case, words, publishes in cases_of(args):
            for system, client in clients.items():
                if not publishes and system != SYNCED_PEER:
                    client.ask(f"CONSUMER.DELETE.{STREAM}.nats-bench")
                    note(case, system, client.rate(*words))
        for system, client in clients.items():
            if system == SYNCED_PEER:
                continue
            client.make_bucket()
            rates_of = asyncio.run(bucket_rates(client.port, args.published // 10))
            for case, rate in rates_of.items():
                note(f"bucket: {case}", system, rate)
        print(f"run {run + 1} of {args.runs} is done", flush=True)
    return rates


async def bucket_rates(port: int, count: int) -> dict[str, float]:
    """Put, get and watch keys with nats.py, which makes no bucket of the command's kind.

    The command's own benchmark of buckets asks for a limit of bytes, which buckets here lack.
    """
    import nats

    client = await nats.connect(f"nats://{LOOPBACK}:{port}")
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

    rates = {}
    for name, action, work in (("put", put, parts), ("get", get, parts), ("watch", watch, None)):
        started = time.perf_counter()
        await asyncio.gather(*map(action, work or [range(count)]))
        rates[name] = count / (time.perf_counter() - started)
    await client.close()
    return rates


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
def peer(root: Path, sync_interval: str) -> Iterator[int]:
    """A nats-server with JetStream; its port."""
    [port] = free_ports(1)
    with fresh_dir(root, "jetstream") as folder:
        config = jetstream.write_config(folder, port, folder / "store", sync_interval)
        log = folder / "server.log"
        with server([jetstream.find_nats_server(), "-c", str(config)], log) as process:
            wait_for_port(process, port, log)
            yield port


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
            ports = {
                SERVER: int(broker.ready["nats_port"]),
                LISTENER: broker.ingest_port,
                PEER: stack.enter_context(peer(args.data_root, "2m")),
                SYNCED_PEER: stack.enter_context(peer(args.data_root, "always")),
            }
            clients = {system: Client(program, port, home) for system, port in ports.items()}
            rates = measure(args, clients)
            idle = idle_cpu(clients[SERVER], broker.pid, args.idle_s)
    finally:
        shutil.rmtree(home)
    medians = {
        case: {system: statistics.median(each) for system, each in found.items()}
        for case, found in rates.items()
    }
    findings = Findings(
        name="jetstream-clients",
        title="Stock NATS clients, beside JetStream",
        intro=INTRO.format(**vars(args)),
        machine=host,
        settings={
            "runs": args.runs,
            "peer": "file, R1, sync_interval: 2m or always",
            "ours": "synced",
        },
        figures=[
            *(
                Figure(case, system, "messages/s", each)
                for case, found in rates.items()
                for system, each in found.items()
            ),
            Figure("idle consumers", SERVER, "% of a core", [idle]),
        ],
        aims=aims_of(medians, idle),
        module="benchmarks.jetstream_clients",
    )
    figures.publish(findings, args.results, args.label)


if __name__ == "__main__":
    main()

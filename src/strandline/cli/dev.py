"""``strandline dev``: a cluster on one machine, in one command, to try things out."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from strandline.cli.output import (
    OutputFormat,
    OutputOption,
    examples,
    note,
    print_json,
    print_line,
    reports_errors,
)
from strandline.errors import UnavailableError

EPILOG = examples(
    "strandline dev --nodes 3                          # in one terminal",
    "strandline cluster status -s 127.0.0.1:9400       # in another",
    "strandline dev --nodes 3 --port-base 0 -o json    # free ports, for programs",
)
PORTS = ("flight_port", "http_port", "nats_port", "ingest_port", "peer_port", "nats_peer_port")
PORTS_PER_BROKER = 10
STOP_TIMEOUT_S = 30.0


@reports_errors
def dev(
    *,
    nodes: Annotated[int, typer.Option(help="How many brokers.", min=1, max=7)] = 3,
    data_dir: Annotated[Path, typer.Option(help="Their data, a directory for each.")] = Path(
        "strandline-dev"
    ),
    port_base: Annotated[
        int,
        typer.Option(
            help="First port; ten for each broker: Flight, web, NATS, ingest, peers. 0: free ones.",
            min=0,
            max=65_000,
        ),
    ] = 9400,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
    output: OutputOption = OutputFormat.text,
) -> None:
    """Run a cluster of brokers on this machine until Ctrl-C.

    Each is a process of its own; a line names its addresses and its process id once it listens, so
    that you can kill one. Killed brokers stay away: start the command again on the same directory,
    or that one broker with the command line it had.
    """
    ports = _ports(nodes, port_base)
    brokers = [
        subprocess.Popen(
            _command(number, ports, data_dir=data_dir, log_level=log_level),
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        for number in range(1, nodes + 1)
    ]
    try:
        with _interrupted_by_sigterm():
            for number, broker in enumerate(brokers, 1):
                _tell_ready(number, broker, output)
            for broker in brokers:
                broker.wait()
    except KeyboardInterrupt:
        note("stopping")
    finally:
        _stop(brokers)


def _command(
    number: int, ports: list[dict[str, int]], *, data_dir: Path, log_level: str
) -> list[str]:
    """The command line of one broker."""
    mine = ports[number - 1]
    peers = ",".join(f"{n}=127.0.0.1:{each['peer_port']}" for n, each in enumerate(ports, 1))
    meeting = ",".join(f"{n}=127.0.0.1:{each['nats_peer_port']}" for n, each in enumerate(ports, 1))
    command = [sys.executable, "-m", "strandline.cli", "serve", "--output", "json"]
    command += ["--data-dir", str(data_dir / f"broker-{number}"), "--log-level", log_level]
    command += ["--broker-id", str(number), "--cluster-id", "dev", "--peers", peers]
    command += ["--nats-peers", meeting, "--peer-port", str(mine["peer_port"])]
    for name in PORTS[:4]:
        command += [f"--{name.replace('_', '-')}", str(mine[name])]
    return command


def _ports(nodes: int, base: int) -> list[dict[str, int]]:
    """The ports of each broker."""
    if base:
        firsts = range(base, base + nodes * PORTS_PER_BROKER, PORTS_PER_BROKER)
        return [{name: first + i for i, name in enumerate(PORTS)} for first in firsts]
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(nodes * len(PORTS))]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        free = iter([each.getsockname()[1] for each in sockets])
        return [{name: next(free) for name in PORTS} for _ in range(nodes)]


def _tell_ready(number: int, broker: "subprocess.Popen[str]", output: OutputFormat) -> None:
    """Print where a broker listens, once it does.

    Raises:
        UnavailableError: it ended instead.
    """
    assert broker.stdout is not None, "piped"
    for line in broker.stdout:
        with contextlib.suppress(ValueError):
            ready = json.loads(line)
            if output is OutputFormat.json:
                print_json(ready)
            else:
                host = ready["host"]
                print_line(
                    f"broker {number}  Flight {host}:{ready['flight_port']}  "
                    f"NATS nats://{host}:{ready['nats_port']}  "
                    f"web http://{host}:{ready['http_port']}/  pid {ready['pid']}"
                )
            threading.Thread(target=broker.stdout.read, daemon=True).start()
            return
    raise UnavailableError(f"broker {number} ended with code {broker.wait()}; see above why")


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(brokers: "list[subprocess.Popen[str]]") -> None:
    """Let each finish and hand over; then end those that do not."""
    for broker in brokers:
        if broker.poll() is None:
            broker.terminate()
    for broker in brokers:
        try:
            broker.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            broker.kill()
            broker.wait()

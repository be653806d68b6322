"""``strandline dev``: a cluster on one machine, in one command, for trying things out."""

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from strandline.cli.cluster_config import ClusterMember, settings_of, settings_text, with_ports
from strandline.cli.output import (
    OutputFormat,
    OutputOption,
    examples,
    note,
    print_done,
    print_json,
    print_line,
    reports_errors,
)
from strandline.cli.signals import interrupted_by_sigterm
from strandline.config import bracketed
from strandline.errors import UnavailableError
from strandline.storage.private_directory import make_private_directory

EPILOG = examples(
    "strandline dev --nodes 3                          # in one terminal",
    "strandline cluster status -s 127.0.0.1:9400       # in another",
    "strandline dev --nodes 3 --port-base 0 -o json    # free ports, for programs",
)
STOP_TIMEOUT_S = 30.0
LOG_TIMEOUT_S = 5.0
"""How long to wait for the end of a log, which a killed broker's child may hold open."""


@reports_errors
def dev(
    *,
    nodes: Annotated[int, typer.Option(help="Number of brokers.", min=1, max=7)] = 3,
    data_dir: Annotated[Path, typer.Option(help="Parent of the data directories.")] = Path(
        "strandline-dev"
    ),
    port_base: Annotated[
        int,
        typer.Option(
            help="First port, ten per broker; 0 for free ones.",
            min=0,
            max=65_000,
        ),
    ] = 9400,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
    output: OutputOption = OutputFormat.text,
) -> None:
    """Run a cluster of brokers on this machine until Ctrl-C.

    Each broker is a process with a settings file of its own. A line shows its addresses once it
    listens, and another line reports its end. A broker that you kill stays down until you start it
    again with 'strandline serve --config FILE'.
    """
    members = with_ports([ClusterMember(n, "127.0.0.1") for n in range(1, nodes + 1)], port_base)
    make_private_directory(data_dir)
    serve = [sys.executable, "-m", "strandline.cli", "serve", "--output", "json", "--config"]
    files = [
        _write_settings(each, members, data_dir=data_dir, log_level=log_level) for each in members
    ]
    brokers = [
        subprocess.Popen(
            [*serve, str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        for file in files
    ]
    readers = [
        threading.Thread(target=_pass_log_on, args=(number, broker), daemon=True)
        for number, broker in enumerate(brokers, 1)
    ]
    for reader in readers:
        reader.start()
    try:
        with interrupted_by_sigterm():
            ready = [
                _print_ready(number, broker, output) for number, broker in enumerate(brokers, 1)
            ]
            if output is OutputFormat.text:
                _print_exports(ready)
            _report_exits(brokers, files, output)
    except KeyboardInterrupt:
        note("stopping")
    finally:
        _stop(brokers)
        # Python aborts if it exits while a thread prints, and the last lines would be lost.
        for reader in readers:
            reader.join(LOG_TIMEOUT_S)


def _write_settings(
    member: ClusterMember, members: list[ClusterMember], *, data_dir: Path, log_level: str
) -> Path:
    """Write the settings file of one broker; return its path."""
    directory = (data_dir / f"broker-{member.number}").resolve()
    settings = settings_of(member, members, name="dev", data_dir=str(directory))
    path = data_dir / f"{directory.name}.yaml"
    title = "Overwritten by 'strandline dev' at each start."
    path.touch(mode=0o600)
    path.write_text(settings_text({"log_level": log_level, **settings}, title), "utf-8")
    return path


def _pass_log_on(number: int, broker: "subprocess.Popen[str]") -> None:
    """Print a broker's log, each line with the broker's number."""
    assert broker.stderr is not None, "piped"
    for line in broker.stderr:
        note(f"broker {number}: {line.rstrip()}")


def _print_exports(ready: list[dict[str, Any]]) -> None:
    """Print environment variables with the addresses, for other commands and clients."""
    hosts = [bracketed(each["host"]) for each in ready]
    flight = [f"{host}:{each['flight_port']}" for host, each in zip(hosts, ready, strict=True)]
    nats = [f"nats://{host}:{each['nats_port']}" for host, each in zip(hosts, ready, strict=True)]
    print_line("In another terminal:")
    print_line(f"  export STRANDLINE_SERVER={','.join(flight)}")
    print_line(f"  export NATS_URL={','.join(nats)}")


def _report_exits(
    brokers: "list[subprocess.Popen[str]]", files: list[Path], output: OutputFormat
) -> None:
    """Report each broker that ends, until none is left.

    Raises:
        UnavailableError: always, when all brokers have ended.
    """
    exits: queue.Queue[tuple[int, int]] = queue.Queue()

    def wait(number: int, broker: "subprocess.Popen[str]") -> None:
        exits.put((number, broker.wait()))

    for number, broker in enumerate(brokers, 1):
        threading.Thread(target=wait, args=(number, broker), daemon=True).start()
    for _ in brokers:
        number, code = exits.get()
        file = files[number - 1]
        ended = {"event": "exited", "broker": number, "code": code, "config": str(file)}
        print_done(
            f"broker {number} {_ending(code)}; start it again with: "
            f"strandline serve --config {file}",
            ended,
            output=output,
        )
    raise UnavailableError("no broker is running any more; see their logs above")


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _print_ready(
    number: int, broker: "subprocess.Popen[str]", output: OutputFormat
) -> dict[str, Any]:
    """Print a broker's addresses once it listens; return its ready line.

    Raises:
        UnavailableError: the broker ended instead.
    """
    assert broker.stdout is not None, "piped"
    for line in broker.stdout:
        with contextlib.suppress(ValueError):
            ready: dict[str, Any] = json.loads(line)
            if output is OutputFormat.json:
                print_json(ready)
            else:
                host = bracketed(ready["host"])
                print_line(
                    f"broker {number}  Flight {host}:{ready['flight_port']}  "
                    f"NATS nats://{host}:{ready['nats_port']}  "
                    f"web http://{host}:{ready['http_port']}/  pid {ready['pid']}"
                )
            threading.Thread(target=broker.stdout.read, daemon=True).start()
            return ready
    raise UnavailableError(f"broker {number} exited with code {broker.wait()}; see its log above")


def _stop(brokers: "list[subprocess.Popen[str]]") -> None:
    """Let each broker stop cleanly; kill those that do not stop in time."""
    for broker in brokers:
        if broker.poll() is None:
            broker.terminate()
    for broker in brokers:
        try:
            broker.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            broker.kill()
            broker.wait()

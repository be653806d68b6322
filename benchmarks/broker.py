"""A Strandline broker as a child process that a benchmark may stop, kill and start again.

Rules: started by the installed `strandline serve` on free ports; only the process started here is
signalled, by its id. `ready_s` is the time from the start of the process to its JSON ready line.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any, Final

from benchmarks.loadgen.build import BUILD_DIR
from benchmarks.peers.process import (
    LOOPBACK,
    find_program,
    fresh_dir,
    server,
    stop,
    wait_for_line,
)

if TYPE_CHECKING:
    from strandline.client import Client

HOW_TO_GET: Final = "`pip install -e '.[server,cli]'` in the root of this repository"
SERVE: Final = "serve --nats-port 0 --ingest-port 0 --flight-port 0 --http-port 0 --output json"
BYTECODE: Final = {
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONPYCACHEPREFIX": str(BUILD_DIR / "pycache"),
}
"""An installed program has its bytecode cached; one run from a source tree may not."""
READY_TIMEOUT_S: Final = 120.0
READY_POLL_S: Final = 0.002
CLIENT_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True)
class Broker:
    """A running broker."""

    process: Popen[bytes]
    ready: dict[str, Any] = field(repr=False)
    data_dir: Path
    ready_s: float
    log: Path

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def address(self) -> str:
        """Return the address of Arrow Flight, as `strandline.connect` accepts it."""
        return f"{LOOPBACK}:{self.ready['flight_port']}"

    @property
    def ingest_port(self) -> int:
        """Port of its own listener for NATS publishers."""
        return int(self.ready["ingest_port"])

    def connect(self) -> Client:
        """A new client of this broker."""
        import strandline

        return strandline.connect(self.address, timeout_s=CLIENT_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL for the broker alone, not for its child, as an out-of-memory killer would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> float:
        """SIGTERM, and wait for its end; seconds that took."""
        started = time.perf_counter()
        stop(self.process)
        return time.perf_counter() - started

    def log_segments(self) -> list[Path]:
        """The segment files of all partitions, in order."""
        return segments_of(self.data_dir.parent)

    def said(self, word: str) -> str:
        """The first line of its log with this word, without its time; empty if there is none."""
        lines = self.log.with_suffix(".err").read_text(errors="replace").splitlines()
        found = next((line for line in lines if word in line), "")
        return found.partition(": ")[2]


def program() -> str:
    """The `strandline` program of this Python environment, or of the PATH."""
    return find_program("strandline", HOW_TO_GET, Path(sys.executable).parent)


def segments_of(folder: Path) -> list[Path]:
    """The segment files of a broker that ran, or runs, in `folder`."""
    return sorted(folder.glob("data/logs/*/*.log"))


def serve_words(data_dir: Path) -> list[str]:
    """The command that starts a broker."""
    return [program(), *SERVE.split(), "--host", LOOPBACK, "--data-dir", str(data_dir)]


@contextlib.contextmanager
def running(folder: Path, *, prefix: Sequence[str] = ()) -> Iterator[Broker]:
    """A broker on the data in `folder`, new or left by an earlier one; stopped at the end."""
    log, data_dir = folder / "server.log", folder / "data"
    started = time.perf_counter()
    words = [*prefix, *serve_words(data_dir)]
    with server(words, log, cwd=folder, env=BYTECODE) as process:
        line = wait_for_line(process, log, "{", timeout_s=READY_TIMEOUT_S, poll_s=READY_POLL_S)
        ready_s = time.perf_counter() - started
        yield Broker(process, json.loads(line), data_dir, ready_s, log)


@contextlib.contextmanager
def fresh(data_root: Path, *, prefix: Sequence[str] = ()) -> Iterator[Broker]:
    """A broker without any data, which is removed afterwards."""
    with fresh_dir(data_root, "strandline") as folder, running(folder, prefix=prefix) as broker:
        yield broker

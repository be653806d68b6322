"""Runs the native generator from Python and reads its result.

Rules: a load always ends (seconds and max_appends are both bounded, and a stuck generator is
killed after a grace period); errors are returned, not hidden; latencies are in microseconds.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from benchmarks.loadgen.build import build

GRACE_S = 30.0


class LoadError(RuntimeError):
    """The generator could not run the load at all; the text is its last words."""


@dataclass(frozen=True)
class Load:
    """One load: A appenders over N connections, `size_bytes` each, for `seconds` in all.

    With several subjects, `subject` becomes `subject.0` .. `subject.K-1`; with `bare_zero`,
    number 0 is the bare `subject`. `warmup` is the uncounted part; `rate` > 0 is open loop.
    """

    connections: int = 1
    appenders: int = 128
    size_bytes: int = 2048
    seconds: float = 5.0
    warmup: float = 0.2
    subject: str = "bench"
    subjects: int = 1
    rate: float = 0.0
    msg_id: bool = False
    redis: bool = False
    beam: bool = False
    ping: bool = False
    bare_zero: bool = False
    max_appends: int = 4_000_000


@dataclass(frozen=True)
class LoadResult:
    """What one load measured, after the warm-up. `replies_total` includes the warm-up."""

    appends_per_s: float
    p50_us: float
    p90_us: float
    p99_us: float
    p999_us: float
    max_us: float
    acks: int
    replies_total: int
    errors: int
    unanswered: int
    elapsed_s: float
    client_cpu_s: float
    first_error: str

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary, for a results file."""
        return asdict(self)


def parse_result(line: str) -> LoadResult:
    """Reads the JSON line that every generator here prints; unknown keys are ignored."""
    values = json.loads(line)
    return LoadResult(**{field.name: values[field.name] for field in fields(LoadResult)})


def command(load: Load, host: str, port: int) -> list[str]:
    """The command line of the generator for this load."""
    words = [str(build()), "--json", "--host", host, "--port", str(port)]
    words += ["--subject", load.subject, "--subjects", str(load.subjects)]
    words += ["--connections", str(load.connections), "--appenders", str(load.appenders)]
    words += ["--size", str(load.size_bytes), "--seconds", str(load.seconds)]
    words += ["--warmup", str(load.warmup), "--max-appends", str(load.max_appends)]
    if load.rate > 0:
        words += ["--rate", str(load.rate)]
    for name in ("msg_id", "redis", "beam", "ping", "bare_zero"):
        if getattr(load, name):
            words.append("--" + name.replace("_", "-"))
    return words


def run_load(load: Load, host: str, port: int, prefix: tuple[str, ...] = ()) -> LoadResult:
    """Runs one load against a server; `prefix` goes before the command (for example taskset)."""
    done = subprocess.run(
        [*prefix, *command(load, host, port)],
        capture_output=True,
        text=True,
        timeout=load.seconds + GRACE_S,
        check=False,
    )
    if not done.stdout.startswith("{"):
        raise LoadError(done.stderr.strip() or f"the generator ended with {done.returncode}")
    return parse_result(done.stdout)


@dataclass(frozen=True)
class NoOp:
    """A running no-op server: where it listens (or answers) and its process id."""

    port: int
    pid: int


@contextlib.contextmanager
def _no_op(words: list[str], prefix: tuple[str, ...]) -> Iterator[NoOp]:
    process = subprocess.Popen([*prefix, str(build()), *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("{"):
            raise LoadError("the no-op server did not start")
        yield NoOp(int(json.loads(line)["port"]), process.pid)
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def ceiling_server(prefix: tuple[str, ...] = (), seconds: float = 600.0) -> Iterator[NoOp]:
    """The built-in server that acks everything at once and stores nothing."""
    with _no_op(["--serve-ceiling", "0", "--seconds", str(seconds)], prefix) as no_op:
        yield no_op


@contextlib.contextmanager
def responder(
    host: str, port: int, subject: str, prefix: tuple[str, ...] = (), seconds: float = 600.0
) -> Iterator[NoOp]:
    """A no-op subscriber behind a real nats-server: the ceiling of any log that sits there."""
    words = ["--respond", "--host", host, "--port", str(port), "--subject", subject]
    with _no_op([*words, "--seconds", str(seconds)], prefix) as no_op:
        yield no_op

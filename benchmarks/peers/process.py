"""Starts and stops server processes for the benchmarks, and says how much CPU they used.

Rules: every server listens on free loopback ports and writes into a fresh directory that is
removed afterwards; every process runs in a session of its own, is ended by its own id, and by the
kernel if the benchmark itself is killed; a peer that cannot be had raises `UnavailableError`, whose
text says how to get it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
LOOPBACK = "127.0.0.1"
PR_SET_PDEATHSIG = 1


class UnavailableError(RuntimeError):
    """A peer is not on this machine; the text says how to get it."""


class StartError(RuntimeError):
    """A server did not start; the text holds the end of its output."""


def free_ports(count: int) -> list[int]:
    """Loopback TCP ports that are free now (all different)."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [int(each.getsockname()[1]) for each in sockets]


@contextlib.contextmanager
def fresh_dir(root: Path, name: str) -> Iterator[Path]:
    """An empty directory under `root`, removed afterwards."""
    root.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root.resolve()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def find_program(name: str, how_to_get: str, *extra_dirs: Path) -> str:
    """The path of a program, looked for in `extra_dirs` first and then on the PATH."""
    for folder in extra_dirs:
        if (folder / name).exists():
            return str(folder / name)
    path = shutil.which(name)
    if path is None:
        raise UnavailableError(f"{name} not found: {how_to_get}")
    return path


def log_tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log file, for an error message."""
    if not log.exists():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def end_with_parent() -> None:
    """In a child, before it becomes its program: asks for SIGTERM when its parent dies (Linux)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def server(
    words: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A running process whose stdout goes to `log` and whose stderr goes to `log`.err."""
    with log.open("wb") as out, log.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=None if env is None else {**os.environ, **env},
            cwd=cwd,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call; nothing there can block
        )
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then after a while SIGKILL for what is left of the process's own session."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def check_alive(process: subprocess.Popen[bytes], log: Path) -> None:
    """Raises StartError with the end of its output if the process has ended."""
    if process.poll() is not None:
        tail = f"{log_tail(log)}\n{log_tail(log.with_suffix('.err'))}".strip()
        raise StartError(f"{process.args!r} ended with {process.returncode}:\n{tail}")


def wait_for_port(
    process: subprocess.Popen[bytes], port: int, log: Path, timeout_s: float = START_TIMEOUT_S
) -> None:
    """Returns once something accepts connections on the loopback port."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        check_alive(process, log)
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), 1):
            return
        time.sleep(0.05)
    raise StartError(f"nothing listens on port {port} after {timeout_s:.0f} s:\n{log_tail(log)}")


def wait_for_line(
    process: subprocess.Popen[bytes],
    log: Path,
    start: str,
    *,
    timeout_s: float = START_TIMEOUT_S,
    poll_s: float = 0.05,
) -> str:
    """The first complete line of the process's stdout that starts so."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        text = log.read_text(errors="replace") if log.exists() else ""
        for line in text.splitlines(keepends=True):
            if line.startswith(start) and line.endswith("\n"):
                return line.strip()
        check_alive(process, log)
        time.sleep(poll_s)
    raise StartError(f"no line {start!r} after {timeout_s:.0f} s:\n{log_tail(log)}")


def _stat(pid: int) -> tuple[int, float]:
    """Parent id, and CPU seconds (user and system) of a process and its children that ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = sum(map(int, fields[11:15]))
    return int(fields[1]), ticks / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> dict[int, float]:
    """CPU seconds used so far by a process and each of its living descendants, by process id."""
    stats: dict[int, tuple[int, float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                stats[int(entry.name)] = _stat(int(entry.name))
    found = {}
    for each, (_, seconds) in stats.items():
        ancestor = each
        while ancestor not in (pid, 0) and ancestor in stats:
            ancestor = stats[ancestor][0]
        if ancestor == pid:
            found[each] = seconds
    return found


def cpu_seconds(pid: int) -> float:
    """CPU seconds used so far by a process and its living descendants."""
    return sum(family(pid).values())

"""Proves durability claims: counts a server's sync and write calls with strace during a load.

Rules: never during a timed run, since strace slows the server down a lot; calls and appends are
counted over the same whole load (warm-up included), so only their quotient means something. A
server that syncs through io_uring shows `io_uring_enter` instead of fdatasync.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.loadgen import Load
from benchmarks.peers.process import family
from benchmarks.peers.system import Session

TRACED = (
    "fsync",
    "fdatasync",
    "msync",
    "io_submit",
    "io_uring_enter",
    "pwrite64",
    "writev",
    "pwritev",
)
ATTACH_S = 1.0
HOW_TO_GET = "strace not found: `apt-get install strace` (and allow ptrace in a container)"


@dataclass(frozen=True)
class SyncCount:
    """System calls of the server during one traced load; `appends` is 0 if it could not trace."""

    appends: int
    calls: dict[str, int] = field(default_factory=dict)
    note: str = ""

    @property
    def syncs(self) -> int:
        """Calls that force a log to disk (not msync: Kafka does that to its index files)."""
        return self.calls.get("fsync", 0) + self.calls.get("fdatasync", 0)

    def describe(self) -> str:
        """For a table: syncs per append, or appends per sync when there are more of those."""
        if self.appends == 0:
            return self.note or "not measured"
        if self.syncs == 0:
            return f"0 syncs for {self.appends:,} appends"
        per_append = self.syncs / self.appends
        return f"{per_append:.3f} ({self.syncs:,} syncs, {self.appends:,} appends)"


def parse_strace(text: str) -> dict[str, int]:
    """Reads the table of `strace -c`: calls by system call name."""
    calls = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 5 and words[-1] in TRACED:
            calls[words[-1]] = int(words[3])
    return calls


def count_syncs(session: Session, load: Load) -> SyncCount:
    """Runs `load` while strace counts the calls of the server and of its children."""
    strace = shutil.which("strace")
    if strace is None:
        return SyncCount(0, note=HOW_TO_GET)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "strace.txt"
        words = [strace, "-f", "-c", "-e", f"trace={','.join(TRACED)}", "-o", str(output)]
        for pid in family(session.pid):
            words += ["-p", str(pid)]
        tracer = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        try:
            time.sleep(ATTACH_S)
            if tracer.poll() is not None:
                return SyncCount(0, note=f"strace: {tracer.communicate()[1].strip()[:80]}")
            result = session.run(load)
        finally:
            with contextlib.suppress(ProcessLookupError):
                tracer.send_signal(signal.SIGINT)
            tracer.communicate()
        calls = parse_strace(output.read_text()) if output.exists() else {}
    return SyncCount(result.replies_total, calls)

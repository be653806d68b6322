"""Child processes that end with their parent: each leads a process group, which one signal ends.

Rules: a child's group gets SIGKILL when this process exits in any way Python sees, and the child
itself when this process is killed: it is started through this module, which requests that from
Linux and then executes the program. A child writes JSON lines to its standard output; its standard
error goes to a file. Must not know what the children do.
"""

import atexit
import contextlib
import ctypes
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strandline.errors import RequestTimeoutError, UnavailableError

_PR_SET_PDEATHSIG = 1
_FRAME = re.compile(r"\s+(at |\.\.\. \d+ more)")


def become(command: Sequence[str], *, parent: int) -> None:
    """Replace this process by ``command``, killed by Linux as soon as its parent dies.

    Args:
        command: program and arguments.
        parent: process id of the parent, in case it is dead already.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
    os.execvp(command[0], list(command))  # noqa: S606 -- becoming it is the point


class Child:
    """A child process and its process group.

    Args:
        command: program and arguments.
        log: file to which its standard error is appended.
        environment: variables on top of ours.
    """

    def __init__(
        self, command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = Path(log).stem
        self.log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(os.getpid()), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | dict(environment or {}),
                process_group=0,
            )
        atexit.register(self.kill)
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True, name=f"{self.name} output")
        self._reader.start()

    @property
    def pid(self) -> int:
        """Return the process id, which is also the group's."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Return whether the child itself runs."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Return the exit code; None while it runs, negative if a signal ended it."""
        return self._process.poll()

    def wait_for(self, event: str, *, timeout_s: float) -> dict[str, Any]:
        """Return the next line with this ``event``.

        Raises:
            UnavailableError: the child ended first; the message has the end of its log.
            RequestTimeoutError: no such line in time.
        """
        try:
            while True:
                line = self._lines.get(timeout=timeout_s)
                self._check_running(line)
                if line.get("event") == event:
                    return line
        except queue.Empty:
            raise RequestTimeoutError(
                f"{self.name} did not report '{event}' within {timeout_s:.0f} s; see {self.log}"
            ) from None

    def latest(self, event: str) -> dict[str, Any] | None:
        """Return the newest line of this kind since the last call, if any.

        Raises:
            UnavailableError: the child ended; the message has the end of its log.
        """
        found = None
        while True:
            try:
                line = self._lines.get_nowait()
            except queue.Empty:
                return found
            self._check_running(line)
            if line.get("event") == event:
                found = line

    def kill(self) -> None:
        """Send SIGKILL to the whole group, as in a crash."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        atexit.unregister(self.kill)

    def finish(self, *, timeout_s: float = 60) -> None:
        """Close its standard input, which asks it to end; kill the group if it does not."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        self.kill()

    def terminate(self, *, timeout_s: float = 30) -> None:
        """Send SIGTERM to the child, then SIGKILL to the rest of its group."""
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self._process.terminate()
            self._process.wait(timeout_s)
        self.kill()

    def tail(self, lines: int = 15) -> str:
        """Return the end of the child's log, without the frames of Java's stack traces."""
        said = self.log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in said if not _FRAME.match(line)][-lines:])

    def _check_running(self, line: dict[str, Any]) -> None:
        if line.get("event") == "ended":
            raise UnavailableError(f"{self.name} ended early; {self.log} says:\n{self.tail()}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            with contextlib.suppress(ValueError):
                line = json.loads(raw)
                if isinstance(line, dict):
                    self._lines.put(line)
        self._lines.put({"event": "ended"})


if __name__ == "__main__":
    become(sys.argv[2:], parent=int(sys.argv[1]))

"""A broker as a real child process, for tests that kill it.

Starts ``strandline serve --output json``, reads the ready line, and can kill, stop and restart the
broker on the same directory and ports.
"""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import Any, Self

from strandline.errors import RequestTimeoutError, StrandlineError
from strandline.process.ports import free_ports

READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 90.0
READER_TIMEOUT_S = 5.0
KEPT_LINES = 200
SERVE = (sys.executable, "-m", "strandline.cli", "serve", "--output", "json")
PORT_OPTIONS = ("--flight-port", "--http-port", "--nats-port", "--ingest-port")
PORT_TAKEN = "address already in use"


class ProcessServer:
    """A broker process; entering its context starts it.

    Args:
        data_dir: the broker's data directory; by default a temporary one, removed at the end.
        arguments: further arguments for the command.
        command: used instead of ``strandline serve``; has the same flags, and prints a ready line.
        environment: variables for the broker in addition to those of this process.
    """

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *,
        arguments: tuple[str, ...] = (),
        command: tuple[str, ...] = SERVE,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._made_dir = None if data_dir else tempfile.mkdtemp(prefix="strandline-")
        self.data_dir = Path(data_dir or self._made_dir or "")
        self._arguments = arguments
        self._command = command
        self._environment = environment or {}
        self._ports = _fresh_ports()
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []
        self.ready: dict[str, Any] = {}
        """The ready line: ports, pid and more."""
        self.errors: deque[str] = deque(maxlen=KEPT_LINES)
        """The last lines of the broker's standard error."""

    @property
    def flight(self) -> str:
        """Return ``host:port`` of Arrow Flight, for ``strandline.connect``."""
        return f"{self.ready.get('host', '127.0.0.1')}:{self.ready['flight_port']}"

    @property
    def nats_url(self) -> str:
        """Return the URL of the broker's nats-server."""
        return f"nats://{self.ready.get('host', '127.0.0.1')}:{self.ready['nats_port']}"

    @property
    def ingest_url(self) -> str:
        """Return the URL of the broker's own listener for NATS publishers."""
        return f"nats://{self.ready.get('host', '127.0.0.1')}:{self.ready['ingest_port']}"

    @property
    def http_url(self) -> str:
        """Return the URL of the console, metrics and health checks."""
        return f"http://{self.ready.get('host', '127.0.0.1')}:{self.ready['http_port']}"

    @property
    def pid(self) -> int:
        """Return the process id."""
        assert self._process is not None, "start it first"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Return whether the process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, negative after a signal; None before the end."""
        return None if self._process is None else self._process.poll()

    def start(self, *, timeout_s: float = READY_TIMEOUT_S) -> Self:
        """Start the broker, after the first time on the same ports; wait for the ready line.

        Raises:
            StrandlineError: the process ended instead; the message has the end of its standard
                error.
            RequestTimeoutError: there was no ready line in time.
        """
        assert not self.is_running, "it is running"
        try:
            self._launch(timeout_s)
        except StrandlineError as error:
            if self.ready or PORT_TAKEN not in error.message.casefold():
                raise
            self._ports = _fresh_ports()  # another process has taken one of the ports
            self._launch(timeout_s)
        return self

    def _launch(self, timeout_s: float) -> None:
        command = [*self._command, "--data-dir", str(self.data_dir)]
        for option, port in self._ports.items():
            command += [option, str(port)]
        self._process = subprocess.Popen(
            [*command, *self._arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self._environment},
        )
        self._wait_until_ready(self._process, timeout_s)

    def _wait_until_ready(self, process: "subprocess.Popen[str]", timeout_s: float) -> None:
        """Read the process's output until the ready line."""
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

        def read_output() -> None:
            assert process.stdout is not None, "piped"
            with process.stdout as output:
                for line in output:
                    if _is_ready_line(line):
                        lines.put(line)
            lines.put(None)

        def read_errors() -> None:
            assert process.stderr is not None, "piped"
            with process.stderr as errors:
                self.errors.extend(errors)

        self._readers = [
            threading.Thread(target=target, name="strandline-output", daemon=True)
            for target in (read_output, read_errors)
        ]
        for reader in self._readers:
            reader.start()
        try:
            line = lines.get(timeout=timeout_s)
        except queue.Empty:
            self.kill()
            raise RequestTimeoutError(
                f"no ready line from strandline serve within {timeout_s:g} s"
            ) from None
        if line is None:
            code, output = self._wait(), "".join(self.errors).strip()
            raise StrandlineError(f"strandline serve exited with code {code}: {output}")
        self.ready = json.loads(line)

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end of the process."""
        self.signal(signal.SIGKILL)
        self._wait()

    def stop(self) -> int:
        """Send SIGTERM and wait for the end of the process; return the exit code.

        Raises:
            RequestTimeoutError: the process did not end in time, and was killed.
        """
        if self._process is None:
            return 0
        self.signal(signal.SIGTERM)
        try:
            return self._wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise RequestTimeoutError(
                f"strandline serve did not stop within {STOP_TIMEOUT_S:g} s of SIGTERM"
            ) from error

    def restart(self, *, timeout_s: float = READY_TIMEOUT_S) -> Self:
        """Kill the process if it runs, and start it again on the same directory and ports."""
        if self.is_running:
            self.kill()
        return self.start(timeout_s=timeout_s)

    def signal(self, number: int) -> None:
        """Send a signal, such as SIGSTOP or SIGCONT to pause and continue the process."""
        if self.is_running:
            assert self._process is not None, "it runs"
            self._process.send_signal(number)

    def _wait(self, timeout_s: float | None = None) -> int:
        assert self._process is not None, "start it first"
        code = self._process.wait(timeout_s)
        for reader in self._readers:
            reader.join(READER_TIMEOUT_S)
        return code

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            if self._made_dir:
                shutil.rmtree(self._made_dir, ignore_errors=True)


def _fresh_ports() -> dict[str, int]:
    """Choose ports outside the ephemeral range, so that they stay free during restarts."""
    return dict(zip(PORT_OPTIONS, free_ports(len(PORT_OPTIONS)), strict=True))


def _is_ready_line(line: str) -> bool:
    """Return whether a line of output is the ready line."""
    try:
        message = json.loads(line)
    except ValueError:
        return False
    return isinstance(message, dict) and message.get("event") == "ready"

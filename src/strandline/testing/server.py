"""A broker inside the process of a test: real storage and listeners, free ports, its own thread.

Rules: the broker is imported only when a server starts, so that the pytest plugin costs nothing. A
temporary data directory is removed at the end.
"""

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.errors import InvalidConfigError, RequestTimeoutError
from strandline.optional_dependencies import install_hint

if TYPE_CHECKING:
    from strandline.process.wiring import BrokerApp

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 90.0


class ServerUrl(str):
    """The ``host:port`` of Arrow Flight for ``strandline.connect``, with other addresses."""

    __slots__ = ("data_dir", "flight", "http_url", "ingest_url", "nats_url")

    flight: str
    nats_url: str | None
    ingest_url: str | None
    http_url: str | None
    data_dir: Path


class Server:
    """A broker for tests; entering its context returns its ``ServerUrl``.

    Args:
        nats: also start a nats-server and the listener for publishers; a mapping is used as the
            ``nats`` section of the configuration.
        data_dir: the broker's data directory; by default a temporary one, removed at the end.
        **config: other fields of ``config.BrokerConfig``; a section is a mapping.

    Raises:
        InvalidConfigError: a setting is unknown or invalid.
    """

    def __init__(
        self,
        *,
        nats: bool | Mapping[str, Any] = False,
        data_dir: str | Path | None = None,
        **config: Any,
    ) -> None:
        self._nats = nats
        self._given_dir = data_dir
        self._config = config
        self._url: ServerUrl | None = None

    def start(self) -> ServerUrl:
        """Start the broker, and wait until all listeners are open.

        Raises:
            StrandlineError: the broker cannot start.
        """
        from strandline.config import BrokerConfig, decode_config

        self._made_dir = None if self._given_dir else tempfile.mkdtemp(prefix="strandline-")
        data_dir = Path(self._given_dir or self._made_dir or "")
        values: dict[str, Any] = {"flight_port": 0, "http_port": -1, **self._config}
        given = self._nats if isinstance(self._nats, Mapping) else {}
        values["nats"] = {"port": 0, "ingest_port": 0, **given}
        config = decode_config({**values, "data_dir": str(data_dir)}, BrokerConfig)
        self._runner = _Runner(config, with_nats=bool(self._nats))
        try:
            app = self._runner.start()
        except BaseException:
            self._remove_data()
            raise
        self._url = _url_of(app, host=config.host, data_dir=data_dir)
        return self._url

    def stop(self) -> None:
        """Stop the broker as on SIGTERM; has no effect when repeated."""
        if self._url is None:
            return
        self._url = None
        try:
            self._runner.stop()
        finally:
            self._remove_data()

    @property
    def url(self) -> ServerUrl:
        """Return the broker's address, once it was started."""
        assert self._url is not None, "start the server first"
        return self._url

    @property
    def flight(self) -> str:
        """Return ``host:port`` of Arrow Flight."""
        return self.url.flight

    @property
    def nats_url(self) -> str | None:
        """Return the URL of the nats-server, if there is one."""
        return self.url.nats_url

    @property
    def ingest_url(self) -> str | None:
        """Return the URL of the broker's own listener for NATS publishers, if there is one."""
        return self.url.ingest_url

    @property
    def http_url(self) -> str | None:
        """Return the URL of console, metrics and health checks, if ``http_port`` is set."""
        return self.url.http_url

    @property
    def data_dir(self) -> Path:
        """Return the data directory."""
        return self.url.data_dir

    @property
    def app(self) -> "BrokerApp":
        """Return the running broker, for white-box tests."""
        return self._runner.app

    def __enter__(self) -> ServerUrl:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __del__(self) -> None:
        """Stop the thread of a server that was not stopped."""
        self.stop()

    def _remove_data(self) -> None:
        if self._made_dir:
            shutil.rmtree(self._made_dir, ignore_errors=True)


def _url_of(app: "BrokerApp", *, host: str, data_dir: Path) -> ServerUrl:
    """Return the address of a running broker."""
    url = ServerUrl(f"{host}:{app.flight_port}")
    url.flight = str(url)
    url.nats_url = f"nats://{host}:{app.nats_port}" if app.nats_port else None
    url.ingest_url = f"nats://{host}:{app.ingest_port}" if app.ingest_port else None
    url.http_url = f"http://{host}:{app.http_port}" if (app.http_port or 0) > 0 else None
    url.data_dir = data_dir
    return url


class _Runner:
    """A broker on an event loop in a thread.

    Args:
        config: the settings of the broker.
        with_nats: whether to start the NATS front end.
    """

    def __init__(self, config: Any, *, with_nats: bool) -> None:
        self._config = config
        self._with_nats = with_nats
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="strandline-broker", daemon=True)
        self.app: BrokerApp

    def start(self) -> "BrokerApp":
        """Start the thread and wait until the broker listens."""
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            raise RequestTimeoutError(f"the broker did not start within {START_TIMEOUT_S:g} s")
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self.app

    def stop(self) -> None:
        """Stop the broker and wait for the thread."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            raise RequestTimeoutError(f"the broker did not stop within {STOP_TIMEOUT_S:g} s")
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            import uvloop

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._main())
        except ModuleNotFoundError as error:
            self._error = InvalidConfigError(install_hint(error))
            self._error.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            self._error = error
        self._started.set()

    async def _main(self) -> None:
        from strandline.process.wiring import BrokerApp, run_until

        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.app = BrokerApp(self._config, with_nats=self._with_nats)
        await self.app.start()
        self._started.set()
        await run_until(self.app, self._stop)

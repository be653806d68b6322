"""Construction of a broker and its servers, and their order of start and stop."""

import asyncio
import subprocess
import sys
import urllib.request

import pytest
from msgspec import structs

from strandline.broker.lock import DataDirLock
from strandline.config import BrokerConfig, NatsConfig
from strandline.errors import DataDirLockedError, UnavailableError
from strandline.process.wiring import BrokerApp


@pytest.fixture
def config(tmp_path):
    """Free ports and no nats-server."""
    return BrokerConfig(
        data_dir=str(tmp_path / "data"),
        flight_port=0,
        http_port=0,
        nats=NatsConfig(port=0, ingest_port=0),
    )


class FrontEnd:
    """A listener that records its start and stop, and fails on command."""

    def __init__(self, name, story, *, fails=False):
        self.name = name
        self.story = story
        self.fails = fails
        self.port = 0

    async def start(self):
        if self.fails:
            raise UnavailableError(f"{self.name}: no port")
        self.story.append(f"{self.name} starts")

    async def stop(self):
        self.story.append(f"{self.name} stops")


def app_with(config, story, *, failing=""):
    """An app whose front ends are notes in a story."""
    app = BrokerApp(config)
    for name in ("nats", "flight", "http"):
        setattr(app, f"_{name}", FrontEnd(name, story, fails=name == failing))
    return app


async def test_listeners_stop_first_and_the_broker_last(config):
    """No client is served by a half-started broker, and every accepted record is answered."""
    story = []
    app = app_with(config, story)
    app.broker.on_streams_changed(lambda names: None)
    await app.start()
    assert app.broker.is_ready
    await app.stop()
    assert story[:3] == ["nats starts", "flight starts", "http starts"]
    assert sorted(story[3:]) == ["flight stops", "http stops", "nats stops"]
    assert not app.broker.is_ready
    await app.stop()  # harmless


@pytest.mark.parametrize("failing", ["nats", "flight", "http"])
async def test_a_listener_that_cannot_start_leaves_nothing_running(config, failing, tmp_path):
    """Started parts are stopped, and the data directory is released."""
    story = []
    app = app_with(config, story, failing=failing)
    with pytest.raises(UnavailableError, match=f"{failing}: no port"):
        await app.start()
    started = {line.split()[0] for line in story if line.endswith("starts")}
    assert started == {line.split()[0] for line in story if line.endswith("stops")}
    DataDirLock(tmp_path / "data").release()


async def test_a_listener_that_cannot_stop_does_not_keep_the_broker(config, tmp_path):
    """The error is raised, but the group commit was finished and the directory is free."""
    app = app_with(config, [])
    await app.start()

    async def broken():
        raise RuntimeError("a bug")

    app._flight.stop = broken
    with pytest.raises(RuntimeError):
        await app.stop()
    assert not app.broker.is_ready
    DataDirLock(tmp_path / "data").release()


async def test_a_locked_directory_starts_no_listener(config, tmp_path):
    """The second broker fails before it binds any port."""
    lock = DataDirLock(tmp_path / "data")
    story = []
    with pytest.raises(DataDirLockedError):
        await app_with(config, story).start()
    assert not story
    lock.release()


async def test_the_ready_line_names_every_port(config):
    """Flight and HTTP answer on their ports; disabled ones are None."""
    app = BrokerApp(config, with_nats=False)
    await app.start()
    try:
        line = app.ready_line()
        assert line["event"] == "ready"
        assert line["data_dir"] == config.data_dir
        assert line["flight_port"] == app.flight_port > 0
        assert line["http_port"] == app.http_port > 0
        assert (line["nats_port"], line["ingest_port"], line["grpc_port"]) == (None, None, None)
        assert set(line) >= {"host", "nats_port", "ingest_port", "flight_port", "http_port"}
        url = f"http://{config.host}:{app.http_port}/health/live"
        assert await asyncio_get(url) == 200
    finally:
        await app.stop()


OFF = """
import sys, strandline
from strandline.testing import Server

with Server(nats=False, http_port=-1) as url:
    strandline.connect(url).close()
print(*sorted({"grpc", "h11", "h2", "jinja2", "starlette", "uvicorn"} & set(sys.modules)))
"""


async def test_a_listener_that_is_off_has_no_port(config):
    """The web page and gRPC can be off."""
    off = structs.replace(config, http_port=-1)
    app = BrokerApp(off, with_nats=False)
    await app.start()
    try:
        line = app.ready_line()
        assert (line["http_port"], line["grpc_port"], line["beam_port"]) == (None, None, None)
    finally:
        await app.stop()


def test_a_listener_that_is_off_is_not_imported():
    """A broker without the web page and gRPC does not pay for their libraries."""
    shown = subprocess.run([sys.executable, "-c", OFF], capture_output=True, check=True, text=True)
    assert shown.stdout == "\n"


async def asyncio_get(url):
    """Status of a GET, asked from another thread."""

    def get():
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status

    return await asyncio.to_thread(get)

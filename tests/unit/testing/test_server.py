"""The server for users' tests: start, stop, addresses and leftovers."""

import subprocess
import sys
import threading
from pathlib import Path

import nats
import pytest

import strandline
from strandline.errors import DataDirLockedError, InvalidConfigError
from strandline.testing import Server, ServerUrl


def test_a_context_gives_an_address(tmp_path):
    """A string that connect takes, with the rest as attributes."""
    with Server() as url:
        assert isinstance(url, ServerUrl)
        assert url.flight == str(url)
        assert url.nats_url is None
        assert url.http_url is None
        data_dir = url.data_dir
        assert data_dir.is_dir()
        with strandline.connect(url) as client:
            client.create_stream("s")
            assert client.append("s", b"v") == 0
    assert not data_dir.exists()


def test_a_given_directory_is_kept(tmp_path):
    """A test may stop a server and start another on its data."""
    with Server(data_dir=tmp_path) as url, strandline.connect(url) as client:
        client.create_stream("s")
        client.append("s", b"kept")
    with Server(data_dir=tmp_path) as url, strandline.connect(url) as client:
        assert client.read("s").read_all()["value"].to_pylist() == [b"kept"]


def test_the_object_knows_what_the_address_knows():
    """It can be used as the address; stopping twice is harmless."""
    before = set(threading.enumerate())  # other tests of this process may have brokers
    server = Server(http_port=0)
    url = server.start()
    assert (server.flight, server.http_url) == (url.flight, url.http_url)
    assert url.http_url.startswith("http://127.0.0.1:")
    assert server.app.flight_port == int(url.rsplit(":", 1)[1])
    server.stop()
    server.stop()
    left = set(threading.enumerate()) - before
    assert "strandline-broker" not in {thread.name for thread in left}


def test_errors_of_the_start_reach_the_test(tmp_path):
    """A wrong setting, a directory in use: raised where the server is started."""
    with pytest.raises(InvalidConfigError, match="flight_port"):
        Server(flight_prt=0).start()
    with Server(data_dir=tmp_path), pytest.raises(DataDirLockedError):
        Server(data_dir=tmp_path).start()


def test_several_servers_in_one_process():
    """Each has its own ports, data and streams."""
    with Server() as first, Server() as second:
        assert first != second
        with strandline.connect(first) as one, strandline.connect(second) as two:
            one.create_stream("s")
            assert two.list_streams() == []


def test_fixtures_are_found_by_pytest(strandline_url, strandline_server):
    """The plugin's fixtures belong together."""
    assert strandline_server.flight == strandline_url
    with strandline.connect(strandline_url) as client:
        assert client.list_streams() == []


async def test_a_fixture_gives_nats_to_the_same_broker(strandline_url, strandline_nats_url):
    """What a NATS client publishes is in the stream of the test's broker."""
    with strandline.connect(strandline_url) as client:
        client.create_stream("orders", subject="orders.>")
        async with await nats.connect(strandline_nats_url) as connection:
            await connection.jetstream().publish("orders.oslo", b"two teas")
        assert client.read("orders").read_all()["value"].to_pylist() == [b"two teas"]


def test_without_its_fixture_no_nats_server_is_started(strandline_server):
    """A test that does not publish through NATS does not wait for one."""
    assert strandline_server.nats_url is None


def loaded_by(statement: str) -> set[str]:
    """The top-level packages and our modules that a statement loads."""
    code = f"import sys; {statement}; print(*sys.modules)"
    source = str(Path(strandline.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        text=True,
        env={"PYTHONPATH": source, "PATH": ""},
    )
    return set(done.stdout.split())


HEAVY = {"numpy", "pyarrow", "msgspec", "crc32c", "uvloop", "prometheus_client", "asyncio"}


def test_importing_strandline_is_light():
    """Nothing beyond the standard library until something is used."""
    assert not loaded_by("import strandline; strandline.__version__") & HEAVY


def test_the_pytest_plugin_is_light():
    """pytest imports it at every start, even where it is not used."""
    loaded = loaded_by("import strandline.testing.pytest_plugin")
    assert not loaded & (HEAVY - {"asyncio"})


def test_the_client_loads_no_event_loop_until_it_is_asked_for_one():
    """Spark starts a process for each query, which loads the client."""
    assert "asyncio" not in loaded_by("import strandline.client")
    assert "asyncio" in loaded_by("from strandline.client import AsyncClient, connect_async")


def test_the_client_needs_no_server_packages():
    """A Spark executor installs msgspec and pyarrow only."""
    loaded = loaded_by("import strandline; strandline.connect; strandline.connect_async")
    server = {"crc32c", "uvloop", "prometheus_client", "yaml", "starlette", "strandline.broker"}
    assert not loaded & server
    assert "strandline.record.batch" not in loaded

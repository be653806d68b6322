"""The broker as a process: signals, its nats-server, its lock, its exit codes."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import strandline
from strandline.errors import StrandlineError
from strandline.testing import ProcessServer

pytestmark = pytest.mark.slow
SERVE = (sys.executable, "-m", "strandline.cli", "serve", "--output", "json")
LOADED_LATER = {
    *("h11", "importlib.metadata", "pyarrow._compute", "rich", "starlette", "uvicorn", "yaml"),
    *("strandline.broker.cluster.broker", "strandline.cli.stream", "strandline.cli.top"),
}
FREE_PORTS = [f"--{name}-port=0" for name in ("nats", "ingest", "flight", "http")]


def ended(pid, kit, *, seconds=60.0):
    """Whether a process has ended within this many seconds."""
    deadline = time.monotonic() + seconds
    while kit.is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not kit.is_running(pid)


@pytest.fixture
def loaded(kit):
    """Publishers of both kinds for the stream ``s`` of a server."""

    def make(server):
        with strandline.connect(server.flight) as admin:
            admin.create_stream("s", subject="s.*")
        return [
            kit.Publisher(server.nats_url, "nats", "s.a", window=16),
            kit.Publisher(server.ingest_url, "ingest", "s.b", window=16),
            kit.Publisher(server.ingest_url, "one", "s.c", timeout_s=5.0),
        ]

    return make


@pytest.mark.usefixtures("forgiving")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_sigterm_under_load_loses_nothing_and_leaves_nothing(loaded, kit):
    """Exit code 0, nats-server stopped, every ack valid; the next start has nothing to repair."""
    with ProcessServer() as server:
        publishers = loaded(server)
        async with kit.running(*publishers):
            await kit.progress(publishers)
            child = kit.child_of(server.pid)
            assert await asyncio.to_thread(server.stop) == 0
            assert not kit.is_running(child)
            await asyncio.to_thread(server.start)
            await kit.progress(publishers)
        assert "recovered 0 records" in "".join(server.errors)
        assert "discarded 0 torn bytes" in "".join(server.errors)
        kit.judge(await asyncio.to_thread(kit.read_log, server.flight, "s"), publishers)


@pytest.mark.usefixtures("forgiving")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_killed_nats_server_is_replaced_on_its_port(loaded, kit):
    """Publishers reconnect to the same address and continue; the ingest port is not affected."""
    with ProcessServer() as server:
        publishers = loaded(server)
        async with kit.running(*publishers):
            await kit.progress(publishers)
            child = kit.child_of(server.pid)
            os.kill(child, signal.SIGKILL)
            await kit.progress(publishers)
            await kit.until(lambda: kit.child_of(server.pid) not in (None, child))
        assert not publishers[2].rejections
        kit.judge(await asyncio.to_thread(kit.read_log, server.flight, "s"), publishers)


@pytest.mark.usefixtures("forgiving")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_killed_sync_process_is_replaced(kit):
    """Unsynced records are rejected; the log is reopened and the next process syncs."""
    with ProcessServer() as server:
        with strandline.connect(server.flight) as admin:
            admin.create_stream("s", subject="s.*")
        publishers = [
            kit.Publisher(server.ingest_url, name, f"s.{name}", window=16, padding=2000)
            for name in ("a", "b", "c")
        ]
        async with kit.running(*publishers):
            for _ in range(3):
                await kit.until(lambda: kit.child_of(server.pid, "sync_program"))
                os.kill(child := kit.child_of(server.pid, "sync_program"), signal.SIGKILL)
                await kit.until(lambda child=child: not kit.is_running(child))
                await kit.progress(publishers)
            await kit.until(lambda: kit.child_of(server.pid, "sync_program"))
            child = kit.child_of(server.pid, "sync_program")
        kit.judge(await asyncio.to_thread(kit.read_log, server.flight, "s"), publishers)
        assert await asyncio.to_thread(server.stop) == 0
        assert not kit.is_running(child)


def test_what_nobody_asked_for_is_not_loaded():
    """A broker without access rules, encrypted streams and gRPC does not pay for them in memory."""
    with ProcessServer() as server, strandline.connect(server.flight) as admin:
        admin.create_stream("s")
        mapped = Path(f"/proc/{server.pid}/maps").read_text()
    assert "pyarrow" in mapped
    assert "cryptography" not in mapped
    assert "google/_upb" not in mapped
    assert "pandas" not in mapped  # pyarrow would import it, where it is installed


def test_a_broker_loads_libraries_for_the_first_client_that_needs_them(tmp_path):
    """At its start none of the web page's, of Arrow's functions, of a cluster's, of other commands.

    The listeners are the default ones: NATS, ingest, Arrow Flight and HTTP.
    """
    file = tmp_path / "imports"
    command = ("sh", "-c", 'exec "$@" 2> "$0"', str(file), *SERVE)

    def imported():
        return set(re.findall(r"\| +(\S+)$", file.read_text(), re.MULTILINE))

    with ProcessServer(command=command, environment={"PYTHONPROFILEIMPORTTIME": "1"}) as server:
        assert {"pyarrow.flight", "strandline.servers.nats.frontend"} <= imported()
        assert not LOADED_LATER & imported()
        with urllib.request.urlopen(f"{server.http_url}/health/live", timeout=60) as answer:
            assert answer.status == 200
        assert {"starlette", "uvicorn"} <= imported()
        with strandline.connect(server.flight) as client:
            client.create_stream("s")
            client.append("s", b"v")
        assert "pyarrow._compute" in imported()


def test_commands_that_make_no_data_frame_do_without_pandas(tmp_path):
    """Half of the time of a short command, and of the start of a local load, goes to its import."""
    file = tmp_path / "load.yaml"
    with ProcessServer() as server:
        with strandline.connect(server.flight) as admin:
            admin.create_stream("s")
        load = {"kind": "load", "engine": "local", "server": server.flight, "streams": ["s"]}
        load |= {"into": str(tmp_path / "table"), "checkpoint": str(tmp_path / "checkpoint")}
        file.write_text(json.dumps(load))
        at = ("--server", server.flight)
        for words in (("publish", "s", "x", *at), ("read", "s", *at), ("pipeline", "run", file)):
            command = (sys.executable, "-X", "importtime", "-m", "strandline.cli", *words)
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            assert re.search(r"\| +pyarrow$", done.stderr, re.MULTILINE)
            assert "pandas.core" not in done.stderr, words


def test_the_nats_server_dies_with_the_broker(kit):
    """After kill -9 of the broker its child ends within seconds."""
    with ProcessServer() as server:
        child = kit.child_of(server.pid)
        assert kit.is_running(child)
        server.kill()
        assert ended(child, kit)


def test_a_second_broker_on_the_directory_is_rejected(tmp_path):
    """Exit code 1 and one line that names the directory, the first one's pid and the way out."""
    with ProcessServer(tmp_path / "data") as server:
        second = subprocess.run(
            [*SERVE, "--data-dir", str(server.data_dir), *FREE_PORTS],
            capture_output=True,
            check=False,
            text=True,
            timeout=30,
        )
        assert second.returncode == 1
        assert "data_dir_locked" in second.stdout + second.stderr
        assert f"pid {server.pid}" in second.stdout + second.stderr
        assert "Traceback" not in second.stderr
        with strandline.connect(server.flight) as client:
            assert client.list_streams() == []


def test_a_port_that_is_taken_leaves_nothing_behind(tmp_path, kit):
    """The error names the port; no nats-server stays, and the directory is free again."""
    with ProcessServer(tmp_path / "one") as server:
        taken = server.ready["http_port"]
        with pytest.raises(StrandlineError, match=str(taken)):
            ProcessServer(tmp_path / "two", arguments=("--http-port", str(taken))).start()
        with ProcessServer(tmp_path / "two"):
            pass


@pytest.mark.parametrize("delay_s", [0.1, 0.7, 1.0])
def test_sigterm_while_starting_leaves_nothing_behind(tmp_path, kit, delay_s):
    """Whenever the signal comes, the process ends soon and so does its nats-server."""
    process = subprocess.Popen(
        [*SERVE, "--data-dir", str(tmp_path / "data"), *FREE_PORTS],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(delay_s)
    child = kit.child_of(process.pid)
    process.terminate()
    assert process.wait(60) in (0, -signal.SIGTERM)
    assert child is None or ended(child, kit)
    with ProcessServer(tmp_path / "data"):
        pass


def test_an_impatient_second_signal_ends_it_at_once(tmp_path, kit):
    """A second signal ends a clean stop at once; no acknowledged record is lost."""
    with ProcessServer(tmp_path / "data") as server:
        with strandline.connect(server.flight) as client:
            client.create_stream("s")
            assert client.append("s", b"a") == 0
        child = kit.child_of(server.pid)
        os.kill(child, signal.SIGSTOP)  # a child that does not end holds up the stop
        server.signal(signal.SIGTERM)
        time.sleep(0.3)
        server.signal(signal.SIGTERM)
        assert ended(server.pid, kit)
        assert ended(child, kit)
        server.restart()
        assert kit.read_log(server.flight, "s")[0] == [(0, "s", b"a")]

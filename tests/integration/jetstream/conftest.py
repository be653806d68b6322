"""The JetStream API, used by stock clients; often compared with nats-server's own JetStream.

A test of the fixture ``js`` runs against both, so what it asserts is what JetStream does.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import nats
import pytest

from strandline.process.ports import free_ports
from strandline.servers.nats.embedded_server import find_binary
from strandline.testing.server import Server
from tests.kit.clusters import IDS, three_brokers

API = "$JS.API."
PATIENCE_S = 30
NS = 1_000_000_000
SILENCE_S = 0.2
CLI_VERSION = "v0.5.1"
HERE = Path(__file__).parent
GO_MODULE = """\
module strandline/jetstream
go 1.21
require github.com/nats-io/nats.go v1.55.0
"""
JAVASCRIPT_PACKAGES = {
    "@nats-io/transport-node": "3.4.0",
    "@nats-io/jetstream": "3.4.0",
    "@nats-io/kv": "3.4.0",
    "nats": "2.29.3",
}
VARYING = re.compile(r'"(created|ts|time|first_ts|last_ts|last_active)":"[^"]*"')


@contextlib.contextmanager
def nats_server(directory):
    """A nats-server with JetStream."""
    [port] = free_ports(1)
    arguments = [find_binary(), "-js", "-sd", str(directory), "-a", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not _listens(port):
            assert time.monotonic() < deadline, "nats-server does not start"
            time.sleep(0.02)
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="session")
def ours():
    """A broker with its nats-server."""
    with Server(nats=True) as url:
        yield url


@pytest.fixture(scope="session")
def theirs(tmp_path_factory):
    """The URL of a nats-server with JetStream."""
    with nats_server(tmp_path_factory.mktemp("jetstream")) as url:
        yield url


@pytest.fixture(params=["strandline", "nats-server"])
def url(request):
    """Where clients connect to: here and there."""
    if request.param == "strandline":
        return request.getfixturevalue("ours").nats_url
    return request.getfixturevalue("theirs")


async def connected(url):
    """A stock client, once its server listens."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await nats.connect(url, allow_reconnect=False, connect_timeout=5)
            except (OSError, nats.errors.Error):
                await asyncio.sleep(0.05)


@pytest.fixture
async def nc(url):
    """A stock client."""
    client = await connected(url)
    yield client
    await client.close()


@pytest.fixture
async def our_nc(ours):
    """A stock client of the broker."""
    client = await connected(ours.nats_url)
    yield client
    await client.close()


def name_of(request):
    return "".join(c if c.isalnum() else "_" for c in request.node.name)


class Asker:
    """Sends requests of the API, and returns answers as they are or decoded."""

    def __init__(self, nc):
        self.nc = nc

    async def raw(self, operation, body=None, *, headers=None):
        payload = b"" if body is None else body
        if not isinstance(payload, bytes):
            payload = json.dumps(payload).encode()
        return await self.nc.request(API + operation, payload, headers=headers, timeout=5)

    async def __call__(self, operation, body=None, **options):
        return json.loads((await self.raw(operation, body, **options)).data)

    async def error(self, operation, body=None, **options):
        """The error's numbers and its text."""
        found = (await self(operation, body, **options))["error"]
        return found["code"], found["err_code"], found["description"]

    async def pull(self, stream, consumer, body=None, *, seconds=1.0):
        """Return the messages and statuses of one pull, and what comes just after its end.

        One that the server does not end has ``seconds`` for each message.
        """
        payload, options = body or b"", body if isinstance(body, dict) else {}
        if not isinstance(payload, bytes):
            payload = json.dumps(payload).encode()
        wanted = options.get("batch", int(payload) if payload.isdigit() else 1)
        patience = PATIENCE_S if {"expires", "no_wait"} & set(options) else seconds
        inbox = self.nc.new_inbox()
        receiving = await self.nc.subscribe(inbox)
        await self.nc.publish(f"{API}CONSUMER.MSG.NEXT.{stream}.{consumer}", payload, reply=inbox)
        found = []
        with contextlib.suppress(nats.errors.TimeoutError):
            while True:
                found.append(await receiving.next_msg(timeout=patience))
                status = (found[-1].headers or {}).get("Status")
                wanted -= status is None
                is_full = wanted <= 0 and "max_bytes" not in options
                if is_full or status not in (None, "100"):
                    patience = SILENCE_S
        await receiving.unsubscribe()
        return found

    async def consumer(self, stream, name, **config):
        """Make a consumer; its info."""
        body = {"stream_name": stream, "config": {"name": name, "ack_policy": "explicit", **config}}
        return await self(f"CONSUMER.CREATE.{stream}.{name}", body)


async def until(condition):
    """Wait for something to become so."""
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110  the other end changes it
            await asyncio.sleep(0.05)


def shape(message):
    """Return a message as tests compare it: data, or the status and its headers."""
    headers = dict(message.headers or {})
    if "Status" not in headers:
        return message.data.decode()
    text = headers.get("Description", "")
    left = headers.get("Nats-Pending-Messages"), headers.get("Nats-Pending-Bytes")
    return (headers["Status"], text) if left == (None, None) else (headers["Status"], text, *left)


async def ended_by_its_group(ask, admin, stream, name):
    """Delete a consumer's group: its waiting pull ends, and clients no longer find it."""
    pulling = asyncio.create_task(ask.pull(stream, name, {"expires": PATIENCE_S * NS}))

    async def is_waiting():
        return (await ask(f"CONSUMER.INFO.{stream}.{name}"))["num_waiting"] == 1

    await until(is_waiting)
    began = time.monotonic()
    await asyncio.to_thread(admin.groups.delete, f"js/{stream}/{name}")
    assert (await ask.error(f"CONSUMER.INFO.{stream}.{name}"))[1] == 10014
    assert name not in (await ask(f"CONSUMER.NAMES.{stream}"))["consumers"]
    assert [shape(each)[:2] for each in await pulling] == [("409", "Consumer Deleted")]
    assert time.monotonic() - began < PATIENCE_S / 2, "not when the pull was over"


def floor_of(info):
    """The sequences up to which everything is acknowledged."""
    return info["ack_floor"]["consumer_seq"], info["ack_floor"]["stream_seq"]


async def used_up(ask, stream, count):
    """Make the consumer ``u``, and let all messages be delivered as often as they may be."""
    await ask.consumer(stream, "u", durable_name="u", max_deliver=2, ack_wait=NS // 2)
    body = {"batch": 2 * count, "expires": 2 * NS}
    found = await ask.pull(stream, "u", body)
    assert len(found) == 2 * count
    [status] = await ask.pull(stream, "u", {"expires": NS})
    assert shape(status)[0] == "408"
    info = await ask(f"CONSUMER.INFO.{stream}.u")
    assert (info["delivered"]["consumer_seq"], info["num_pending"]) == (2 * count, 0)
    assert (floor_of(info), info["num_ack_pending"]) == ((0, 0), 0)
    assert info["num_redelivered"] == count
    return found


@pytest.fixture
def ask(nc):
    return Asker(nc)


@pytest.fixture
def ask_us(our_nc):
    return Asker(our_nc)


async def make(nc, name, subject, **settings):
    """Make a stream, which both kinds of servers then show alike."""
    js = nc.jetstream()
    await js.add_stream(name=name, subjects=[subject], **settings)
    return js


@pytest.fixture
async def stream(nc, request):
    """The test's own stream, with subjects below its name; deleted at the end."""
    name = name_of(request)
    js = await make(nc, name, f"{name}.>")
    yield SimpleNamespace(name=name, subject=lambda rest: f"{name}.{rest}", js=js)
    await js.delete_stream(name)


@pytest.fixture(scope="session")
def go_programs(tmp_path_factory):
    """The folder of the compiled programs in Go."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not on the PATH")
    folder = tmp_path_factory.mktemp("go")
    shutil.copytree(HERE / "go", folder, dirs_exist_ok=True)
    (folder / "go.mod").write_text(GO_MODULE)
    (folder / "built").mkdir()
    environment = {**os.environ, "GOFLAGS": "-mod=mod"}
    built = subprocess.run(
        [go, "build", "-o", "built/", "./..."],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    if built.returncode:
        pytest.skip(f"the programs cannot be built, offline perhaps: {built.stderr[-500:]}")
    return folder / "built"


@pytest.fixture(scope="session")
def javascript_programs(tmp_path_factory):
    """The folder of the programs in JavaScript, with the packages that they need."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("Node is not on the PATH")
    folder = tmp_path_factory.mktemp("javascript")
    shutil.copytree(HERE / "javascript", folder, dirs_exist_ok=True)
    packages = {"private": True, "dependencies": JAVASCRIPT_PACKAGES}
    (folder / "package.json").write_text(json.dumps(packages))
    installed = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--loglevel", "error"],
        cwd=folder,
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    if installed.returncode:
        pytest.skip(f"the packages cannot be installed, offline perhaps: {installed.stderr[-500:]}")
    return folder


@pytest.fixture(scope="session")
def nats_command(tmp_path_factory):
    """Path of the ``nats`` command: the one on the PATH, or one that Go builds."""
    found, go = shutil.which("nats"), shutil.which("go")
    if found is not None:
        return found
    if go is None:
        pytest.skip("neither the nats command (github.com/nats-io/natscli) nor Go is on the PATH")
    folder = tmp_path_factory.mktemp("natscli")
    built = subprocess.run(
        [go, "install", f"github.com/nats-io/natscli/nats@{CLI_VERSION}"],
        env={**os.environ, "GOBIN": str(folder), "GOFLAGS": "-mod=mod"},
        capture_output=True,
        check=False,
        text=True,
        timeout=600,
    )
    if built.returncode:
        pytest.skip(f"the nats command cannot be built: {built.stderr[-500:]}")
    return str(folder / "nats")


@pytest.fixture
def cli(tmp_path, nats_command):
    """A function that runs the ``nats`` command and returns its text.

    It keeps its settings in a directory of its own.
    """

    def run(url, *arguments, stdin=None):
        found = subprocess.run(
            [nats_command, "--server", url, *arguments],
            env={"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path), "PATH": ""},
            capture_output=True,
            check=False,
            input=stdin,
            text=True,
            timeout=60,
        )
        assert found.returncode == 0, (arguments, found.stdout, found.stderr)
        return found.stdout + found.stderr

    return run


@pytest.fixture
def cluster(tmp_path):
    """Three brokers as processes with connected nats-servers, by number."""
    ports = free_ports(len(IDS))
    meeting = ",".join(f"{n}=127.0.0.1:{port}" for n, port in zip(IDS, ports, strict=True))
    with three_brokers(tmp_path, more=("--nats-peers", meeting)) as servers:
        yield servers

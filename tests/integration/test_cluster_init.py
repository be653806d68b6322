"""A cluster from the settings that ``strandline cluster init`` writes, without others."""

import asyncio
import contextlib
import json
import shlex
import socket
import subprocess
import sys

import nats
import pytest

import strandline
from strandline.config import bracketed

pytestmark = pytest.mark.slow
STRANDLINE = (sys.executable, "-m", "strandline.cli")
IDS = (1, 2, 3)
OWN_NETWORK = [word for n in IDS for word in ("--peer-host", f"{n}=127.0.{n}.1")]


def run(*arguments):
    """Return a command's output for programs."""
    done = subprocess.run(
        [*STRANDLINE, *arguments, "--output", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


def has_ipv6():
    """Whether this machine has its own address in IPv6."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


WITH_IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.fixture(
    params=[
        pytest.param(("127.0.0.1", []), id="one network"),
        pytest.param(("127.0.0.1", OWN_NETWORK), id="a network of their own"),
        pytest.param(("::1", []), id="IPv6", marks=WITH_IPV6),
    ]
)
def founded(tmp_path, request):
    """Return the command's output for three brokers on this machine."""
    host, more = request.param
    brokers = [word for n in IDS for word in ("--broker", f"{n}={host}")]
    racks = [word for n in IDS for word in ("--rack", f"{n}=rack-{n}")]
    where = ("--port-base", "0", "--out", str(tmp_path / "cluster"))
    return run("cluster", "init", *brokers, *racks, *more, *where)


@contextlib.contextmanager
def started(founded):
    """All brokers, each started with the very command that was printed, and ready."""
    processes = []
    try:
        for broker in founded["brokers"]:
            command = [*STRANDLINE, *shlex.split(broker["command"])[1:], "--output", "json"]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for process, broker in zip(processes, founded["brokers"], strict=True):
            ready = json.loads(process.stdout.readline())
            assert ready["broker_id"] == broker["broker_id"]
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)
            process.stdout.close()


def accepts(host, port):
    """Whether anybody listens there."""
    try:
        with socket.create_connection((host, port), timeout=5):
            return True
    except ConnectionRefusedError:
        return False


@pytest.mark.timeout(300)
async def test_the_settings_make_a_cluster(founded, kit):
    """Three brokers are live, their nats-servers connect, and peers use the right ports."""

    def live():
        try:
            shown = run(*shlex.split(founded["status_command"])[1:])
        except subprocess.CalledProcessError:
            return None  # it has not got the metadata since its start
        assert shown["cluster"] == founded["cluster_id"]
        return [(b["id"], b["flight_address"], b["rack"]) for b in shown["brokers"] if is_live(b)]

    def is_live(broker):
        return broker["state"] == "live"

    brokers = founded["brokers"]
    expected = [(b["broker_id"], b["flight"], f"rack-{b['broker_id']}") for b in brokers]
    with started(founded):
        await kit.until(lambda: live() == expected)
        with strandline.connect(brokers[0]["flight"]) as client:
            client.create_stream("orders", replicas=3, min_isr=2)
        await published_at_each(brokers)
        for broker in brokers:
            for name in ("peer_port", "nats_peer_port"):
                port = broker["ports"][name]
                assert accepts(broker["peer_host"] or broker["host"], port)
                assert accepts(broker["host"], port) is not bool(broker["peer_host"])


async def published_at_each(brokers):
    """Publish at the nats-server of every broker, which one leader answers."""
    for broker in brokers:
        host = bracketed(broker["host"])
        client = await nats.connect(f"nats://{host}:{broker['ports']['nats_port']}")
        try:
            async with asyncio.timeout(60):
                ack = await client.jetstream().publish("orders", b"x", timeout=30)
        finally:
            await client.close()
        assert ack.stream == "orders"
    assert ack.seq == len(brokers)

"""A file system that is really full: publishers get errors, no acked record is lost, it recovers.

Needs the right to mount; skipped where there is none.
"""

import asyncio
import contextlib
import os
import subprocess
import urllib.error
import urllib.request

import pytest

import strandline
from strandline.errors import DiskFullError, StrandlineError
from strandline.servers.nats.embedded_server import EmbeddedNatsServer
from strandline.testing import ProcessServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("forgiving"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SETTINGS = {
    "STRANDLINE_JOURNAL__FILE_BYTES": str(1 << 20),
    "STRANDLINE_JOURNAL__CHECKPOINT_INTERVAL_MS": "500",
}
START_S = 10.0
"""Long enough for a broker that starts, or gives up, on a full disk."""


def run(*command):
    return subprocess.run(command, capture_output=True, check=False, text=True)


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request, tmp_path):
    """A file system with some 24 MiB free, mounted."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    place = tmp_path / "disk"
    place.mkdir()
    if request.param == "tmpfs":
        mounted = run("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place))
    else:
        image = tmp_path / "image"
        with image.open("wb") as file:
            file.truncate(32 << 20)  # its own journal takes a part
        made = run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
        if made.returncode:
            pytest.skip(f"mkfs.ext4: {made.stderr.strip()}")
        mounted = run("mount", "-o", "loop", str(image), str(place))
    if mounted.returncode:
        pytest.skip(f"mount {request.param}: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        gone = run("umount", str(place))
        assert gone.returncode == 0, gone.stderr


def fill(place, *, leave=0):
    """Take the free space of a file system, but for a little; returns the file that does."""
    run("sync", "-f", str(place))  # ext4 frees what was deleted only then
    ballast = place / "ballast"
    state = os.statvfs(place)
    missing = state.f_bavail * state.f_frsize - leave
    descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):  # the broker took some meanwhile
        while missing > 0:
            missing -= os.write(descriptor, bytes(min(missing, 1 << 16)))
    os.close(descriptor)
    return ballast


def refused(publisher):
    """How often a full disk was reported."""
    return sum(count for why, count in publisher.rejections.items() if "no space left" in why)


async def test_a_full_disk_rejects_and_heals(small_disk, kit):
    """Errors say disk_full, acked records stay, and service returns when there is space again."""
    with ProcessServer(small_disk / "data", environment=SETTINGS) as server:
        with strandline.connect(server.flight) as admin:
            admin.create_stream("s", subject="s.*", partitions=2, segment_bytes=1 << 20)
        publishers = [
            kit.Publisher(server.nats_url, "nats", "s.a", window=8, padding=2000, timeout_s=2.0),
            kit.Publisher(server.ingest_url, "one", "s.b", padding=2000, timeout_s=2.0),
        ]
        reader = kit.Reader(server.flight, "s")
        async with kit.running(*publishers, reader):
            await kit.progress(publishers)
            ballast = fill(small_disk, leave=1 << 20)
            await kit.until(lambda: all(refused(each) > 3 for each in publishers), seconds=120)
            with strandline.connect(server.flight) as client:
                append_until_full(client, "s")
                assert len(list(client.read("s", records_max=1))) == 1, "reading goes on"
            ballast.unlink()
            await kit.progress(publishers)
        log = await asyncio.to_thread(kit.read_log, server.flight, "s")
        ours = {p: [r for r in rows if not r[2].startswith(b"\0")] for p, rows in log.items()}
        check(kit, log, ours, publishers)
        reader.judge(log)
        assert await asyncio.to_thread(server.stop) == 0
        await asyncio.to_thread(server.start)
        assert await asyncio.to_thread(kit.read_log, server.flight, "s") == log


def check(kit, log, ours, publishers):
    """Judge the publishers' records among others."""
    for records in log.values():
        assert [offset for offset, _, _ in records] == list(range(len(records)))
    places = {}
    for records in ours.values():
        for offset, _, value in records:
            name, number, _ = value.split(b" ", 2)
            assert (name.decode(), int(number)) not in places, "each once"
            places[name.decode(), int(number)] = offset
    for each in publishers:
        assert all(places[each.name, n] == offset for n, offset in each.acked.items())


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_what_was_acked_survives_an_end_on_a_full_disk(small_disk, kit, end):
    """Killed or stopped while full, and started with space again: every ack was true."""
    with ProcessServer(small_disk / "data", environment=SETTINGS) as server:
        with strandline.connect(server.flight) as admin:
            admin.create_stream("s", subject="s.*", segment_bytes=1 << 20)
        publishers = [
            kit.Publisher(server.ingest_url, name, f"s.{name}", window=8, padding=500)
            for name in ("a", "b")
        ]
        async with kit.running(*publishers):
            await kit.progress(publishers)
            ballast = fill(small_disk, leave=200_000)
            await kit.until(lambda: all(refused(each) > 3 for each in publishers), seconds=120)
            await asyncio.to_thread(getattr(server, end))
            starting = asyncio.create_task(asyncio.to_thread(server.start))
            await asyncio.wait({starting}, timeout=START_S)  # it may wait for space, or need none
            ballast.unlink()
            with contextlib.suppress(StrandlineError):  # what only the journal has needs space
                await starting
            if not server.is_running:
                assert "no space left" in "".join(server.errors)
                await asyncio.to_thread(server.start)
            await kit.progress(publishers)
        kit.judge(await asyncio.to_thread(kit.read_log, server.flight, "s"), publishers)


async def test_a_broker_starts_on_a_full_disk(small_disk, kit):
    """It serves reads and says why it is not ready; with space again all of it works, NATS too."""
    with ProcessServer(small_disk / "data", environment=SETTINGS) as server:
        with strandline.connect(server.flight) as client:
            client.create_stream("s", subject="s.*", segment_bytes=1 << 20)
            for _ in range(20):
                client.append("s", bytes(100_000))
        assert await asyncio.to_thread(server.stop) == 0
        log = [(offset, "s._", bytes(100_000)) for offset in range(20)]
        ballast = fill(small_disk)
        await asyncio.to_thread(server.start)
        assert kit.read_log(server.flight, "s") == {0: log}
        publisher = kit.Publisher(server.nats_url, "nats", "s.a", padding=2000)
        with strandline.connect(server.flight) as client:
            append_until_full(client, "s")
            assert readiness(server) == (503, "the disk is full: publishes are rejected\n")
            ballast.unlink()
            await until_appended(client, "s")
        assert readiness(server) == (200, "ready\n")
        async with kit.running(publisher):
            await kit.progress([publisher])


def readiness(server):
    """Status and words of the health page."""
    try:
        with urllib.request.urlopen(f"{server.http_url}/health/ready", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("leave", [0, 4096], ids=["nothing", "one page"])
async def test_nats_server_is_started_again_once_there_is_space(small_disk, leave):
    """Its start needs a little space: it is retried until there is some."""
    (small_disk / "nats").mkdir()
    child = EmbeddedNatsServer(
        small_disk / "nats", host="127.0.0.1", port=0, payload_max=1 << 20, on_restart=lambda: None
    )
    ballast = fill(small_disk, leave=leave)
    starting = asyncio.create_task(child.start())
    try:
        await asyncio.sleep(1)
        ballast.unlink()
        await starting
        assert child.port > 0
    finally:
        await child.stop()


async def test_deleting_records_frees_the_disk(small_disk, kit):
    """The way out needs no space itself: shorten or delete a stream, and service returns."""
    with (
        ProcessServer(small_disk / "data", environment=SETTINGS) as server,
        strandline.connect(server.flight) as client,
    ):
        for name in ("old", "new"):
            client.create_stream(name, segment_bytes=1 << 20)
        for _ in range(50):
            client.append("old", bytes(100_000))
        fill(small_disk)
        append_until_full(client, "new")
        client.delete_records("old", 40)
        await until_appended(client, "new")
        fill(small_disk)
        append_until_full(client, "new")
        client.delete_stream("old")
        await until_appended(client, "new")


def append_until_full(client, stream):
    """Append until there is no space; the error has a remedy."""

    def append():
        for _ in range(300):
            client.append(stream, bytes(100_000))

    with pytest.raises(DiskFullError, match="free some"):
        append()


async def until_appended(client, stream):
    """Append until it works."""
    async with asyncio.timeout(60):
        while True:
            try:
                client.append(stream, b"small")
            except DiskFullError:
                await asyncio.sleep(0.1)
            else:
                return

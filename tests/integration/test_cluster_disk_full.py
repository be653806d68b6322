"""The leader's disk is really full: another broker leads, and keeps the leadership for a while.

Needs the right to mount; skipped where there is none.
"""

import os
import subprocess
import sys
import time

import pytest

import strandline
from strandline.errors import StrandlineError
from strandline.testing import ProcessServer
from tests.kit.clusters import IDS, leader_of, status, three_brokers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
FULL = 1
"""The broker with the small disk."""
SETTINGS = {
    "STRANDLINE_JOURNAL__FILE_BYTES": str(1 << 20),
    "STRANDLINE_JOURNAL__CHECKPOINT_INTERVAL_MS": "500",
}
HANDOVER_S = 10.0
OLD_BYTES = 6_000_000


@pytest.fixture
def small_disk(tmp_path):
    """The data directory of one broker on a file system of its own, some 24 MiB large."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    place = tmp_path / f"broker-{FULL}"
    place.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place))
    mounted = subprocess.run(command, capture_output=True, check=False, text=True)
    if mounted.returncode:
        pytest.skip(f"mount tmpfs: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(("umount", str(place)), check=True)


def test_a_leader_on_a_full_disk_hands_over_and_publishing_continues(small_disk, tmp_path, kit):
    """Within seconds another copy leads; back with space the old leader first catches up."""
    with three_brokers(tmp_path, environment_of=lambda _: SETTINGS) as servers:
        lead_at_full(servers, kit)
        fill(small_disk)
        began = time.monotonic()
        with strandline.connect(address_of_all(servers)) as client:
            while leader_of(servers) == FULL:
                assert time.monotonic() < began + HANDOVER_S, "it leads still"
                append(client)
            for _ in range(20):
                kit.persist(lambda: append_or_raise(client))
        assert FULL not in status(servers[2]).isr, "no commit waits for it"
        (small_disk / "ballast").unlink()
        kit.persist(lambda: is_in_sync(servers))
        assert leader_of(servers) != FULL, "a disk that worked for a moment leads nothing yet"


def test_deleting_a_stream_frees_the_disk_without_a_restart(small_disk, tmp_path, kit):
    """The broker takes part again, though nothing else made room."""
    with three_brokers(tmp_path, environment_of=lambda _: SETTINGS) as servers:
        lead_at_full(servers, kit)
        with strandline.connect(address_of_all(servers)) as client:
            client.create_stream("old", replicas=3, min_isr=2, segment_bytes=1 << 20)
            for _ in range(OLD_BYTES // 100_000):
                client.append("old", bytes(100_000))
            kit.persist(lambda: is_in_sync(servers, "old"))
            fill(small_disk)
            began = time.monotonic()
            while leader_of(servers) == FULL:
                assert time.monotonic() < began + HANDOVER_S, "it leads still"
                append(client)
            client.delete_stream("old")
        kit.persist(lambda: has_free(small_disk, OLD_BYTES), seconds=30)
        kit.persist(lambda: is_in_sync(servers))


def has_free(place, size):
    """Half of it at least: the broker has been waiting for space."""
    state = os.statvfs(place)
    assert state.f_bavail * state.f_frsize > size // 2


def lead_at_full(servers, kit):
    """A stream whose leader is, and is preferred to be, the broker with the small disk."""
    with strandline.connect(address_of_all(servers)) as admin:
        admin.create_stream(
            "orders", subject="orders", replicas=3, min_isr=2, segment_bytes=1 << 20
        )

    def leads():
        cli(servers[2], "cluster", "elect", "orders", "--leader", str(FULL))
        assert leader_of(servers) == FULL

    kit.persist(leads)
    kit.persist(lambda: is_in_sync(servers))


def cli(server: ProcessServer, *arguments):
    """Run one of our commands at a broker."""
    command = (sys.executable, "-m", "strandline.cli", *arguments, "--server", server.flight)
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr


def fill(place):
    """Take all space there is."""
    with (place / "ballast").open("wb") as file:
        try:
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        except OSError:
            pass  # that is what was wanted


def append(client):
    """Publish once; whether it was acknowledged."""
    try:
        return append_or_raise(client)
    except StrandlineError:
        return False


def append_or_raise(client):
    client.append("orders", b"x" * 100_000)
    return True


def is_in_sync(servers, stream="orders"):
    assert tuple(status(servers[2], stream).isr) == IDS


def address_of_all(servers):
    return ",".join(server.flight for server in servers.values())

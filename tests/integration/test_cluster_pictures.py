"""The operator's view of a cluster without a majority and of a leaderless partition."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import strandline
from tests.kit.clusters import in_sync

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def run(*command):
    """Run one of our commands to its end."""
    whole = (sys.executable, "-m", "strandline.cli", *command)
    return subprocess.run(whole, capture_output=True, check=False, text=True)


def are_in_service(client):
    assert len(client.server_info().brokers) == 3


def test_status_without_a_majority_says_how_old_it_is_and_what_is_unknown(cluster, kit):
    """No broker is called live, leaders and copies in sync are marked, and the exit code is 1."""
    with strandline.connect(cluster[1].flight) as client:
        client.create_stream("orders", subject="orders", replicas=3, min_isr=2)
    kit.persist(lambda: in_sync(cluster))
    ask = ("cluster", "status", "--timeout", "1", "--server", cluster[1].flight)
    good = run(*ask)
    assert (good.returncode, good.stdout.count("live")) == (0, 3)
    assert "?" not in good.stdout.split("RECORDS BEHIND")[0]
    for number in (2, 3):
        cluster[number].kill()

    def is_marked():
        shown = run(*ask)
        assert shown.returncode == 1, shown.stdout
        assert "live" not in shown.stdout
        assert shown.stdout.count("unknown") == 3
        assert "1? 2? 3?" in shown.stdout
        assert "has had no controller for" in shown.stderr

    kit.persist(is_marked)
    told = run(*ask, "--output", "json")
    assert told.returncode == 1
    assert json.loads(told.stdout.splitlines()[0])["age_ms"] >= 3000


def test_stream_info_shows_the_partitions_that_are_led(cluster, kit):
    """A leaderless partition is named within seconds, and hides none of the others."""
    with strandline.connect(cluster[1].flight) as client:
        kit.persist(lambda: are_in_service(client))
        client.create_stream("orders", subject="orders", partitions=3, replicas=1)
        led = {part.leader: part.partition for part in client.stream_info("orders").partitions}
    lost = next(n for n, server in cluster.items() if n != 1 and server.flight in led)
    gone = led[cluster[lost].flight]
    cluster[lost].kill()

    def is_shown():
        began = time.monotonic()
        shown = run("stream", "info", "orders", "--server", cluster[1].flight)
        assert shown.returncode == 1, shown.stdout
        assert f"partitions {gone} of stream 'orders' have no leader" in shown.stderr
        assert shown.stdout.split("HIGH WATERMARK")[1].count("\n") >= 3
        assert time.monotonic() - began < 9

    kit.persist(is_shown)


def is_copied(client):
    [part] = client.stream_info("copied").partitions
    assert len(part.in_sync) == 3


def test_lists_mark_partitions_without_a_leader(cluster, kit):
    """In ``stream list`` and ``top``, and only where there are any."""
    with strandline.connect(cluster[1].flight) as client:
        kit.persist(lambda: are_in_service(client))
        client.create_stream("orders", subject="orders", partitions=3, replicas=1)
        client.create_stream("copied", subject="copied", replicas=3)
        kit.persist(lambda: is_copied(client))
        led = {part.leader: part.partition for part in client.stream_info("orders").partitions}
    ask = ("--server", cluster[1].flight)
    for words in (("stream", "list"), ("top", "-n", "1")):
        shown = run(*words, *ask)
        assert shown.returncode == 0, shown.stderr
        assert "leader" not in shown.stdout.lower()
    lost = next(n for n, server in cluster.items() if n != 1 and server.flight in led)
    gone = led[cluster[lost].flight]
    cluster[lost].kill()

    def is_listed():
        shown = run("stream", "list", *ask)
        assert shown.returncode == 0, shown.stderr
        assert "'strandline cluster status'" in shown.stderr
        heads, *rows = shown.stdout.splitlines()
        assert heads.endswith("WITHOUT LEADER")
        marks = {row.split()[0]: row[heads.index("WITHOUT") :] for row in rows}
        assert marks == {"orders": str(gone), "copied": "-"}

    def is_in_top():
        shown = run("top", "-n", "1", *ask)
        assert "partitions without a leader: 1" in shown.stdout
        assert "WITHOUT LEADER" in shown.stdout
        found = json.loads(run("top", "-n", "1", "-o", "json", *ask).stdout)
        marks = {each["stream"]: each["leaderless"] for each in found["streams"]}
        assert marks == {"orders": [gone], "copied": []}

    kit.persist(is_listed)
    kit.persist(is_in_top)


def test_lines_that_brokers_of_dev_log_name_the_broker(tmp_path):
    """Three processes share one terminal."""
    arguments = ("dev", "--nodes", "3", "--port-base", "0", "--log-level", "info", "-o", "json")
    dev = subprocess.Popen(
        (sys.executable, "-m", "strandline.cli", *arguments, "--data-dir", str(tmp_path / "dev")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for _ in range(3):
            json.loads(dev.stdout.readline())
    finally:
        os.kill(dev.pid, signal.SIGTERM)
        _, logged = dev.communicate(timeout=60)
    lines = [line for line in logged.splitlines() if "INFO" in line]
    assert len(lines) > 10
    assert all(line.startswith(("broker 1: ", "broker 2: ", "broker 3: ")) for line in lines)

"""``strandline top`` against real brokers."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

import strandline
from strandline.cli.top import (
    GroupLag,
    Measurement,
    StreamRate,
    _group,
    _with_group_rates,
    _with_stream_rates,
)
from strandline.testing import ProcessServer, Server
from tests.kit.clusters import three_brokers

TOP = (sys.executable, "-m", "strandline.cli", "top", "--interval", "0.3")


def measurements_of(server, count):
    done = subprocess.run(
        (*TOP, "-n", str(count), "-o", "json", "-s", server), capture_output=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_rates_and_lag_are_measured():
    """Records stored between measurements make a rate; what a group did not commit is its lag."""
    with Server() as url, strandline.connect(url) as client:
        client.create_stream("orders", subject="orders.>", partitions=2)
        done = threading.Event()

        def publish():
            with client.producer("orders") as producer:
                while not done.wait(0.01):
                    producer.append(b"tea", subject="orders.oslo")

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            with client.consumer("billing", "orders", start="earliest") as consumer:
                assert consumer.poll(10)
                consumer.commit()
            first, *_, last = measurements_of(str(url), 4)
        finally:
            done.set()
            publisher.join()
    stream, newest = (
        next(each for each in found["streams"] if each["stream"] == "orders")
        for found in (first, last)
    )
    assert (stream["stream"], stream["partitions"]) == ("orders", 2)
    assert stream["records_per_s"] is None
    assert newest["records_per_s"] > 0
    assert newest["records"] > stream["records"] > 0
    [group] = last["groups"]
    assert group["group"] == "billing"
    assert group["lag"] == newest["end"] - group["committed"] > 0
    assert last["brokers"] == []


def measured(at_s, *, end=0, size=0, committed=0):
    """A measurement of one stream and one group."""
    stream = StreamRate(stream="s", partitions=1, records=end, size_bytes=size, end=end)
    group = GroupLag(group="g", members=1, lag=0, committed=committed)
    return Measurement(at_s=at_s, streams=(stream,), groups=(group,))


@pytest.mark.parametrize(
    ("seconds", "rates"),
    [(4.0, (2.5, -25.0, 0.8)), (1.0, (10.0, -100.0, 3.0)), (0.0, (10_000.0, -100_000.0, 3_000.0))],
)
def test_a_rate_is_by_the_time_between_measurements(seconds, rates):
    """To one decimal; a clock that did not move does not divide by zero."""
    before = measured(1_000_000.0, end=5, size=300, committed=1)
    after = measured(1_000_000.0 + seconds, end=15, size=200, committed=4)
    [stream] = _with_stream_rates(after.streams, before, after.at_s)
    [group] = _with_group_rates(after.groups, before, after.at_s)
    assert (stream.records_per_s, stream.bytes_per_s, group.records_per_s) == rates
    for first in (None, Measurement(at_s=1.0, streams=(), groups=())):
        assert [*_with_stream_rates(after.streams, first, after.at_s)] == [*after.streams]
        assert [*_with_group_rates(after.groups, first, after.at_s)] == [*after.groups]


@pytest.mark.parametrize(
    ("committed", "lag"),
    [({"s": {0: 10}}, 0), ({"s": {0: 7, 1: 4}}, 4), ({"s": {0: 12}, "gone": {0: 3}}, 0), ({}, 0)],
)
def test_a_lag_is_what_was_not_committed(committed, lag):
    """Not negative for a stream made anew, and without streams that are gone."""
    info = SimpleNamespace(positions=committed, members=["a"])
    client = SimpleNamespace(groups=SimpleNamespace(info=lambda _: info))
    found = _group(client, "g", {("s", 0): 10, ("s", 1): 5})
    assert (found.lag, found.members) == (lag, 1)
    assert found.committed == sum(at for each in committed.values() for at in each.values())


def test_a_terminal_shows_the_newest_until_it_is_interrupted():
    """The screen names the streams; Ctrl-C ends it with exit code 0."""
    with Server() as url:
        with strandline.connect(url) as client:
            client.create_stream("orders")
            [found] = measurements_of(str(url), 1)
            assert [each.name for each in client.list_streams()] == ["orders"], "it only looks"
            assert found["groups"] == []
        ours, its = pty.openpty()
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        process = subprocess.Popen(
            (*TOP, "-s", str(url)), stdin=its, stdout=its, stderr=its, env=environ
        )
        os.close(its)
        shown = b""
        while shown.count(b"orders") < 2:
            shown += os.read(ours, 65_536)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        os.close(ours)
    assert b"records/s" in shown
    assert b"streams: 1, groups: 0" in shown


def test_a_broker_that_stops_answering_is_waited_for():
    """Rounds without an answer say why, and measuring goes on once the broker is back."""
    with ProcessServer() as broker:
        with strandline.connect(broker.flight) as client:
            client.create_stream("orders")
        command = (*TOP, "-o", "json", "-s", broker.flight)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert json.loads(process.stdout.readline())["error"] == ""
            broker.kill()
            errors = {json.loads(process.stdout.readline())["error"] for _ in range(3)}
            assert any("is it running?" in each for each in errors)
            broker.restart()
            end_s = time.monotonic() + 60
            while json.loads(process.stdout.readline())["error"]:
                assert time.monotonic() < end_s
            process.terminate()


def test_a_cluster_shows_its_brokers(tmp_path):
    """Each broker has a line with its state and how many partitions it leads."""
    with three_brokers(tmp_path) as servers:
        with strandline.connect(servers[1].flight) as client:
            client.create_stream("orders", partitions=3, replicas=3)
        [found] = measurements_of(servers[2].flight, 1)
    assert [each["broker"] for each in found["brokers"]] == [1, 2, 3]
    assert {each["state"] for each in found["brokers"]} == {"live"}
    assert sum(each["leads"] for each in found["brokers"]) >= 3

"""The client when the broker goes away, comes back, pauses or stops."""

import functools
import os
import re
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

import strandline
from strandline.broker.write_path.admission import Admission
from strandline.client.producer.in_flight_batches import InFlightBatches
from strandline.errors import (
    DisconnectedError,
    DiskFullError,
    RequestTimeoutError,
    StrandlineError,
    UnknownStreamError,
)
from strandline.testing import ProcessServer, Server
from tests.kit.waiting import until

pytestmark = pytest.mark.slow


def values(client, stream) -> list[bytes]:
    """Every value of a stream."""
    return [v for batch in client.read(stream) for v in batch.column("value").to_pylist()]


@pytest.fixture
def process():
    """A broker in a process of its own."""
    with ProcessServer() as server:
        yield server


def test_a_producer_outlives_a_killed_broker(process):
    """Unacknowledged records are sent again; with ids they are stored once, in order."""
    client = strandline.connect(process.flight)
    client.create_stream("s")
    acks = []

    def produce():
        with client.producer("s", linger_ms=0.5) as producer:
            for number in range(2000):
                acks.append(producer.append(b"%d" % number))
                time.sleep(0.0005)

    thread = threading.Thread(target=produce)
    thread.start()
    for _ in range(3):
        time.sleep(0.4)
        process.restart()
    thread.join()
    assert len([ack.result() for ack in acks]) == 2000
    assert values(client, "s") == [b"%d" % number for number in range(2000)]
    client.close()


def test_without_ids_records_arrive_at_least_once(process):
    """Each acked record is there; per producer the first copies are in order."""
    client = strandline.connect(process.flight)
    client.create_stream("s")
    with client.producer("s", linger_ms=0) as producer:
        futures = []
        for number in range(300):
            futures.append(producer.append(b"%d" % number))
            if number == 150:
                process.restart()
    assert all(future.exception() is None for future in futures)
    found = [int(value) for value in values(client, "s")]
    assert sorted(set(found)) == list(range(300))
    client.close()


def test_a_subscription_continues_after_a_restart(process):
    """No record twice, none left out, nothing to do for the user."""
    client = strandline.connect(process.flight)
    client.create_stream("s", partitions=2, partition_by="key")
    with client.subscribe("s", start="earliest") as subscription:
        found = []
        for number in range(60):
            client.append("s", b"%d" % number, key=b"%d" % number)
            found.append(int(next(subscription).value))
            if number in (20, 40):
                process.restart()
    assert found == list(range(60))
    client.close()


def test_a_broker_that_stays_away_is_reported_with_its_address(process):
    """Producers, reads and subscriptions give up in time, and say where they looked."""
    client = strandline.connect(process.flight, timeout_s=3)
    client.create_stream("s")
    producer = client.producer("s", delivery_timeout_s=1.5)
    subscription = client.subscribe("s", reconnect_timeout_s=1.0)
    process.kill()
    future = producer.append(b"v")
    with pytest.raises(DisconnectedError, match=process.flight):
        future.result(20)
    with pytest.raises(DisconnectedError, match=process.flight):
        next(subscription)
    with pytest.raises(DisconnectedError, match="strandline serve"):
        client.read("s")
    producer.close()
    client.close()


def test_a_paused_broker_is_a_timeout_not_a_hang(process):
    """Whether the record was stored is unknown, and the error says so."""
    client = strandline.connect(process.flight, timeout_s=4)
    client.create_stream("s")
    client.append("s", b"warm")
    producer = client.producer("s", delivery_timeout_s=4)
    producer.append(b"first").result(60)
    process.signal(signal.SIGSTOP)
    try:
        future = producer.append(b"v")
        with pytest.raises(RequestTimeoutError, match="unknown"):
            future.result(60)
        with pytest.raises(RequestTimeoutError):
            client.stream_info("s")
        with pytest.raises(RequestTimeoutError):
            client.read("s")
    finally:
        process.signal(signal.SIGCONT)
    producer.close()
    client.close()


def test_why_records_wait_is_told_long_before_they_are_given_up(process, caplog):
    """Once for each outage, with how it ended, and what was never sent is not stored."""
    with strandline.connect(process.flight) as client:
        client.create_stream("s")
        producer = client.producer("s", delivery_timeout_s=9)
        process.kill()
        with pytest.raises(DisconnectedError, match="it was not stored"):
            producer.append(b"v").result(60)
        producer.close()
        until(lambda: len([each for each in caplog.records if each.levelname == "WARNING"]) > 1)
        begun, over = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
        assert re.match(
            r"no ack for records of s in \d s; they time out in \d s: no .* answers", begun
        )
        assert re.match(r"records of s no longer wait for acks, after \d+ s; 1 of them", over)


def test_what_was_sent_is_not_rejected_by_a_broker_that_knows_nothing_of_it(process):
    """One without the stream says nothing of a record that the one before may have stored."""
    with strandline.connect(process.flight) as client:
        client.create_stream("s")
        with client.producer("s", linger_ms=0) as producer:
            producer.append(b"first").result(60)
            process.signal(signal.SIGSTOP)
            sent = producer.append(b"sent")
            while not producer._delivery._in_flight.in_flight(
                *producer._delivery._senders.values()
            ):
                time.sleep(0.01)
            time.sleep(0.2)  # it is written to the connection at once
            process.kill()
            shutil.rmtree(process.data_dir)
            process.start()
            with pytest.raises(RequestTimeoutError, match=r"stream 's'.*unknown$"):
                sent.result(60)
            with pytest.raises(UnknownStreamError):
                producer.append(b"never sent before").result(60)


def threads(process):
    """Return the number of threads of a process."""
    return len(list(Path(f"/proc/{process}/task").iterdir()))


def test_a_stream_that_is_not_appended_to_any_longer_costs_no_threads(process):
    """Neither here nor at the broker; the next append starts them again, in order."""
    streams = [f"s{number}" for number in range(20)]
    with strandline.connect(process.flight) as client:
        for stream in streams:
            client.create_stream(stream)
        producer = client.producer("s0")
        assert [client.append(stream, b"first") for stream in streams] == [0] * 20
        producer.append(b"second").result(60)
        here, there = threads(os.getpid()), threads(process.pid)
        assert here >= 60, "a sender, a reader of acks and a watchdog for each"
        deadline_s = time.monotonic() + 60
        while threads(os.getpid()) > here - 50 or threads(process.pid) > there - 15:
            assert time.monotonic() < deadline_s, (threads(os.getpid()), threads(process.pid))
            time.sleep(0.1)
        assert [client.append(stream, b"more") for stream in streams] == [2] + [1] * 19
        assert producer.append(b"last").result(60) == 3
        producer.close()
        assert values(client, "s0") == [b"first", b"second", b"more", b"last"]


def test_a_read_in_the_middle_of_a_kill_is_an_error(process):
    """A bounded read never ends quietly before its end."""
    client = strandline.connect(process.flight)
    client.create_stream("s")
    with client.producer("s") as producer:
        for _ in range(300):
            producer.append(b"x" * 500_000)
    reader = client.read("s", records_max=300)  # through the broker: its files outlive it
    next(reader)
    process.kill()
    with pytest.raises(StrandlineError):
        list(reader)
    client.close()


def test_rejections_do_not_use_a_producer_up(monkeypatch):
    """Each of a full disk takes an epoch; after the last one another producer id is used."""
    full = [None] + [DiskFullError("full")] * 5 + [None] * 2
    monkeypatch.setattr(Admission, "batch_error", lambda *_, is_numbered: full[0])
    monkeypatch.setattr(
        "strandline.client.producer.delivery.InFlightBatches",
        functools.partial(InFlightBatches, epoch_max=1),
    )
    with Server() as url, strandline.connect(url) as client:
        client.create_stream("s")
        with client.producer("s", linger_ms=0, delivery_timeout_s=10) as producer:
            outcomes = []
            while full:
                outcomes.append(type(producer.append(b"%d" % len(full)).exception()))
                full.pop(0)
        assert outcomes == [type(None)] + [DiskFullError] * 5 + [type(None)] * 2
        assert values(client, "s") == [b"8", b"2", b"1"]


def test_a_stop_answers_what_it_took_and_rejects_the_rest():
    """SIGTERM under load: every ack is valid, and the broker ends within seconds."""
    server = Server()
    url = server.start()
    client = strandline.connect(url)
    client.create_stream("s")
    futures = []
    stopping = threading.Event()

    def produce():
        with client.producer("s", linger_ms=0, delivery_timeout_s=1) as producer:
            while not stopping.is_set():
                futures.append(producer.append(b"%d" % len(futures)))
                time.sleep(0.001)
            time.sleep(0.5)
            for future in futures:
                future.exception()

    thread = threading.Thread(target=produce)
    thread.start()
    deadline = time.monotonic() + 60
    while not any(f.done() and f.exception() is None for f in futures[:-100]):
        assert time.monotonic() < deadline, "nothing is acked"
        time.sleep(0.01)
    data = server.data_dir
    server._made_dir = None
    started = time.monotonic()
    server.stop()
    assert time.monotonic() - started < 60
    stopping.set()
    thread.join()
    client.close()
    acked = [i for i, future in enumerate(futures) if future.exception() is None]
    with Server(data_dir=data) as again, strandline.connect(again) as reader:
        stored = {int(value) for value in values(reader, "s")}
    assert acked
    assert set(acked) <= stored

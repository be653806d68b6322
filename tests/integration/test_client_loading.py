"""A partition whose leader is still loading its log: our clients wait within their timeout.

Every log counts as long here, and each load takes a while: the first append with an id to a
partition waits, and numbered ones are refused with ``still_loading``.
"""

import functools
import time

import nats
import pyarrow as pa
import pytest
from nats.js.errors import ServiceUnavailableError

import strandline
from strandline.broker.write_path import duplicates, state_loader
from strandline.client.cluster_client import ClusterClient
from strandline.client.producer.accumulator import ProducerRecord
from strandline.client.producer.conditional_appender import ConditionalAppender
from strandline.client.producer.in_flight_batches import InFlightBatches
from strandline.errors import StillLoadingError
from strandline.testing import Server

pytestmark = pytest.mark.slow
LOAD_S = 0.6


@pytest.fixture
def loads(monkeypatch):
    """Make each load slow; returns how long each takes, and counts them."""
    state = {"seconds": LOAD_S, "count": 0}
    monkeypatch.setattr(state_loader, "INLINE_BYTES", -1)

    def slow(load):
        @functools.wraps(load)
        def run(*args, **kwargs):
            state["count"] += 1
            time.sleep(state["seconds"])
            return load(*args, **kwargs)

        return run

    for name in ("load_window", "load_producers"):
        monkeypatch.setattr(duplicates, name, slow(getattr(duplicates, name)))
    return state


@pytest.fixture
def server(loads):
    """A broker, with a nats-server."""
    with Server(nats=True) as url:
        yield url


@pytest.fixture
def client(server):
    """A client of it, with a stream."""
    with strandline.connect(server) as made:
        made.create_stream("s", subject="s.*")
        yield made


@pytest.fixture
def numbers(monkeypatch):
    """The epoch and the producer of each sent batch."""
    found = []
    send = InFlightBatches.next_batch

    def noted(self, sender, takes):
        entry = send(self, sender, takes)
        if entry is not None and entry.numbers is not None:
            found.append((entry.numbers.epoch, entry.numbers.producer))
        return entry

    monkeypatch.setattr(InFlightBatches, "next_batch", noted)
    return found


def values(client, stream="s"):
    """Every value of a stream that is shown."""
    return [v for batch in client.read(stream) for v in batch.column("value").to_pylist()]


def append(client):
    client.append("s", b"v")
    return [b"v"]


def append_with_id(client):
    client.append("s", b"v", message_id="m")
    return [b"v"]


def append_batch(client):
    client.append_batch("s", pa.table({"value": [b"a", b"b"]}))
    return [b"a", b"b"]


def produce(client):
    with client.producer("s", linger_ms=0) as producer:
        for number in range(200):
            producer.append(b"%d" % number)
            time.sleep(0.005)
    return [b"%d" % number for number in range(200)]


def transact(client):
    with client.transaction("t") as transaction:
        transaction.append("s", b"v")
    return [b"v"]


def commit_staged(client):
    with client.stage("job", 0) as stage:
        stage.append("s", b"v")
        part = stage.finish()
    client.commit_staged("job", 0, [part.ref], fingerprint="f")
    return [b"v"]


def consume(client):
    client.append("s", b"v")
    with client.consumer("g", "s", start="earliest") as consumer:
        while not consumer.poll(1.0):
            pass
        consumer.commit()
    assert client.groups.committed_offsets("g")
    return [b"v"]


@pytest.mark.parametrize(
    "path", [append, append_with_id, append_batch, produce, transact, commit_staged, consume]
)
def test_clients_wait_for_a_leader_that_loads(client, loads, numbers, path):
    """No client sees ``still_loading``; the order holds, and no producer epoch is used up."""
    expected = path(client)
    assert values(client) == expected
    assert loads["count"]
    assert set(numbers) <= {(0, 0)}


@pytest.fixture
def rejections(loads, monkeypatch):
    """The first five records with ids are refused: loading ends between two that are under way."""
    left = [5]
    monkeypatch.setattr(state_loader, "INLINE_BYTES", 1 << 30)
    monkeypatch.setattr(duplicates, "HELD_S_MAX", 0.2)  # nothing ends the wait before
    load = duplicates.Duplicates._load_window

    def refusing(self, window_ms):
        if left[0]:
            left[0] -= 1
            raise StillLoadingError("message ids are still being loaded from the log; retry")
        load(self, window_ms)

    monkeypatch.setattr(duplicates.Duplicates, "_load_window", refusing)
    return left


def test_records_with_ids_keep_their_order(client, rejections):
    """Records after a rejected one are not stored before it, although it has no sequence."""
    expected = [b"%d" % number for number in range(60)]
    with client.producer("s", linger_ms=0, batch_bytes=1) as producer:
        for number, value in enumerate(expected):
            producer.append(value, message_id=f"m{number}" if number % 10 else None)
    assert values(client) == expected
    assert rejections == [0]


def test_the_rows_of_a_batch_with_ids_keep_their_order(client, rejections):
    """Rows are appended one by one; none is stored before one that is sent again."""
    expected = [b"%d" % number for number in range(1000)]
    ids = [f"m{number}" for number in range(1000)]
    client.append_batch("s", pa.table({"value": expected, "message_id": ids}))
    assert values(client) == expected
    assert rejections == [0]


def test_an_expected_offset_waits_for_a_leader_that_loads(client, server, loads):
    """A rejection says for certain that nothing was stored, so it is sent again."""
    appender = ConditionalAppender(ClusterClient(str(server), timeout_s=20), timeout_s=20)
    try:
        ack = appender.append(
            "s", 0, ProducerRecord(b"v", None, None, None, "m"), expected_offset=0
        )
    finally:
        appender.close()
    assert ack.offset == 0
    assert loads["count"]


def test_the_error_comes_at_the_end_of_the_users_own_time(client, loads):
    """It says that the record was not stored."""
    loads["seconds"] = 3.0
    began_s = time.monotonic()
    with client.producer("s", delivery_timeout_s=1.0) as producer:
        future = producer.append(b"v")
        with pytest.raises(StillLoadingError, match="it was not stored"):
            future.result(10)
    assert time.monotonic() - began_s >= 1.0


async def test_a_nats_publisher_waits_for_a_leader_that_loads(client, server, loads):
    """Its publish is answered when the ids are known, since stock clients repeat none."""
    nc = await nats.connect(server.nats_url)
    try:
        ack = await nc.jetstream().publish("s.a", b"v", headers={"Nats-Msg-Id": "m"}, timeout=10)
    finally:
        await nc.close()
    assert (ack.seq, ack.duplicate) == (1, None)
    assert loads["count"]


async def test_a_nats_publisher_is_told_503_when_loading_takes_long(
    client, server, loads, monkeypatch
):
    """As by a JetStream that is not ready: stock clients make an error of it that says so."""
    monkeypatch.setattr(duplicates, "HELD_S_MAX", 0.2)
    loads["seconds"] = 3.0
    nc = await nats.connect(server.nats_url)
    try:
        with pytest.raises(ServiceUnavailableError, match="still being loaded") as told:
            await nc.jetstream().publish("s.a", b"v", headers={"Nats-Msg-Id": "m"}, timeout=2)
        assert told.value.err_code == 10008
    finally:
        await nc.close()

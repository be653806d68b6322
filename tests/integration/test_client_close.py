"""Closing a client closes everything that belongs to it; no appended record is lost by that."""

import asyncio
import queue
import threading
import time

import pyarrow as pa
import pytest

import strandline
from strandline.errors import (
    ClientClosedError,
    DisconnectedError,
    ProducerFencedError,
    RecordTooLargeError,
    StrandlineError,
)
from strandline.testing import Server

PATIENCE_S = 30


@pytest.fixture(scope="module")
def server():
    """One broker for the module, with a stream of two records that are longer than one batch."""
    with Server(limits={"record_bytes": 200_000}) as url, strandline.connect(url) as client:
        client.create_stream("two")
        for _ in range(2):
            client.append("two", bytes(150_000))
        yield url


def heard_by(wait):
    """Return the result of a thread that waits."""
    heard = queue.Queue()

    def run():
        try:
            heard.put(wait())
        except StrandlineError as error:
            heard.put(error)

    threading.Thread(target=run, daemon=True).start()
    return heard


@pytest.mark.parametrize("begin", ["subscribe", "read"])
def test_who_waits_for_records_hears_that_the_client_was_closed(server, begin):
    """At once, and not with the next record; later calls get the same error."""
    client = strandline.connect(server)
    options = {"start": "latest"} | ({"follow": True} if begin == "read" else {})
    waiting = getattr(client, begin)("two", **options)
    heard = heard_by(lambda: next(waiting))
    time.sleep(0.1)  # it waits by then, or begins to: both are to end
    client.close()
    assert isinstance(heard.get(timeout=PATIENCE_S), ClientClosedError)
    with pytest.raises((ClientClosedError, StopIteration)):
        next(waiting)


@pytest.mark.parametrize("local", [False, True], ids=["from the broker", "from its files"])
def test_a_read_that_was_not_read_to_its_end_ends(server, local, monkeypatch):
    """Wherever its records come from, and whatever has arrived already."""
    if not local:
        monkeypatch.setattr("strandline.client.reader.local._can_decode", lambda: False)
    client = strandline.connect(server)
    reader = client.read("two", batch_bytes=100_000)
    client.close()
    with pytest.raises(ClientClosedError):
        reader.read_all()


def test_producers_are_flushed_and_take_no_more(server):
    """Also unclosed ones, and even if another one has failed."""
    client = strandline.connect(server)
    client.create_stream("open")
    producers = [client.producer("open", linger_ms=60_000) for _ in range(3)]
    futures = [producer.append(b"v") for producer in producers]
    producers[1].append_batch(pa.table({"value": [bytes(200_001)]}))
    with pytest.raises(RecordTooLargeError):
        client.close()
    assert sorted(future.result(0) for future in futures) == [0, 1, 2]
    for producer in producers:
        with pytest.raises(DisconnectedError, match="closed"):
            producer.append(b"late")
    client.close()


def test_a_transaction_that_failed_is_no_failure_of_closing(server):
    """It was aborted, and its writer got the error."""
    client = strandline.connect(server)
    client.create_stream("fenced")
    transaction = client.transaction("t")
    transaction.append("fenced", b"v", partition=0)
    transaction.flush()
    with strandline.connect(server) as other:
        other.transaction("t").abort()
    transaction.append("fenced", b"late", partition=0)
    with pytest.raises(ProducerFencedError):
        transaction.flush()
    transaction.append("fenced", b"and later", partition=0)
    client.close()
    with pytest.raises(StrandlineError):
        transaction.append("fenced", b"v")


def test_what_failed_in_the_context_is_what_is_raised(server):
    """And a note says that records failed besides."""

    def fail():
        with strandline.connect(server) as client:
            producer = client.producer("two")
            producer.append_batch(pa.table({"value": [bytes(200_001)]}))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as failure:
        fail()
    assert "records failed" in failure.value.__notes__[0]


async def test_the_asynchronous_ones_end_too(server):
    """Subscriptions, reads that follow, and producers."""
    client = await strandline.connect_async(server)
    await client.create_stream("aio")
    producer = client.producer("aio", linger_ms=60_000)
    appending = asyncio.ensure_future(producer.append(b"v"))
    subscription = client.subscribe("two")
    reader = await client.read("two", start="latest", follow=True)
    waiting = [asyncio.ensure_future(anext(each)) for each in (subscription, reader)]
    done, _ = await asyncio.wait((*waiting, appending), timeout=0.3)
    assert not done
    await client.close()
    async with asyncio.timeout(PATIENCE_S):
        assert await appending == 0
        for each in waiting:
            with pytest.raises(ClientClosedError):
                await each
        with pytest.raises(DisconnectedError, match="closed"):
            await producer.append(b"late")

"""Flight under load: many readers and writers at once, a slow log, memory that stays flat."""

import threading
import time

import pyarrow as pa
import pytest

import strandline
from strandline.testing import Server

pytestmark = pytest.mark.slow


@pytest.fixture
def server():
    """A broker of its own."""
    with Server() as url:
        yield url


def test_a_trickle_is_gathered_into_large_batches(server):
    """Records stored one by one come back in few record batches, whatever was asked of each."""
    with strandline.connect(server) as client:
        client.create_stream("s", acks="memory")
        with client.producer("s", linger_ms=0) as producer:
            for number in range(1500):
                producer.append(b"%d" % number).result(10)
        batches = list(client.read("s"))
        assert sum(batch.num_rows for batch in batches) == 1500
        assert len(batches) < 10


def test_large_batches_are_delivered_in_pieces(server):
    """An 8 MiB batch in the log arrives as pieces near the size asked for."""
    with strandline.connect(server) as client:
        client.create_stream("s")
        rows = pa.table({"value": [b"x" * 10_000] * 800})
        with client.producer("s", batch_bytes=8 << 20) as producer:
            producer.append_batch(rows)
        for size in (64 << 10, 1 << 20):
            batches = list(client.read("s", batch_bytes=size))
            assert max(batch.nbytes for batch in batches) <= 2.5 * size
            assert sum(batch.num_rows for batch in batches) == 800


def test_many_followers_and_writers(server):
    """Twenty followers each see every record of eight writers, in the same order."""
    with strandline.connect(server) as client:
        client.create_stream("s")
        seen: list[list[bytes]] = [[] for _ in range(20)]

        def follow(found):
            for batch in client.read("s", follow=True, stop=400):
                found += batch.column("value").to_pylist()

        def write(writer):
            for number in range(50):
                client.append("s", b"%d-%d" % (writer, number))

        threads = [threading.Thread(target=follow, args=[found]) for found in seen]
        threads += [threading.Thread(target=write, args=[writer]) for writer in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(seen[0]) == 400
        assert all(found == seen[0] for found in seen)
        for writer in range(8):
            mine = [value for value in seen[0] if value.startswith(b"%d-" % writer)]
            assert mine == [b"%d-%d" % (writer, number) for number in range(50)]


def test_dropped_readers_leave_no_thread_behind(server):
    """A hundred abandoned follows: the broker's calls end, its threads go."""
    with strandline.connect(server) as client:
        client.create_stream("s")
        readers = [client.read("s", follow=True) for _ in range(100)]
        del readers
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            waiting = [t for t in threading.enumerate() if t.name == "strandline-read"]
            if not waiting:
                break
            time.sleep(0.05)
        assert not waiting


def test_a_reader_that_does_not_read_holds_nothing_up(server):
    """The broker's memory is bounded by flow control, and others are served."""
    with strandline.connect(server) as client:
        client.create_stream("s")
        client.append_batch("s", pa.table({"value": [b"x" * 100_000] * 500}))
        stalled = [client.read("s") for _ in range(5)]
        for reader in stalled:
            next(reader)
        assert sum(batch.num_rows for batch in client.read("s")) == 500
        client.append("s", b"more")
        assert [sum(batch.num_rows for batch in reader) for reader in stalled]

"""``kill -9`` of brokers at random moments under transactions, judged record by record.

Producers commit and abort transactions over two streams with cursors; a job stages parts and
publishes them in numbered batches, doing a batch again until it is published. Every record says
which transaction wrote it. ``KILLS`` and ``KILL_SEED`` make longer runs and other ones.
"""

import contextlib
import os
import random
import threading
import time
from collections import defaultdict

import pyarrow as pa
import pytest

import strandline
from strandline.errors import (
    OutOfOrderSequenceError,
    ProducerFencedError,
    StrandlineError,
    StreamExistsError,
    TransactionAbortedError,
    UnavailableError,
)
from strandline.testing import ProcessServer
from strandline.types import PartitionName
from tests.kit.clusters import three_brokers

KILLS = int(os.environ.get("KILLS", "2"))
SEED = int(os.environ.get("KILL_SEED", "1"))
PARTITIONS = 2
STREAMS = ("a", "b")
TIMEOUT_S = 120
COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"
UNDECIDED = (
    UnavailableError,
    TransactionAbortedError,
    ProducerFencedError,
    OutOfOrderSequenceError,
)
"""What may become of a transaction whose broker is killed, besides an answer."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400 + 60 * KILLS)]


class Load:
    """Transactions that are written, and their known outcomes."""

    def __init__(self, addresses):
        self.addresses = addresses
        self.stop = threading.Event()
        self.outcomes = {}
        self.records = {}
        self.published = []
        self.steps = 0
        self.errors = []
        self.reasons = []
        self._lock = threading.Lock()
        self._threads = []

    def run(self, function, *args):
        def guarded():
            try:
                function(*args)
            except BaseException as error:  # noqa: BLE001 - the test raises it
                self.errors.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        self._threads.append(thread)

    def progressed(self):
        with self._lock:
            self.steps += 1

    def wait(self, steps):
        """Wait for this many more steps; fail if nothing progresses."""
        target, deadline = self.steps + steps, time.monotonic() + TIMEOUT_S
        while self.steps < target and not self.errors:
            assert time.monotonic() < deadline, "nothing moves"
            self.stop.wait(0.002)

    def end(self):
        self.stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive(), "a worker hangs"
        if self.errors:
            raise self.errors[0]

    # Workers

    def produce(self, worker):
        """Transactions one after the other; some are aborted on purpose."""
        rng = random.Random(f"{SEED} {worker}")
        with strandline.connect(self.addresses, timeout_s=20) as client:
            number = 0
            while not self.stop.is_set():
                name = f"{worker}:{number}"
                try:
                    transaction = client.transaction(worker, timeout_s=60)
                except UnavailableError:
                    continue  # asked long enough; again
                self.outcomes[name] = ABORTED
                self._write(transaction, name, rng)
                number += 1
                self.progressed()

    def _write(self, t, name, rng):
        rows = [(rng.choice(STREAMS), rng.randrange(PARTITIONS), f"{name}:{i}") for i in range(4)]
        self.records[name] = rows
        worker, number = name.split(":")
        try:
            for stream, partition, value in rows:
                t.append(stream, value, partition=partition)
            t.commit_offsets(worker, {PartitionName("in", 0): int(number)})
            t.flush()
            if rng.random() < 0.3:
                t.abort()
                return
            self.outcomes[name] = UNKNOWN
            t.commit()
            self.outcomes[name] = COMMITTED
        except UNDECIDED as error:
            self.reasons.append(repr(error))

    def publish(self, job):
        """Numbered batches of two parts, and one that loses; each again until it is published."""
        batch = 0
        with strandline.connect(self.addresses, timeout_s=20) as client:
            while not self.stop.is_set():
                try:
                    parts = [self._stage(client, job, batch, part) for part in range(2)]
                    with client.stage(job, batch) as loser:
                        loser.append("a", f"{job}:{batch}:loser", partition=0)
                        client.commit_staged(
                            job, batch, [part.ref for part in parts], fingerprint=f"{batch}"
                        )
                except StrandlineError as error:
                    self.reasons.append(repr(error))
                    last = self._last(client, job)
                    if last is None or last.batch_id < batch:
                        continue
                self.published.append(batch)
                batch += 1
                self.progressed()

    def _stage(self, client, job, batch, part):
        with client.stage(job, batch, timeout_s=600) as stage:
            for stream in STREAMS:
                values = [f"{job}:{batch}:{part}{stream}{i}" for i in range(3)]
                stage.append_batch(stream, pa.table({"value": values}), partition=part)
            return stage.finish()

    def _last(self, client, job):
        while True:
            with contextlib.suppress(UnavailableError):
                return client.last_published(job)


def read_all(client, stream):
    """Return the visible records by partition, once no transaction is open."""
    found = {}
    for partition in range(PARTITIONS):
        table = client.read(stream, partition=partition, columns=["value"]).read_all()
        found[partition] = [value.decode() for value in table.column("value").to_pylist()]
    return found


def judge(load, found, positions):
    """Every transaction whole or not at all, as its outcome says; every batch once."""
    places = defaultdict(list)
    for stream in STREAMS:
        for partition, values in found[stream].items():
            for at, value in enumerate(values):
                places[value].append((stream, partition, at))
    assert not [value for value, where in places.items() if len(where) > 1], "duplicates"
    shown = dict.fromkeys(load.outcomes, 0)
    for name, rows in load.records.items():
        here = [places[value][0] for _, _, value in rows if value in places]
        shown[name] = len(here)
        outcome = load.outcomes[name]
        wanted = {COMMITTED: {len(rows)}, ABORTED: {0}, UNKNOWN: {0, len(rows)}}[outcome]
        assert len(here) in wanted, f"{name} is {outcome}: {len(here)} of {len(rows)} are shown"
        for stream, partition, value in rows:
            if value in places:
                assert places[value][0][:2] == (stream, partition)
        by_place = defaultdict(list)
        for stream, partition, at in here:
            by_place[stream, partition].append(at)
        assert all(order == sorted(order) for order in by_place.values()), "order is kept"
    for job_batch in load.published:
        for stream in STREAMS:
            for part in range(2):
                for i in range(3):
                    assert f"job:{job_batch}:{part}{stream}{i}" in places
    assert not [value for value in places if value.endswith("loser")]
    workers = {name.split(":")[0] for name in load.outcomes}
    for worker in workers:
        numbers = [int(n.split(":")[1]) for n in shown if n.startswith(f"{worker}:") and shown[n]]
        assert positions[worker].get(("in", 0), -1) == max(numbers, default=-1)


def finish(load, addresses):
    """End the load, let everything that is open be decided, and read it all."""
    load.end()
    with strandline.connect(addresses, timeout_s=30) as client:
        for name in ("one", "two"):  # takes over what a killed answer has left open
            with client.transaction(name):
                pass
        client.commit_staged("job", 1_000_000, [], fingerprint="end")
        deadline = time.monotonic() + TIMEOUT_S
        for stream in STREAMS:
            while True:
                parts = client.stream_info(stream).partitions
                if all(part.high_watermark == part.log_end_offset for part in parts):
                    break
                assert time.monotonic() < deadline, f"{stream} stays open: {client.transactions()}"
                time.sleep(0.05)
        found = {stream: read_all(client, stream) for stream in STREAMS}
        judge(load, found, {name: client.groups.committed_offsets(name) for name in ("one", "two")})
    counts = [list(load.outcomes.values()).count(kind) for kind in (COMMITTED, ABORTED, UNKNOWN)]
    print(*counts, len(load.published))  # noqa: T201 - shown when it fails, and with -s
    assert counts[0] > 0
    assert load.published


def create(client, stream, settings):
    """Create a stream, as soon as the brokers have come together."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            client.create_stream(stream, partitions=PARTITIONS, **settings)
        except StreamExistsError:
            return  # an attempt without an answer
        except UnavailableError:
            continue
        return
    pytest.fail(f"{stream} could not be created")


def begin(addresses, **settings):
    with strandline.connect(addresses) as client:
        for stream in STREAMS:
            create(client, stream, settings)
    load = Load(addresses)
    for worker in ("one", "two"):
        load.run(load.produce, worker)
    load.run(load.publish, "job")
    return load


def test_one_broker_is_killed_under_transactions(tmp_path):
    """Whatever was decided stays decided; nothing is shown in part, twice, or out of order."""
    rng = random.Random(SEED)
    with ProcessServer(tmp_path / "data") as server:
        load = begin(server.flight)
        try:
            for _ in range(KILLS):
                load.wait(rng.randint(3, 12))
                server.restart()
            load.wait(5)
        finally:
            load.stop.set()
        finish(load, server.flight)


@pytest.fixture
def brokers(tmp_path):
    """Three brokers of a cluster."""
    with three_brokers(tmp_path) as servers:
        yield servers


def test_brokers_of_a_cluster_are_killed_under_transactions(brokers):
    """Coordinators and leaders are killed: every transaction is whole, and every batch once."""
    rng = random.Random(SEED)
    addresses = ",".join(server.flight for server in brokers.values())
    load = begin(addresses, replicas=3, min_isr=2, acks="replicated")
    try:
        for _ in range(max(1, KILLS - 1)):
            load.wait(rng.randint(2, 8))
            number = rng.choice(list(brokers))
            brokers[number].kill()
            load.wait(rng.randint(2, 5))  # the others go on
            brokers[number].start()
        load.wait(5)
    finally:
        load.stop.set()
    finish(load, addresses)

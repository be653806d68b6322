"""Real brokers that compact their copies of one stream while they are killed: all say the same."""

import os
import random
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

import strandline
from strandline.api.cluster import CLUSTER_STATUS
from strandline.client.connection import BrokerConnection
from strandline.testing.replica import ReplicaReader
from tests.kit.clusters import WITH_HTTP

IDS = (1, 2, 3)
KEYS = 60
RECORDS = 600
ROUNDS = int(os.environ.get("KILLS", "2"))
SEED = int(os.environ.get("KILL_SEED", "1"))
SOON = {
    "STRANDLINE_CLEANER_INTERVAL_MS": "150",
    "STRANDLINE_JOURNAL__CHECKPOINT_INTERVAL_MS": "150",
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(150 + ROUNDS * 40)]


@pytest.fixture
def more_arguments():
    """Let the brokers have metrics."""
    return WITH_HTTP


@pytest.fixture
def environment_of():
    """Shorten the intervals of background work."""
    return lambda _: SOON


def status(server):
    """Return the partition as a broker knows it."""
    connection = BrokerConnection(server.flight, timeout_s=5)
    try:
        [found] = connection.action(CLUSTER_STATUS, None)
        [partition] = [each for each in found.partitions if each.stream == "state"]
        return partition
    finally:
        connection.close()


def held(server, end):
    """Every record that a copy holds below an offset: (key, value)."""
    with ReplicaReader(server.flight) as replica:
        assert replica.ends("state")[0] >= end
        return [
            record
            for batch in replica.read("state", stop=end, columns=["key", "value"])
            for record in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
        ]


def metric(server, name):
    with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def publish(producer, rng, said, *, tag):
    """Publish keyed records, every fourth of which deletes its key; fill ``said``."""
    for number in range(RECORDS):
        key = b"k%d" % rng.randrange(KEYS)
        value = None if rng.random() < 0.25 else f"{tag}-{number} ".encode() + b"." * 900
        said[key] = value
        producer.append(value, key=key)
        if number % 50 == 0:
            time.sleep(0.02)  # so that the kill comes in the middle of it


def test_compacted_copies_say_the_same_after_kills(cluster, kit):
    """Leaders and followers are killed under load; each copy was compacted, by itself."""
    rng, said = random.Random(SEED), {}
    addresses = ",".join(server.flight for server in cluster.values())
    with strandline.connect(addresses) as client, ThreadPoolExecutor(1) as publishing:
        kit.persist(
            lambda: client.create_stream(
                "state", replicas=3, min_isr=2, compact=True, tombstone_delay_ms=1,
                segment_bytes=64 << 10,
            )
        )  # fmt: skip
        with client.producer("state", delivery_timeout_s=90) as producer:
            for number in range(ROUNDS):
                load = publishing.submit(publish, producer, rng, said, tag=f"round {number}")
                leader = kit.persist(lambda: status(cluster[rng.choice(IDS)])).leader
                victim = leader if number % 2 == 0 else rng.choice([n for n in IDS if n != leader])
                cluster[victim].kill()
                load.result(timeout=120)
                producer.flush()
                cluster[victim].start()
            # What everybody has is told with the next batch; then null values may go, too.
            for number in range(2):
                publish(producer, rng, said, tag=f"last {number}")
                producer.flush()
    end = ROUNDS * RECORDS + 2 * RECORDS
    wanted = {key: value for key, value in said.items() if value is not None}

    def judge(server):
        assert len(status(server).isr) == 3
        records = held(server, end)
        found = {key: value for key, value in dict(records).items() if value is not None}
        assert found == wanted
        assert len(records) < end / 2, "compacted"
        assert metric(server, "strandline_compaction_records_total") > 0

    for server in cluster.values():
        kit.persist(lambda server=server: judge(server))
    for server in cluster.values():
        assert metric(server, "strandline_corrupt_batches") == 0

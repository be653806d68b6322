"""Real brokers whose files were corrupt while they were stopped: everything is served, whole."""

from functools import partial

import pytest

import strandline
from strandline.record.batch import read_header
from tests.kit.clusters import WITH_HTTP, figure, in_sync, leader_of, read_at

COUNT = 400
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def more_arguments():
    """Let the brokers have metrics."""
    return WITH_HTTP


def load(cluster, kit):
    """A stream of small batches in several segments on every broker; the values."""

    def create():
        with strandline.connect(cluster[1].flight) as client:
            client.create_stream("orders", replicas=3, min_isr=2, segment_bytes=64 << 10)

    kit.persist(create)
    values = [b"record-%04d" % number + bytes(500 + number % 90) for number in range(COUNT)]
    leader = kit.persist(lambda: leader_of(cluster))
    with strandline.connect(cluster[leader].flight) as client:
        for value in values:
            client.append("orders", value)
    kit.persist(lambda: in_sync(cluster))
    return values


def corrupt(server):
    """Flip a bit in the second batch of each segment, and in the first and third of the last."""
    files = sorted((server.data_dir / "logs").rglob("*.log"))
    assert len(files) > 1, "several segments"
    corrupt = 0
    for file in files:
        data = bytearray(file.read_bytes())
        starts, position = [], 0
        while position < len(data):
            starts.append(position)
            position += read_header(data, position).length
        for number in {1} if file != files[-1] else {0, 1, 2}:
            data[starts[number] + 40 + number * 8] ^= 1 << number
            corrupt += 1
        file.write_bytes(data)
    return corrupt


def repaired(server, count):
    """Assert that this many batches were repaired."""
    assert figure(server, "strandline_repaired_batches_total") == count


def test_corrupt_files_of_followers_and_leaders_are_repaired(cluster, kit):
    """Each broker, leader or not, finds its corruption by serving, and then serves all."""
    values = load(cluster, kit)
    leader = leader_of(cluster)
    follower = next(number for number in cluster if number != leader)
    for victim in (follower, leader):
        assert cluster[victim].stop() == 0
        count = corrupt(cluster[victim])
        cluster[victim].start()
        kit.persist(lambda: in_sync(cluster))
        assert read_at(cluster[victim], kit, count=COUNT) == values
        # The records are readable a moment before the repair is counted.
        kit.persist(partial(repaired, cluster[victim], count))
        assert figure(cluster[victim], "strandline_failed_repairs_total") == 0
        assert any("were repaired" in line for line in cluster[victim].errors)
    for server in cluster.values():
        assert read_at(server, kit, count=COUNT) == values

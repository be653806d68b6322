"""Reads in a cluster, which is a fake, when leaders are lost and partitions added."""

import itertools
import threading
import time
from types import SimpleNamespace

import pyarrow as pa
import pytest

from strandline.api.admin import PartitionInfo
from strandline.client.connection import ResolvedRange
from strandline.client.metadata import ClusterMetadata
from strandline.client.reader import cluster_reader as routed_read
from strandline.client.reader import replica_selector as read_places
from strandline.client.reader.cluster_reader import METADATA_REFRESH_S, ClusterReader
from strandline.client.reader.reading import read_request
from strandline.errors import DisconnectedError, NotLeaderError, OffsetOutOfRangeError
from strandline.record.schema import project

TIMEOUT_S = 60
SILENCE = None
"""What a broker says that stands still; only the client can end that."""
COLUMNS = ["partition", "offset", "value"]


def batch(partition, *offsets):
    """Records of a partition."""
    rows = [{"partition": partition, "offset": at, "value": b"v"} for at in offsets]
    return pa.RecordBatch.from_pylist(rows, schema=project(COLUMNS, with_partition=False))


class Stream:
    """A read at a broker."""

    def __init__(self, read):
        self.read = read
        self.is_cancelled = threading.Event()

    def direct(self):
        for piece in self.read():
            if piece is not SILENCE:
                yield piece
                continue
            assert self.is_cancelled.wait(60)
            raise DisconnectedError("cancelled")

    batches = direct

    def cancel(self):
        self.is_cancelled.set()


class Cluster:
    """Brokers that lead partitions, a manual clock, and scripted reads.

    Args:
        leaders: of each partition, by number; empty: nobody.
        reads: what each read at an address does, one after another.
    """

    home, slept_s = "a:1", 0.0

    def __init__(self, leaders, reads):
        self.leaders, self.reads = leaders, {at: iter(given) for at, given in reads.items()}
        self.named_broker = []
        self.metadata = ClusterMetadata(("a:1",))

    def routes(self, _stream):
        extent = {"log_start_offset": 3, "high_watermark": 3, "log_end_offset": 3, "size_bytes": 0}
        return {
            n: PartitionInfo(partition=n, leader=leader, **extent)
            for n, leader in self.leaders.items()
        }

    def connection(self, address):
        return SimpleNamespace(address=address, reset=lambda: None, action=self.action)

    def action(self, *_):
        return [SimpleNamespace(partitions=self.routes("s"))]

    known_routes = routes

    def resolve(self, request, numbers_of):
        routes = self.routes("s")
        return {n: ResolvedRange(request.start, 3, routes[n]) for n in numbers_of(routes)}

    def begin_read(self, connection, request, *, is_small):
        self.named_broker.append((connection.address, request))
        read = next(self.reads[connection.address])
        if isinstance(read, Exception):
            raise read
        return Stream(read)


@pytest.fixture
def follow(monkeypatch):
    """Begins to follow partitions of a cluster."""

    def begin(cluster, columns=COLUMNS, **options):
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + cluster.slept_s)
        for module in (read_places, routed_read):
            monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(read_places, "begin_read", cluster.begin_read)
        starts = dict.fromkeys(cluster.leaders, 3)
        request = read_request("s", starts=starts, columns=columns, follow=True)
        return ClusterReader(cluster, request, replica="leader", timeout_s=TIMEOUT_S, **options)

    return begin


def test_leaders_may_be_lost_for_ever_though_no_record_comes(follow):
    """A read that was connected for a while restarts the time limit."""
    lost = DisconnectedError("the leader was killed")

    def stands():
        cluster.slept_s += TIMEOUT_S
        raise lost
        yield

    cluster = Cluster({0: "a:1"}, {"a:1": [stands, stands, stands, lambda: iter([batch(0, 0)])]})
    assert next(follow(cluster).batches()).num_rows == 1


def test_a_partition_out_of_reach_is_told_of_though_others_flow(follow):
    """Each partition has its own time limit, so missing data is not taken for none."""

    def flows():
        for offset in range(10 * TIMEOUT_S):
            cluster.slept_s += 1
            yield batch(0, offset)

    cluster = Cluster({0: "a:1", 1: ""}, {"a:1": [flows]})
    came = []
    with pytest.raises(NotLeaderError, match="s/1 has no leader"):
        came.extend(follow(cluster).batches())
    assert 0 < len(came) <= TIMEOUT_S + 10


def test_a_broker_out_of_reach_holds_up_its_own_partitions_alone(follow):
    """Those of others are read meanwhile, and it is not asked again with every batch."""
    away = DisconnectedError("nobody listens")
    reads = {
        "a:1": itertools.repeat(away),
        "b:1": [lambda: (batch(1, offset) for offset in range(1000))],
    }
    cluster = Cluster({0: "a:1", 1: "b:1"}, reads)
    came = list(itertools.islice(follow(cluster).batches(), 1000))
    assert [each.column("offset")[0].as_py() for each in came] == list(range(1000))
    assert len(cluster.named_broker) < 10


def extended():
    """A cluster whose stream of one partition is given another while that is read."""

    def flows():
        yield batch(0, 3)
        cluster.leaders[1] = "b:1"
        cluster.slept_s += METADATA_REFRESH_S
        yield batch(0, 4)

    cluster = Cluster({0: "a:1"}, {"a:1": [flows], "b:1": [lambda: iter([batch(1, 3)])]})
    return cluster


def test_who_follows_all_partitions_gets_those_that_come_later(follow):
    """From their first record; their offsets are known for a later read."""
    cluster = extended()
    read = follow(cluster, is_of_all=True)
    came = [row for each in read.batches() for row in each.select(COLUMNS[:2]).to_pylist()]
    assert sorted(tuple(row.values()) for row in came) == [(0, 3), (0, 4), (1, 3)]
    address, request = cluster.named_broker[-1]
    assert (address, request.partition, request.start) == ("b:1", 1, 3)
    assert read.added == {1: 3}


@pytest.mark.parametrize(
    "options", [{}, {"is_of_all": True, "columns": ["offset", "value"]}], ids=["named", "untold"]
)
def test_who_named_partitions_or_could_not_tell_them_apart_gets_no_more(follow, options):
    """One partition's reader may take offsets for the only ones there are."""
    cluster = extended()
    read = follow(cluster, **options)
    assert len(list(read.batches())) == 2
    assert read.added == {}


def test_a_leader_that_only_falls_silent_is_left_for_the_next(follow):
    """Its machine hangs or is partitioned, so that no connection ends."""

    def falls_silent():
        yield batch(0, 3)
        cluster.leaders[0] = "b:1"
        cluster.slept_s += METADATA_REFRESH_S
        yield SILENCE

    cluster = Cluster({0: "a:1"}, {"a:1": [falls_silent], "b:1": [lambda: iter([batch(0, 4)])]})
    came = [row["offset"] for each in follow(cluster).batches() for row in each.to_pylist()]
    assert came == [3, 4]
    address, request = cluster.named_broker[-1]
    assert (address, request.start) == ("b:1", 4)


def test_a_read_with_an_end_leaves_a_leader_that_falls_silent(monkeypatch):
    """It does not wait for the connection's end; no record is repeated."""

    def falls_silent():
        yield batch(0, 3)
        cluster.leaders[0] = "b:1"
        yield SILENCE

    cluster = Cluster({0: "a:1"}, {"a:1": [falls_silent], "b:1": [lambda: iter([batch(0, 4)])]})
    monkeypatch.setattr(read_places, "begin_read", cluster.begin_read)
    monkeypatch.setattr(routed_read, "METADATA_REFRESH_S", 0.01)
    request = read_request("s", start=3, stop=5, columns=COLUMNS)
    read = ClusterReader(cluster, request, replica="leader", timeout_s=TIMEOUT_S)
    came = [row["offset"] for each in read.batches() for row in each.to_pylist()]
    assert came == [3, 4]
    address, request = cluster.named_broker[-1]
    assert (address, request.start, request.stop) == ("b:1", 4, 5)


def test_a_read_with_an_end_looks_no_more_once_it_has_ended(monkeypatch):
    """Also one that was left before its end."""
    cluster = Cluster({0: "a:1"}, {"a:1": [lambda: iter([batch(0, 3), batch(0, 4)])]})
    monkeypatch.setattr(read_places, "begin_read", cluster.begin_read)
    request = read_request("s", start=3, stop=5, columns=COLUMNS)
    batches = ClusterReader(cluster, request, replica="leader", timeout_s=TIMEOUT_S).batches()
    next(batches)
    (looking,) = [t for t in threading.enumerate() if t.name == "strandline-look"]
    batches.close()
    looking.join(TIMEOUT_S)
    assert not looking.is_alive()


def test_a_replica_that_has_just_heard_of_the_end_is_read(monkeypatch):
    """It first rejects the leader's end, and knows it when asked again."""
    refused = OffsetOutOfRangeError("offset 3 does not exist: its high watermark is 2")
    cluster = Cluster({0: "a:1"}, {"a:1": [refused, lambda: iter([])]})
    monkeypatch.setattr(read_places, "begin_read", cluster.begin_read)
    ClusterReader(cluster, read_request("s"), replica="leader", timeout_s=TIMEOUT_S)
    assert [request.stop for _, request in cluster.named_broker] == [3, 3]


def test_an_offset_that_does_not_exist_is_told_at_once(monkeypatch):
    """Only the leader can say so, whose log would hold it."""
    refused = OffsetOutOfRangeError("offset 9 does not exist: its high watermark is 3")
    cluster = Cluster({0: "a:1"}, {"a:1": [refused]})
    monkeypatch.setattr(read_places, "begin_read", cluster.begin_read)
    with pytest.raises(OffsetOutOfRangeError, match="offset 9"):
        ClusterReader(cluster, read_request("s", start=9), replica="leader", timeout_s=TIMEOUT_S)

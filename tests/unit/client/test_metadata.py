"""The metadata cache of a client: brokers, routes, and what is too old to be believed."""

import pytest

from strandline.api.admin import PartitionInfo, ServerInfo, StreamInfo
from strandline.client import metadata as module
from strandline.client.cluster_client import ClusterClient
from strandline.client.metadata import ClusterMetadata
from strandline.config import StreamConfig
from strandline.errors import UnavailableError


def info(*leaders, index=0):
    """A stream of which these lead the partitions; each has a copy at its leader and at d:1."""
    parts = tuple(
        PartitionInfo(
            partition=number,
            log_start_offset=0,
            high_watermark=0,
            log_end_offset=0,
            size_bytes=0,
            leader=leader,
            in_sync=(leader, "d:1") if leader else ("d:1",),
        )
        for number, leader in enumerate(leaders)
    )
    config = StreamConfig(name="s", subject="s", partitions=len(parts))
    return StreamInfo(config=config, created_ns=1, partitions=parts, metadata_index=index)


def server_info(*brokers):
    return ServerInfo(
        version="1", protocol=1, record_bytes_max=1, batch_bytes_max=1, streams=0, brokers=brokers
    )


def test_one_address_is_no_cluster_until_its_broker_names_others():
    """A broker alone lists none, and gets every call."""
    known = ClusterMetadata(("a:1",))
    known.learn(server_info())
    assert not known.is_cluster
    assert list(known.order()) == ["a:1"]
    known.learn(server_info("a:1", "b:1"))
    assert known.is_cluster
    assert list(known.order()) == ["a:1", "b:1"]
    assert ClusterMetadata(("a:1", "b:1")).is_cluster


def test_another_broker_is_asked_in_turn():
    """Each once, until it is the first one's turn again."""
    known = ClusterMetadata(("a:1",))
    known.learn(server_info("a:1", "b:1", "c:1"))
    asked = []
    for _ in range(4):
        asked.append(known.home)
        known.ask_another()
    assert asked == ["a:1", "b:1", "c:1", "a:1"]


def test_routes_are_kept_until_they_are_forgotten_and_name_brokers():
    """A broker that was starting did not list the others."""
    known = ClusterMetadata(("a:1",))
    assert known.routes("s") is None
    routes = known.take(info("a:1", "b:1"))
    assert [routes[number].leader for number in (0, 1)] == ["a:1", "b:1"]
    assert known.routes("s") == routes
    assert set(known.brokers) == {"a:1", "b:1", "d:1"}
    known.forget("s")
    known.forget("s")
    assert known.routes("s") is None


def test_older_metadata_is_rejected_for_a_while(monkeypatch):
    """Then nobody has newer: a forced recovery has lost it."""
    known = ClusterMetadata(("a:1",))
    known.check_newest("a:1", 9)
    known.check_newest("b:1", 0)  # of an answer without metadata
    with pytest.raises(UnavailableError, match="b:1 has metadata up to entry 5"):
        known.check_newest("b:1", 5)
    monkeypatch.setattr(module, "STALE_S", 0.0)
    known.check_newest("b:1", 5)
    known.check_newest("b:1", 5)


@pytest.fixture
def cluster(monkeypatch):
    """A client of a cluster that counts its lookups; ``leaders`` is what they find."""
    made = ClusterClient("a:1,b:1", timeout_s=1)
    made.leaders_now, made.looked_up = ["a:1", ""], 0

    def look_up(*_):
        made.looked_up += 1
        return [info(*made.leaders_now)]

    monkeypatch.setattr(made, "ask", look_up)
    yield made
    made.close()


def test_a_partition_without_a_leader_is_looked_up_each_time(cluster):
    """It gets one soon, and nobody says so; a known leader is kept until it fails."""
    cluster.known_routes("s")
    cluster.known_routes("s")
    assert cluster.looked_up == 2
    cluster.leaders_now[1] = "b:1"
    for _ in range(3):
        assert cluster.known_routes("s")[1].leader == "b:1"
    assert cluster.looked_up == 3
    cluster.metadata.forget("s")
    cluster.known_routes("s")
    assert cluster.looked_up == 4

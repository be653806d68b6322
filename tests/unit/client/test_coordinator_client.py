"""Questions to coordinators that do not know yet what other brokers of the cluster do."""

import pytest

from strandline.api import groups as wire
from strandline.api.groups import GROUPS_STREAM
from strandline.api.transactions import PartitionRef, ProducerRef
from strandline.client.cluster_client import ClusterClient
from strandline.client.coordinator_client import CoordinatorClient
from strandline.client.metadata import ClusterMetadata
from strandline.client.transactions.transaction_calls import CoordinatorCalls
from strandline.errors import NotLeaderError, UnknownPartitionError, UnknownStreamError


class Cluster(ClusterClient):
    """Brokers that know the first partition of ``s``; one of them is asked, and learns of it."""

    is_cluster = True
    home = "here"

    def __init__(self, error, *, lasts=1):
        self.left = [error] * lasts
        self.metadata = ClusterMetadata((self.home,))

    def routes(self, stream):
        if stream in ("s", GROUPS_STREAM):
            return {0: None}
        raise UnknownStreamError(f"no stream {stream!r}")

    def leaders(self, routes):
        return {0: "here"}

    def connection(self, address):
        return self

    def action(self, command, request, *, timeout_s):
        if self.left:
            raise self.left.pop()
        return ["done"]


def join(cluster, *streams):
    body = wire.JoinGroupRequest(group="g", member="m", streams=streams, session_ms=1000)
    office = CoordinatorClient(cluster, GROUPS_STREAM)
    return office.ask(wire.JOIN_GROUP, body, timeout_s=30, partitions=[(s, 0) for s in streams])


def test_a_stream_that_the_coordinator_of_groups_does_not_know_yet_is_waited_for():
    """It was created at another broker a moment ago."""
    cluster = Cluster(UnknownStreamError("no stream 's'"), lasts=3)
    assert join(cluster, "s") == ["done"]
    assert not cluster.left


def test_a_stream_that_nobody_knows_is_rejected_at_once():
    """So is the one of groups itself, which every broker knows and nobody consumes."""
    for streams in (("t",), ("s", "t"), (GROUPS_STREAM,)):
        cluster = Cluster(UnknownStreamError("no stream"), lasts=2)
        with pytest.raises(UnknownStreamError):
            join(cluster, *streams)
        assert len(cluster.left) == 1


@pytest.mark.parametrize("kind", [UnknownStreamError, UnknownPartitionError])
def test_a_partition_that_the_coordinator_of_transactions_does_not_know_yet_is_waited_for(kind):
    """One that nobody knows is refused at once."""
    for number in (0, 1):
        cluster = Cluster(kind("no such partition"), lasts=2)
        add = CoordinatorCalls(cluster).add
        if number == 0:
            add("t", ProducerRef(1, 0), (PartitionRef("s", number),))
            assert not cluster.left
        else:
            with pytest.raises(kind):
                add("t", ProducerRef(1, 0), (PartitionRef("s", number),))
            assert len(cluster.left) == 1


def test_a_known_coordinator_is_not_looked_up_again_until_a_call_fails():
    """Its address is a part of the client's metadata, whoever asks."""

    class Counting(Cluster):
        looked = 0

        def routes(self, stream):
            self.looked += 1
            routes = {0: None}
            self.metadata._routes[stream] = routes
            return routes

    cluster = Counting(NotLeaderError("moved"), lasts=0)
    for _ in range(3):
        join(cluster, "s")
    assert cluster.looked == 1
    cluster.left.append(NotLeaderError("moved"))
    join(cluster, "s")
    assert cluster.looked == 2

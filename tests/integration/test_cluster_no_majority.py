"""A broker that returns alone: it cannot say which streams exist, and reports that.

One broker of three is up; the others are not. What it has on its disk can be read, and clients go
on when the others are back.
"""

import contextlib
import time
import urllib.error
import urllib.request

import pytest

import strandline
from strandline.errors import StrandlineError
from tests.kit.clusters import WITH_HTTP, in_sync
from tests.kit.workers import workers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def more_arguments():
    """Let the brokers have health checks."""
    return WITH_HTTP


RECORDS = 20
ALONE_S = 6
"""So long every client asks a broker that knows nothing, or one that is not there."""


@pytest.fixture
def alone(cluster, kit):
    """Three brokers with records, of which only the first was started again after a kill."""
    with strandline.connect(cluster[1].flight) as client:
        client.create_stream("orders", subject="orders", replicas=3, min_isr=2)
        for number in range(RECORDS):
            client.append("orders", f"{number}".encode())
    kit.persist(lambda: in_sync(cluster))
    for server in cluster.values():
        assert server.stop() == 0
    cluster[1].start()
    return cluster


CALLS = {
    "list_streams": lambda client: list(client.list_streams()),
    "stream_info": lambda client: client.stream_info("orders"),
    "an unknown stream": lambda client: client.stream_info("nothing"),
    "read": lambda client: client.read("orders").read_all(),
    "read any": lambda client: client.read("orders", replica="any").read_all(),
    "append": lambda client: client.append("orders", b"x"),
    "create": lambda client: client.create_stream("new", subject="new"),
}


def test_a_broker_alone_says_unavailable_reads_its_own_copy_and_continues(alone, kit):
    """No call reports a missing stream; each continues when the others are back."""
    for name, call in CALLS.items():
        with (
            strandline.connect(alone[1].flight, timeout_s=2) as client,
            pytest.raises(StrandlineError) as caught,
        ):
            call(client)
        assert caught.value.retriable, (name, caught.value)
        assert caught.value.code in ("unavailable", "timeout"), (name, caught.value)
    with strandline.connect(alone[1].flight, timeout_s=2) as client:
        found = client.read("orders", replica="this", columns=["value"]).read_all()
        assert found["value"].to_pylist() == [b"%d" % n for n in range(RECORDS)]
        found = client.read("orders", partition=0, start=5, stop=7, replica="this").read_all()
        assert found["offset"].to_pylist() == [5, 6]
        with pytest.raises(StrandlineError) as caught:
            client.read("nothing", replica="this")
        assert caught.value.code == "unavailable"
    assert "has not joined the cluster" in why_not_ready(alone[1])
    client = strandline.connect(alone[1].flight)
    for number in (2, 3):
        alone[number].start()
    with client:
        kit.persist(lambda: client.append("orders", b"again"))
        kit.persist(lambda: in_sync(alone))
        assert client.read("orders").read_all().num_rows >= RECORDS + 1
        assert [info.config.name for info in client.list_streams()] == ["orders"]


def test_clients_that_were_there_before_go_on_by_themselves(cluster, kit):
    """A producer, a subscription, transactions and a member of a group, past a broker alone."""
    addresses = ",".join(server.flight for server in cluster.values())
    with strandline.connect(addresses) as client, contextlib.ExitStack() as opened:
        kit.persist(lambda: all_there(client))
        client.create_stream("orders", partitions=3, replicas=3, min_isr=2)
        working = workers(client, opened.enter_context)

        def all_go_on(before):
            stuck = [name for name, each in working.items() if each.done < before[name] + 20]
            assert not stuck

        kit.persist(lambda: all_go_on(dict.fromkeys(working, 0)))
        for server in cluster.values():
            server.kill()
        cluster[1].start()
        time.sleep(ALONE_S)
        before = {name: each.done for name, each in working.items()}
        for number in (2, 3):
            cluster[number].start()
        kit.persist(lambda: all_go_on(before))
        for each in working.values():
            each.end()


def all_there(client):
    """Three brokers are known."""
    assert len(client.server_info().brokers) == 3


def why_not_ready(server):
    """Return the broker's health."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{server.http_url}/health/ready", timeout=10)
    return caught.value.read().decode()

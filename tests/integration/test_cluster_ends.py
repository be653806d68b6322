"""The end that a new leader reports includes everything that its predecessor acknowledged.

Every broker that is left is asked all the time while the leader is killed, so that the first answer
of the new leader is among them: moments after it was elected, before its followers have answered.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import strandline
from strandline.api import admin
from strandline.client.connection import BrokerConnection
from strandline.errors import StrandlineError

ROUNDS = int(os.environ.get("KILLS", "2"))
RECORDS = 100
OFFSETS = admin.OffsetsRequest(name="s", partitions=[0], of_leader=True)
INFO = admin.StreamInfoRequest(name="s", led=[0])
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + ROUNDS * 60)]


def of_offsets(connection):
    """Return ``latest``, as a leader knows it."""
    [answer] = connection.action(admin.OFFSETS, OFFSETS)
    return answer.offsets[0]


def of_info(connection):
    """The same of ``stream_info``."""
    [answer] = connection.action(admin.STREAM_INFO, INFO)
    return answer.partitions[0].high_watermark


def first_end(address, ask, is_over):
    """Return the end that a broker reports once it leads; None: another one leads."""
    connection = BrokerConnection(address, timeout_s=30)
    try:
        while True:
            is_last = is_over.is_set()
            try:
                return ask(connection)
            except StrandlineError:
                if is_last:
                    return None
    finally:
        connection.close()


def in_sync(client):
    """Return the leader, once every replica is in sync."""
    [part] = client.stream_info("s").partitions
    assert len(part.in_sync) == 3
    return part.leader


def test_the_first_end_of_a_new_leader_has_all_that_was_acknowledged(cluster, kit):
    """Asked for offsets and for the stream; and a client that reads to the end misses nothing."""
    addresses = ",".join(server.flight for server in cluster.values())
    acked = 0
    with strandline.connect(addresses, timeout_s=60) as client:
        kit.persist(lambda: client.create_stream("s", replicas=3, min_isr=2))
        for _ in range(ROUNDS):
            leader = kit.persist(lambda: in_sync(client))
            left = [s.flight for s in cluster.values() if s.flight != leader]
            [victim] = [s for s in cluster.values() if s.flight == leader]
            is_over = threading.Event()
            with ThreadPoolExecutor(4) as asking:
                ends = [
                    asking.submit(first_end, address, ask, is_over)
                    for ask in (of_offsets, of_info)
                    for address in left
                ]
                # Acked one by one: of the last, followers hear that it is committed a bit later.
                acked = [client.append("s", b"x").offset for _ in range(RECORDS)][-1] + 1
                victim.kill()
                try:
                    assert client.read("s").read_all().num_rows == acked
                finally:
                    is_over.set()
            told = [end.result() for end in ends]
            for same in (told[:2], told[2:]):
                assert {end for end in same if end is not None} == {acked}
            victim.start()

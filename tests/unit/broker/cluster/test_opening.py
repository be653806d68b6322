"""New logs that are opened on a thread, and the requests that wait for them."""

import asyncio
import threading

import pytest

from strandline.broker.cluster import metadata_applier, stream_opening
from strandline.config import StreamConfig
from strandline.errors import LogPoisonedError

PARTITIONS = 3


@pytest.fixture
def slow(monkeypatch):
    """Brokers whose disks are named here open no logs until the test lets them."""
    state = {"disks": [], "may_open": threading.Event(), "waiting": []}
    open_logs = metadata_applier.open_logs

    def held(wanted, *, disk, synced_sequence):
        if disk in state["disks"]:
            state["waiting"].append(disk)
            assert state["may_open"].wait(30)
            state["waiting"].remove(disk)
        return open_logs(wanted, disk=disk, synced_sequence=synced_sequence)

    monkeypatch.setattr(metadata_applier, "open_logs", held)
    yield state
    state["may_open"].set()


@pytest.fixture
async def three(cluster, slow):
    """Three brokers, two of which open logs slowly from now on."""
    await cluster.start(1, 2, 3)
    await cluster.until_live()
    slow["disks"] += [cluster.disks[1], cluster.disks[3]]
    return cluster


def create(cluster, **settings):
    """Create a stream at broker 2, in a task."""
    config = StreamConfig(name="s", subject="s", partitions=PARTITIONS, **settings)
    return asyncio.create_task(cluster.brokers[2].create_stream(config))


def note_bound(broker):
    """Return the streams that a broker's front ends have bound."""
    bound = []

    async def bind(name):
        assert name in [stream.config.name for stream in broker.streams()]
        bound.append(name)

    broker.on_stream_created(bind)
    return bound


async def test_a_creation_is_answered_once_all_leaders_serve_the_stream(three, slow, kit):
    """Else a message published right after it would get no acknowledgement."""
    bound = [note_bound(three.brokers[number]) for number in (1, 2, 3)]
    creating = create(three, replicas=3, acks="replicated")
    await kit.until(lambda: len(slow["waiting"]) == 2)
    await asyncio.sleep(0.1)
    assert not creating.done()
    slow["may_open"].set()
    await asyncio.wait_for(creating, 30)
    leaders = {three.image(index=number).leader for number in range(PARTITIONS)}
    assert leaders == {1, 2, 3}
    assert all("s" in each for each in bound)


async def test_a_creation_does_not_wait_long_for_a_leader(three, slow, monkeypatch, caplog):
    """It was decided, so it does not fail either."""
    monkeypatch.setattr(stream_opening, "PATIENCE_S", 0.2)
    stream = await asyncio.wait_for(create(three, replicas=1), 30)
    assert stream.config.name == "s"
    assert "has not opened it yet" in caplog.text


async def test_added_partitions_are_waited_for_too(cluster, slow, kit):
    """A publish to one of them right after is received by its leader."""
    await cluster.start(1, 2, 3)
    await cluster.create(replicas=1, min_isr=1)
    slow["disks"] += [cluster.disks[1], cluster.disks[3]]
    adding = asyncio.create_task(cluster.brokers[2].add_partitions("s", 3))
    await kit.until(lambda: len(slow["waiting"]) == 2)
    await asyncio.sleep(0.1)
    assert not adding.done()
    slow["may_open"].set()
    await asyncio.wait_for(adding, 30)
    assert all(len(broker.stream("s").partitions) == 4 for broker in cluster.brokers.values())


async def test_who_wants_to_know_what_was_decided_waits_for_logs_that_are_opened(three, slow, kit):
    """Or a stream would be known, and neither read nor written."""
    creating = create(three, replicas=3)
    await kit.until(lambda: len(slow["waiting"]) == 2)
    knowing = asyncio.create_task(three.brokers[1].membership.newest.know())
    await asyncio.sleep(0.1)
    assert not knowing.done()
    slow["may_open"].set()
    await asyncio.wait_for(knowing, 30)
    assert three.brokers[1].stream("s").partitions
    await creating


async def test_storage_is_not_reopened_while_logs_are_opened(three, slow, kit, monkeypatch):
    """Both would open the same files."""
    broker = three.brokers[1]
    recovering = []
    recover = broker._recover_again

    def noted():
        recovering.append(list(slow["waiting"]))
        return recover()

    monkeypatch.setattr(broker, "_recover_again", noted)
    creating = create(three, replicas=3)
    await kit.until(lambda: len(slow["waiting"]) == 2)
    broker.committer.poison(LogPoisonedError("a sync failed"))
    await asyncio.sleep(0.2)
    assert not recovering
    slow["may_open"].set()
    await kit.until(lambda: recovering and broker.admission.write_error is None)
    assert three.disks[1] not in recovering[0]
    await creating
    await three.until_live()
    await three.put("a")
    await three.agree(["a"])


async def test_the_directory_is_not_released_while_logs_are_opened(three, slow, kit):
    """Another process would have it, too."""
    creating = create(three, replicas=1)
    await kit.until(lambda: len(slow["waiting"]) == 2)
    stopping = asyncio.create_task(three.brokers[1].stop())
    await asyncio.sleep(0.5)
    assert not stopping.done()
    slow["may_open"].set()
    await asyncio.wait_for(stopping, 30)
    del three.brokers[1]
    await creating

"""A broker whose disk takes no records lets others lead, and leads again when it works for long."""

import asyncio
import errno

import pytest

from strandline.broker.cluster import storage_watch
from strandline.core.metadata.commands import ReportStorage


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(storage_watch, "LOOK_S", 0.05)
    monkeypatch.setattr(storage_watch, "PROBE_S", 0.1)
    monkeypatch.setattr(storage_watch, "HEALTHY_S", 1.0)


def fill(disk):
    """No room for a new segment, nor for anything that is tried; the journal has its own."""
    disk.fail("create", "/logs/", code=errno.ENOSPC)
    disk.fill(storage_watch.PROBE_NAME)


async def reject_one(cluster, kit, number):
    """One record to the leader, which has no room for it."""
    answers = kit.Answers()
    kit.put(cluster.partition(number), answers, "lost" * 100_000)
    await answers.wait(1)
    return answers


async def test_a_leader_on_a_full_disk_lets_another_lead(cluster, kit):
    """One rejected record suffices: another replica leads until there is space."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a")
    leader = await cluster.leader()
    fill(cluster.disks[leader])
    await kit.until(lambda: cluster.image().isr == (1, 2, 3))
    refused = await reject_one(cluster, kit, leader)
    assert refused.errors
    await kit.until(lambda: cluster.image().leader not in (None, leader))
    await cluster.put("b", "c")
    brokers = cluster.brokers[leader]._image.brokers
    assert brokers[leader].state == "impaired"
    cluster.disks[leader].heal()
    await kit.until(lambda: not cluster.brokers[leader].membership.is_impaired, seconds=30)
    await cluster.isr(1, 2, 3)
    await cluster.agree(["a", "b", "c"])
    assert not cluster.brokers[leader].why_not_ready


async def test_a_disk_that_fails_now_and_then_does_not_pass_leaderships_to_and_fro(
    cluster, kit, monkeypatch
):
    """While a fault was seen a moment ago the broker stays without leaderships."""
    monkeypatch.setattr(storage_watch, "HEALTHY_S", 3600.0)
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a")
    leader = await cluster.leader()
    fill(cluster.disks[leader])
    await reject_one(cluster, kit, leader)
    await kit.until(lambda: cluster.image().leader not in (None, leader))
    cluster.disks[leader].heal()
    await cluster.put("b")
    await cluster.isr(1, 2, 3)
    probed = cluster.disks[leader].count("create", storage_watch.PROBE_NAME)
    probe = storage_watch.PROBE_NAME
    await kit.until(lambda: cluster.disks[leader].count("create", probe) > probed + 3)
    assert cluster.image().leader != leader
    assert cluster.brokers[leader].membership.is_impaired


@pytest.mark.parametrize(
    ("operation", "code"), [("sync", errno.EIO), ("write", errno.EIO), ("write", errno.EROFS)]
)
async def test_a_disk_with_errors_is_reported_once_the_storage_was_reopened(
    cluster, kit, operation, code
):
    """After a failed write or sync the broker comes back, and does not lead at once."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a")
    leader = await cluster.leader()
    cluster.disks[leader].fail(operation, "/journal", code=code, times=1)
    await cluster.put("b")
    await kit.until(lambda: cluster.brokers[leader].membership.is_impaired, seconds=30)
    await kit.until(lambda: not cluster.brokers[leader].membership.is_impaired, seconds=30)
    await cluster.agree(["a", "b"])


async def test_one_rejected_write_on_a_disk_that_works_is_no_fault(cluster, monkeypatch):
    """A probe finds it well; a second one soon after is believed all the same."""
    monkeypatch.setattr(storage_watch, "LOOK_S", 0.01)
    await cluster.start(1, 2, 3)
    await cluster.until_live()
    broker, told = cluster.brokers[1], []

    async def report(*, is_impaired):
        told.append(is_impaired)

    monkeypatch.setattr(broker.membership, "report_storage", report)
    probe, create = storage_watch.PROBE_NAME, "create"
    broker.telemetry.count_full_disk()
    await cluster.kit.until(lambda: cluster.disks[1].count(create, probe) == 1)
    await asyncio.sleep(0)
    assert told == []
    broker.telemetry.count_full_disk()
    await cluster.kit.until(lambda: told[:1] == [True])


async def test_what_an_earlier_run_reported_holds_until_the_disk_has_worked(cluster, kit):
    """A broker that is started again is impaired still, and takes it back by itself."""
    await cluster.start(1, 2, 3)
    await cluster.until_live()
    membership = cluster.brokers[3].membership
    await membership._requests.propose(ReportStorage(membership.run, True), timeout_s=10)
    await cluster.kill(3)
    await cluster.start(3)
    await kit.until(lambda: not cluster.brokers[3].membership.is_impaired, seconds=30)

"""A broker with an older copy of its data directory is rejected, by name and with a remedy."""

import shutil

import pytest

from strandline.broker.cluster import membership
from strandline.broker.cluster.broker import ClusterBroker


async def older_copy(cluster, number):
    """Let a broker continue, then restore its present data directory.

    The copy is of the run that went on: the count of starts tells nothing.
    """
    place, kept = cluster.tmp_path / f"broker-{number}", cluster.tmp_path / "kept"
    await cluster.brokers[number].quiesce()
    shutil.copytree(place, kept)
    await cluster.create("later")
    await cluster.put("x", name="later")
    await cluster.isr(1, 2, 3, name="later")
    end = cluster.brokers[number].membership.quorum.commit_index
    witness = next(b for n, b in cluster.brokers.items() if n != number)
    office = next(
        b.membership.controller for b in cluster.brokers.values() if b.membership.controller.is_held
    )
    # What it acknowledged since its last heartbeat before the kill would not be missed.
    await cluster.kit.until(lambda: office._controller._heartbeats[number].stored_index >= end)
    await cluster.kill(number)
    await cluster.kit.until(lambda: witness._image.brokers[number].is_fenced, seconds=20)
    shutil.rmtree(place)
    kept.rename(place)
    return end


async def begin(cluster, number):
    """Start a broker that need not become ready."""
    starting = cluster.kit.until
    cluster.kit.until = no_wait
    try:
        await cluster.start(number)
    finally:
        cluster.kit.until = starting
    return cluster.brokers[number]


async def no_wait(*_, **__):
    pass


@pytest.mark.parametrize("has_new_controller", [False, True])
async def test_an_older_copy_is_rejected_and_named_with_the_command(
    cluster, kit, monkeypatch, has_new_controller
):
    """Also by a new controller; it no longer votes, and returns after the command."""
    monkeypatch.setattr(membership, "REGISTER_TIMEOUT_S", 1.0)
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a")
    number = next(n for n, b in cluster.brokers.items() if not b.membership.quorum.is_leading)
    await older_copy(cluster, number)
    others = [n for n in (1, 2, 3) if n != number]
    if has_new_controller:
        for other in others:
            await cluster.kill(other)
        await cluster.start(*others)
    broker = await begin(cluster, number)
    await kit.until(lambda: "is an older copy" in broker.why_not_ready, seconds=30)
    assert f"replace-disk {number}" in broker.why_not_ready
    assert broker.membership.quorum.leader is None
    await kit.until(lambda: cluster.brokers[others[0]]._image.brokers[number].is_fenced)
    await cluster.kill(number)
    await cluster.brokers[others[0]].operations.replace_disk(number)
    await cluster.start(number)
    await cluster.isr(1, 2, 3)
    await cluster.isr(1, 2, 3, name="later")
    await cluster.agree(["a"])
    await cluster.agree(["x"], name="later")


async def test_a_broker_with_its_own_directory_is_never_taken_for_an_older_copy(cluster):
    """However it ended, and whichever broker led the metadata meanwhile."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    for round_, number in enumerate((1, 2, 3, 1)):
        await cluster.put(f"{round_}")
        await cluster.kill(number)
        await cluster.start(number)
        await cluster.until_live()
    await cluster.agree([str(n) for n in range(4)])


async def test_brokers_that_register_late_after_a_restart_of_all_are_not_older_copies(
    cluster, monkeypatch
):
    """The old runs are fenced while the new ones already take part and have stored more.

    It is what a busy machine does: front ends open later than a session lasts.
    """
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a")
    for number in (1, 2, 3):
        await cluster.kill(number)
    with monkeypatch.context() as patched:
        patched.setattr(ClusterBroker, "announce", lambda *_, **__: None)
        for number in (1, 2, 3):
            await begin(cluster, number)
    brokers = cluster.brokers.values()

    def are_fenced():
        images = [b._image for b in brokers if "s" in b._image.streams]
        known = [each for image in images for each in image.brokers.values()]
        return len(known) == 9 and all(each.is_fenced for each in known)

    await cluster.kit.until(are_fenced, seconds=30)
    for number in (1, 2, 3):
        cluster.brokers[number].announce(10_000 + number)
    await cluster.kit.until(
        lambda: all(b.is_ready for b in brokers) or any(b.membership.why_refused for b in brokers),
        seconds=60,
    )
    assert [b.membership.why_refused for b in brokers] == [""] * 3
    await cluster.agree(["a"])

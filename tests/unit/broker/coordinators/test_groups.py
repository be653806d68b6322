"""The group coordinator on one broker: a log, restarts, crashes, failing disks."""

import asyncio
import threading

import pytest

from strandline.broker.coordinators.groups import GROUPS_STREAM
from strandline.broker.coordinators.runtime import RETRY_S
from strandline.core.coordinator_effects import restore
from strandline.errors import (
    GroupInUseError,
    RequestTimeoutError,
    StillLoadingError,
    UnavailableError,
    UnknownGroupError,
    UnknownMemberError,
    UnknownStreamError,
)
from strandline.types import PartitionName

NOTHING = frozenset()
pytestmark = pytest.mark.usefixtures("without_spares")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """On a machine that is busy even a short log may take a while to read."""
    monkeypatch.setattr("strandline.broker.coordinators.runtime.LOAD_WAIT_S", 30)


def parts(*numbers):
    return frozenset(PartitionName("s", number) for number in numbers)


@pytest.mark.parametrize("is_led_anew", [False, True])
async def test_a_term_that_has_ended_writes_nothing(broker, is_led_anew):
    """Whether it resigned or the partition has a new epoch: others decide from here on."""
    await broker.groups.commit("g", {"s": {0: 1}}, number=1)
    coordinator, partition = broker.groups, broker.stream(GROUPS_STREAM).partition(0)
    term, end = coordinator.term, partition.next_offset
    if is_led_anew:
        partition.leader_epoch += 1
    else:
        coordinator._resign(UnavailableError("led elsewhere"))
    coordinator._store(term, end, b"an entry of the term that has ended")
    assert partition.next_offset == end
    await broker.groups.commit("g", {"s": {0: 2}}, number=2)
    assert coordinator.term is not term
    coordinator._store(term, partition.next_offset, b"another one")
    assert await broker.groups.committed_offsets("g") == {"s": {0: 2}}


async def test_a_request_that_is_not_answered_in_time_ends_with_an_error(broker, monkeypatch):
    """It may be decided later, so it is to be repeated; nothing waits for its answer any more."""
    await broker.groups.commit("g", {"s": {0: 1}}, number=1)
    coordinator = broker.groups
    monkeypatch.setattr("strandline.broker.coordinators.runtime.REQUEST_TIMEOUT_S", 0.05)
    monkeypatch.setattr(coordinator, "_store", lambda *_: None)
    with pytest.raises(RequestTimeoutError, match=r"did not answer within 0\.05 s; repeat"):
        await coordinator.commit("g", {"s": {0: 2}}, number=2)
    assert not coordinator.term.waiting


async def test_who_waits_when_a_term_ends_is_told(broker):
    """A commit that was not decided ends with the term, as an error that says why."""
    await broker.groups.commit("g", {"s": {0: 1}}, number=1)
    coordinator = broker.groups
    committing = asyncio.create_task(coordinator.commit("g", {"s": {0: 2}}, number=2))
    async with asyncio.timeout(20):
        while not coordinator.term.waiting:  # noqa: ASYNC110  a round of the loop, or two
            await asyncio.sleep(0)
        coordinator._resign(UnavailableError("led elsewhere"))
        with pytest.raises(UnavailableError, match="led elsewhere"):
            await committing


async def test_a_member_gets_everything_and_commits(broker, make_stream):
    """The first member reads all partitions; its committed offsets are read back."""
    await make_stream(broker, partitions=3)
    joined = await broker.groups.join("g", "ann", ["s"], session_ms=9000)
    assert joined.partitions == parts(0, 1, 2)
    assert joined.positions == {}
    await broker.groups.commit("g", {"s": {1: 5}}, member="ann", epoch=joined.epoch)
    assert await broker.groups.committed_offsets("g") == {"s": {1: 5}}
    assert await broker.groups.groups() == {"g": 1}
    again = await broker.groups.heartbeat("g", "ann", epoch=joined.epoch, held=parts(0, 2))
    assert again.positions == {"s": {1: 5}}


@pytest.mark.parametrize("is_clean", [True, False])
async def test_a_restart_keeps_members_and_positions(open_broker, make_stream, kit, is_clean):
    """After a stop or a crash the coordinator starts from the stored entries."""
    first = await open_broker()
    await make_stream(first, partitions=2)
    joined = await first.groups.join("g", "ann", ["s"], session_ms=9000)
    await first.groups.commit("g", {"s": {0: 7}}, member="ann", epoch=joined.epoch)
    if is_clean:
        await first.stop()
    else:
        kit.abandon(first)
    second = await open_broker()
    beat = await second.groups.heartbeat("g", "ann", epoch=joined.epoch, held=joined.partitions)
    assert beat.epoch == joined.epoch
    assert beat.partitions == parts(0, 1)
    assert await second.groups.committed_offsets("g") == {"s": {0: 7}}


async def test_cursors_need_no_member(broker):
    """A consumer without membership commits for a group without members."""
    await broker.groups.commit("cursor", {"anything": {0: 3}}, number=1)
    await broker.groups.commit("cursor", {"anything": {0: 1, 4: 9}}, number=1)
    found = await broker.groups.describe("cursor", must_be_decided=False)
    assert found.commit_numbers == {}, "nobody numbered them"
    assert await broker.groups.committed_offsets("cursor") == {"anything": {0: 1, 4: 9}}
    await broker.groups.delete("cursor")
    assert await broker.groups.committed_offsets("cursor") == {}
    with pytest.raises(UnknownGroupError):
        await broker.groups.describe("cursor", must_be_decided=False)


async def test_what_a_commit_says_is_kept_until_the_next_one(broker):
    """It needs no offsets; offsets that say nothing clear it."""
    await broker.groups.commit("cursor", {}, metadata="it failed")
    assert (await broker.groups.describe("cursor", must_be_decided=False)).metadata == "it failed"
    assert await broker.groups.committed_offsets("cursor") == {}
    await broker.groups.commit("cursor", {"anything": {0: 3}})
    assert (await broker.groups.describe("cursor", must_be_decided=False)).metadata == ""


async def test_requests_that_cannot_be_are_rejected(broker, make_stream):
    """Unknown streams and members, and commits past the members."""
    await make_stream(broker)
    with pytest.raises(UnknownStreamError):
        await broker.groups.join("g", "ann", ["nowhere"], session_ms=9000)
    with pytest.raises(UnknownMemberError):
        await broker.groups.heartbeat("g", "ann", epoch=0, held=NOTHING)
    await broker.groups.join("g", "ann", ["s"], session_ms=9000)
    with pytest.raises(GroupInUseError):
        await broker.groups.commit("g", {"s": {0: 1}})
    with pytest.raises(GroupInUseError):
        await broker.groups.delete("g")
    await broker.groups.leave("g", "ann")
    assert await broker.groups.groups() == {}, "nothing of it is worth keeping"


async def test_a_silent_member_is_removed(broker, make_stream, clock, kit):
    """Once its session is over its partitions are free."""
    await make_stream(broker)
    await broker.groups.join("g", "ann", ["s"], session_ms=1000)
    await broker.groups.join("g", "bob", ["s"], session_ms=9000)
    clock.advance_ms(1500)
    await kit.until(lambda: broker.telemetry.group_members_expired == 1)
    assert "ann" not in broker.groups.term.machine.state.groups["g"].members
    await kit.until(lambda: broker.telemetry.group_members == 1)
    beat = await broker.groups.heartbeat("g", "bob", epoch=2, held=NOTHING)
    assert beat.partitions == parts(0)
    await broker.groups.commit("g", {"s": {0: 1}}, member="bob", epoch=beat.epoch)
    assert (broker.telemetry.groups, broker.telemetry.offset_commits) == (1, 1)


async def test_members_hear_of_streams_that_come_and_go(broker, make_stream):
    """A deleted stream's partitions are taken away with the next heartbeat."""
    await make_stream(broker, partitions=2)
    joined = await broker.groups.join("g", "ann", ["s"], session_ms=9000)
    await broker.delete_stream("s")
    beat = await broker.groups.heartbeat("g", "ann", epoch=joined.epoch, held=joined.partitions)
    assert beat.partitions == NOTHING


async def test_a_failed_sync_loses_nothing_that_was_told(broker, disk, kit):
    """Entries that cannot be stored are rejected; the next term starts from stored ones."""
    await broker.groups.commit("g", {"s": {0: 1}})
    disk.fail("sync", "journal", times=1)
    with pytest.raises(UnavailableError):
        await broker.groups.commit("g", {"s": {0: 2}})
    await kit.until(lambda: broker.admission.write_error is None)
    found = await broker.groups.committed_offsets("g")
    assert found["s"][0] in (1, 2), "whether the refused one is kept nobody was told"
    await broker.groups.commit("g", {"s": {0: 3}})
    assert await broker.groups.committed_offsets("g") == {"s": {0: 3}}


async def test_a_full_disk_rejects_commits_and_heals(broker, disk, kit):
    """Commits fail with a clear error while there is no space, and work again after."""
    await broker.groups.commit("g", {"s": {0: 1}})
    disk.fill("journal")
    big = {"s": dict.fromkeys(range(10_000), 1)}
    with pytest.raises(UnavailableError):
        await broker.groups.commit("g", big)
    assert await broker.groups.committed_offsets("g") == {"s": {0: 1}}
    disk.heal()
    await broker.groups.commit("g", {"s": {0: 2}})
    assert await broker.groups.committed_offsets("g") == {"s": {0: 2}}


async def test_who_comes_while_the_log_is_read_is_told_so(open_broker, disk, monkeypatch):
    """A request during a long load waits for a moment and gets an error."""
    first = await open_broker()
    await first.groups.commit("g", {"s": {0: 1}})
    await first.stop()
    monkeypatch.setattr("strandline.broker.coordinators.runtime.LOAD_WAIT_S", 0.01)
    gate = disk.hold("read", "logs", after=3)  # recovery looks where the log ends
    second = await open_broker()
    with pytest.raises(StillLoadingError):
        await second.groups.committed_offsets("g")
    gate.released.set()
    monkeypatch.setattr("strandline.broker.coordinators.runtime.LOAD_WAIT_S", 30)
    assert await second.groups.committed_offsets("g") == {"s": {0: 1}}


async def test_a_coordinator_is_made_on_a_thread(open_broker, make_stream, kit, monkeypatch):
    """Of any number of entries; streams that come while it is made are known to it."""
    first = await open_broker()
    await make_stream(first)
    joined = await first.groups.join("g", "ann", ["s"], session_ms=9000)
    kit.abandon(first)
    may_end, threads = threading.Event(), []

    def held(state, entries):
        threads.append(threading.get_ident())
        assert may_end.wait(30)
        return restore(state, entries)

    monkeypatch.setattr("strandline.broker.coordinators.groups.restore", held)
    second = await open_broker()
    beat = asyncio.create_task(
        second.groups.heartbeat("g", "ann", epoch=joined.epoch, held=joined.partitions)
    )
    await kit.until(lambda: threads)
    await make_stream(second, name="later")
    may_end.set()
    assert (await beat).partitions == parts(0)
    assert threading.get_ident() not in threads
    other = await second.groups.join("g", "bob", ["later"], session_ms=9000)
    assert other.partitions == {PartitionName("later", 0)}


async def test_the_log_is_rewritten_when_it_has_grown(open_broker, kit, monkeypatch):
    """Old entries go when the state takes far fewer, and nothing is lost with them."""
    monkeypatch.setattr("strandline.broker.coordinators.runtime.SEGMENT_BYTES", 64 << 10)
    monkeypatch.setattr("strandline.core.coordinator_effects.REWRITE_ENTRIES_MIN", 100)
    first = await open_broker()
    value = {"s" * 200: dict.fromkeys(range(100), 0)}
    for number in range(250):
        await first.groups.commit("g", {**value, "t": {0: number}})
    partition = first.stream(GROUPS_STREAM).partition(0)
    await kit.until(lambda: partition.log_start_offset > 0)
    await first.stop()
    second = await open_broker()
    assert await second.groups.committed_offsets("g") == {**value, "t": {0: 249}}


async def test_positions_are_there_to_be_watched(broker, make_stream):
    """Metrics have the committed offsets of every group until it is deleted."""
    await make_stream(broker, partitions=2)
    await broker.groups.commit("copies", {"s": {0: 3, 1: 9}})
    joined = await broker.groups.join("g", "ann", ["s"], session_ms=9000)
    await broker.groups.commit("g", {"s": {1: 5}}, member="ann", epoch=joined.epoch)
    expected = [("copies", "s", 0, 3), ("copies", "s", 1, 9), ("g", "s", 1, 5)]
    assert sorted(sample[:4] for sample in broker.group_positions()) == expected
    await broker.groups.delete("copies")
    assert [sample[:4] for sample in broker.group_positions()] == [("g", "s", 1, 5)]


async def test_a_coordinator_that_cannot_start_tries_again_after_a_while(
    broker, clock, kit, monkeypatch
):
    """Not at every tick: what it reads is long, and the cause lasts."""
    await broker.groups.commit("g", {"s": {0: 1}}, number=1)
    coordinator, tries, maker = broker.groups, [], broker.groups.maker

    def failing():
        tries.append(clock.monotonic_ms())
        raise UnavailableError("the disk is slow")

    monkeypatch.setattr("strandline.broker.coordinators.runtime.TICK_S", 0.001)
    monkeypatch.setattr(coordinator, "maker", failing)
    coordinator._resign(UnavailableError("led elsewhere"))
    await kit.until(lambda: tries)
    await asyncio.sleep(0.1)
    assert len(tries) == 1
    clock.advance_ms(1000 * RETRY_S)
    await kit.until(lambda: len(tries) == 2)
    monkeypatch.setattr(coordinator, "maker", maker)
    clock.advance_ms(1000 * RETRY_S)
    await kit.until(lambda: coordinator.term is not None)


async def test_a_question_creates_no_stream(broker):
    """Listing, describing and reading of groups that nobody has used; a commit then creates it."""
    assert await broker.groups.groups() == {}
    assert await broker.groups.committed_offsets("g") == {}
    assert await broker.groups.consumers("") == []
    with pytest.raises(UnknownGroupError):
        await broker.groups.describe("g", must_be_decided=False)
    with pytest.raises(UnknownGroupError):
        await broker.groups.delete("g")
    assert GROUPS_STREAM not in broker.image.streams
    await broker.groups.commit("g", {"s": {0: 1}}, number=1)
    assert await broker.groups.groups() == {"g": 0}


async def test_consumers_are_the_groups_of_consumers_with_the_prefix(broker):
    """Neither groups of other consumers nor other groups with it."""
    for name in ("c/s/one", "c/s/two", "c/t/other"):
        await broker.groups.keep_consumer(name, {"s": {0: 0}}, "{}", epoch=1, is_new=True)
    await broker.groups.commit("c/s/plain", {"s": {0: 1}})
    assert sorted(await broker.groups.consumers("c/s/")) == ["c/s/one", "c/s/two"]

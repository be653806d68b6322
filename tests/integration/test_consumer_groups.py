"""Consumers of a group against a real broker: shares, positions, callbacks, static members."""

import asyncio
import itertools
import time

import pytest

import strandline
from strandline.errors import (
    ClientClosedError,
    DisconnectedError,
    GroupInUseError,
    InvalidRequestError,
    MemberFencedError,
    StaleMemberError,
    UnknownGroupError,
    UnknownStreamError,
)
from strandline.testing import Server
from strandline.types import PartitionName

NAMES = (f"s{number}" for number in itertools.count())
PATIENCE_S = 60


@pytest.fixture(scope="module")
def server():
    with Server() as url:
        yield url


@pytest.fixture
def client(server):
    with strandline.connect(server) as connected:
        yield connected


@pytest.fixture
def stream(client):
    """A stream of four partitions with ten records in each."""
    name = next(NAMES)
    client.create_stream(name, partitions=4)
    fill(client, name)
    return name


def fill(client, stream, *, partitions=range(4), records=10):
    with client.producer(stream) as producer:
        for partition in partitions:
            for number in range(records):
                producer.append(f"{partition}:{number}", partition=partition)


def at(stream, *numbers):
    return frozenset(PartitionName(stream, number) for number in numbers)


def take(consumer, count):
    """Return this many records, as (partition, offset)."""
    found, deadline = [], time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records"
        for batch in consumer.poll(0.2):
            found += [(record.partition, record.offset) for record in batch]
    return found


def until(condition, *consumers):
    """Poll until a condition is true; return the records by consumer."""
    found, deadline = [[] for _ in consumers], time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it does not come to that"
        for place, consumer in enumerate(consumers):
            for batch in consumer.poll(0.05):
                found[place] += [(record.partition, record.offset) for record in batch]
    return found


def sizes(*consumers):
    return sorted(len(consumer.assignment()) for consumer in consumers)


def test_one_member_reads_everything_and_the_next_continues(client, stream):
    """Leaving commits; the next member continues there."""
    with client.consumer("one", stream) as consumer:
        found = take(consumer, 40)
        assert sorted(found) == [(p, o) for p in range(4) for o in range(10)]
        assert consumer.assignment() == at(stream, 0, 1, 2, 3)
        assert set(consumer.lag().values()) == {0}
    fill(client, stream, partitions=[2], records=3)
    with client.consumer("one", stream) as consumer:
        assert take(consumer, 3) == [(2, 10), (2, 11), (2, 12)]
        assert consumer.poll(0.05) == []
    assert client.groups.committed_offsets("one")[PartitionName(stream, 2)] == 13


def test_a_second_member_gets_a_share_and_disturbs_nobody_else(client, stream):
    """Other partitions are neither revoked nor read again; moved ones continue."""
    revoked = []
    options = {"commit_interval_s": 0.01}
    with client.consumer(
        "share", [stream], on_revoked=lambda _, gone: revoked.append(gone), **options
    ) as ann:
        before = take(ann, 40)
        with client.consumer("share", [stream], **options) as bob:
            [more, theirs] = until(lambda: sizes(ann, bob) == [2, 2], ann, bob)
            assert revoked == [bob.assignment()]
            assert ann.assignment().isdisjoint(bob.assignment())
            fill(client, stream, records=5)
            deadline = time.monotonic() + PATIENCE_S
            while len(before + more + theirs) < 60 and time.monotonic() < deadline:
                more += [(r.partition, r.offset) for b in ann.poll(0.05) for r in b]
                theirs += [(r.partition, r.offset) for b in bob.poll(0.05) for r in b]
            assert sorted(before + more + theirs) == [(p, o) for p in range(4) for o in range(15)]
        until(lambda: len(ann.assignment()) == 4, ann)


def test_who_keeps_its_partitions_continues_while_others_are_stuck(client, stream):
    """A rebalance that waits for a stuck member stops no other one."""
    options = {"commit_interval_s": 0.01}
    with (
        client.consumer("stuck", stream, **options) as ann,
        client.consumer("stuck", stream, **options) as bob,
    ):
        [seen, theirs] = until(lambda: sizes(ann, bob) == [2, 2], ann, bob)
        with client.consumer("stuck", stream, **options) as carl:

            def revoking():
                members = client.groups.info("stuck").members
                return {at(s, n) for m in members for s, ns in m.revoking.items() for n in ns}

            until(lambda: revoking() != set())
            [taken] = revoking()
            stuck, free = (ann, bob) if taken <= ann.assignment() else (bob, ann)
            fill(client, stream, records=5)
            kept = {(name.partition, 14) for name in free.assignment()}
            found = []
            until(lambda: kept <= {*found, *found_of(free, found)}, carl)
            assert revoking() == {taken}, "the rebalance has not ended"
            assert carl.assignment() == frozenset()
            assert taken <= stuck.assignment()
            [more, last, others] = until(lambda: carl.assignment() == taken, stuck, free, carl)
            found += more + last + others
            for rest in until(lambda: not any(lags(stuck, free, carl)), stuck, free, carl):
                found += rest
        assert {*seen, *theirs, *found} == {(p, o) for p in range(4) for o in range(15)}


def found_of(consumer, found):
    """Poll once; return the records so far."""
    found += [(r.partition, r.offset) for batch in consumer.poll(0.05) for r in batch]
    return found


def lags(*consumers):
    return [lag for consumer in consumers for lag in consumer.lag().values()]


def test_what_was_not_committed_is_consumed_again(client, stream):
    """With manual commits only ``commit`` counts; a failure in the context commits nothing."""
    with client.consumer("manual", stream, commit_interval_s=None) as consumer:
        take(consumer, 40)
        consumer.commit({PartitionName(stream, 0): 10, PartitionName(stream, 1): 4})

    def fail():
        with client.consumer("manual", stream) as consumer:
            assert len(take(consumer, 26)) == 26
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with client.consumer("manual", stream, commit_interval_s=None) as consumer:
        again = take(consumer, 26)
        assert (1, 4) in again
        assert (1, 3) not in again
        consumer.commit()
    assert set(client.groups.committed_offsets("manual").values()) == {10}


def test_seek_pause_and_resume(client, stream):
    """A consumer goes back and forth in its partitions, and stops some of them."""
    with client.consumer("moves", stream) as consumer:
        until(lambda: len(consumer.assignment()) == 4, consumer)
        until(lambda: set(consumer.lag().values()) == {0}, consumer)
        consumer.seek(stream, 1, "earliest")
        assert take(consumer, 10) == [(1, offset) for offset in range(10)]
        consumer.seek(stream, 1, 7)
        assert take(consumer, 3) == [(1, 7), (1, 8), (1, 9)]
        consumer.pause(stream, 2)
        fill(client, stream, partitions=[2, 3], records=1)
        assert take(consumer, 1) == [(3, 10)]
        assert consumer.poll(0.1) == []
        assert consumer.lag()[PartitionName(stream, 2)] == 1
        consumer.resume(stream, 2)
        assert take(consumer, 1) == [(2, 10)]
        with pytest.raises(InvalidRequestError):
            consumer.seek(stream, 9, 0)


def test_on_assigned_may_choose_where_to_begin(client, stream):
    """A seek in the callback comes before the first record."""

    def begin(consumer, partitions):
        for name in partitions:
            consumer.seek(*name, 8)

    with client.consumer("chosen", stream, on_assigned=begin) as consumer:
        assert sorted(take(consumer, 8)) == [(p, o) for p in range(4) for o in (8, 9)]


def test_begin_at_the_end(client, stream):
    """``start="latest"`` returns records stored after the join."""
    with client.consumer("late", stream, start="latest") as consumer:
        until(lambda: len(consumer.assignment()) == 4, consumer)
        fill(client, stream, partitions=[0], records=1)
        assert take(consumer, 1) == [(0, 10)]
    with pytest.raises(InvalidRequestError):
        client.consumer("late", stream, start="sometime")


def test_what_came_after_a_member_began_late_is_for_the_next(client, stream):
    """Even without a commit, and if the next member starts at the end, too."""
    for interval_s in (5.0, None):
        group = f"late-{interval_s}"
        options = {"start": "latest", "commit_interval_s": interval_s}
        first = client.consumer(group, stream, **options)
        until(lambda consumer=first: len(consumer.assignment()) == 4, first)
        fill(client, stream, partitions=[1], records=2)
        begun = take(first, 2)
        first.close(commit=False)
        with client.consumer(group, stream, **options) as second:
            assert take(second, 2) == begun


def test_a_position_that_is_gone_begins_again(client, stream):
    """If the log no longer has the offset, ``start`` decides."""
    client.groups.commit("behind", {PartitionName(stream, 0): 1000})
    with client.consumer("behind", stream) as consumer:
        found = take(consumer, 40)
    assert sorted(found) == [(p, o) for p in range(4) for o in range(10)]


@pytest.mark.parametrize("is_running", [True, False])
def test_a_group_behind_retention_continues_at_the_first_record_kept(
    client, stream, caplog, is_running
):
    """Even if it starts at the end: these records were never returned. A warning is logged."""
    options = {"start": "latest", "commit_interval_s": 0.05}
    consumer = client.consumer("behind", stream, **options)
    until(lambda: consumer.assignment() == at(stream, 0, 1, 2, 3), consumer)
    if is_running:
        consumer.pause(stream, 0)
    else:
        consumer.close()
    fill(client, stream, partitions=[0])
    client.delete_records(stream, 15)
    if is_running:
        consumer.resume(stream, 0)
    else:
        consumer = client.consumer("behind", stream, **options)
    assert take(consumer, 5) == [(0, offset) for offset in range(15, 20)]
    consumer.close()
    assert client.groups.committed_offsets("behind")[PartitionName(stream, 0)] == 20
    client.groups.delete("behind")
    told = [
        each for each in caplog.messages if "offset 10 does not exist, continuing at 15" in each
    ]
    assert len(told) == 1


def test_where_a_group_goes_on_is_committed_though_no_record_is_left(client, stream):
    """Else lag and committed offset would count records that no longer exist."""
    behind = PartitionName(stream, 0)
    client.groups.commit("emptied", {behind: 0})
    client.delete_records(stream, 10)
    options = {"start": "latest", "commit_interval_s": 0.05}
    with client.consumer("emptied", stream, **options) as consumer:
        until(lambda: client.groups.committed_offsets("emptied")[behind] == 10, consumer)
        assert consumer.lag()[behind] == 0


def test_a_static_member_finds_its_partitions_again(client, stream):
    """Coming back under its name moves nothing, and fences the one that still runs."""
    revoked = []
    options = {"session_timeout_s": 20.0, "commit_interval_s": 0.01}
    with client.consumer(
        "static", stream, on_revoked=lambda _, gone: revoked.append(gone), **options
    ) as ann:
        bob = client.consumer("static", stream, instance="bob", **options)
        until(lambda: sizes(ann, bob) == [2, 2], ann, bob)
        revoked.clear()
        again = client.consumer("static", stream, instance="bob", **options)
        until(lambda: len(again.assignment()) == 2, ann, again)
        assert again.assignment() == bob.assignment()
        with pytest.raises(MemberFencedError):
            until(lambda: False, bob)
        bob.close(commit=False)
        again.close()
        third = client.consumer("static", stream, instance="bob", **options)
        until(lambda: len(third.assignment()) == 2, ann, third)
        assert revoked == []
        third.close()


def test_who_does_not_poll_leaves_and_comes_back(client, stream):
    """A stuck consumer loses its partitions; what it then commits is rejected."""
    options = {"commit_interval_s": 0.01}
    lost = []
    stuck = client.consumer(
        "stuck",
        stream,
        poll_interval_max_s=0.5,
        on_revoked=lambda _, gone: lost.append(gone),
        **options,
    )
    take(stuck, 40)
    with client.consumer("stuck", stream, **options) as other:
        until(lambda: len(other.assignment()) == 4, other)
        with pytest.raises((strandline.errors.UnknownMemberError, StaleMemberError)):
            stuck.commit({PartitionName(stream, 0): 0})
        until(lambda: sizes(stuck, other) == [2, 2], stuck, other)
        assert lost[0] == at(stream, 0, 1, 2, 3)
    stuck.close()


def test_streams_come_and_go(client, stream):
    """A member of several streams continues when one is deleted; an unknown one is rejected."""
    other = next(NAMES)
    client.create_stream(other, partitions=2)
    with client.consumer("several", [stream, other]) as consumer:
        until(lambda: len(consumer.assignment()) == 6, consumer)
        client.delete_stream(other)
        until(lambda: consumer.assignment() == at(stream, 0, 1, 2, 3), consumer)
        fill(client, stream, partitions=[1], records=1)
        take(consumer, 1)
    with pytest.raises(UnknownStreamError):
        client.consumer("several", [other])


def test_groups_are_listed_reset_and_deleted(client, stream):
    """Administration of groups without members."""
    with client.consumer("admin", stream) as consumer:
        take(consumer, 40)
        [listed] = [each for each in client.groups.list() if each.group == "admin"]
        assert listed.members == 1
        [member] = client.groups.info("admin").members
        assert member.assigned == {stream: (0, 1, 2, 3)}
        with pytest.raises(GroupInUseError):
            client.groups.reset("admin", stream, "earliest")
    client.groups.reset("admin", stream, "earliest")
    client.groups.reset("admin", stream, 6, partition=3)
    assert sorted(client.groups.committed_offsets("admin").values()) == [0, 0, 0, 6]
    with client.consumer("admin", stream) as consumer:
        take(consumer, 34)
    client.groups.delete("admin")
    assert client.groups.committed_offsets("admin") == {}
    with pytest.raises(UnknownGroupError):
        client.groups.info("admin")
    with pytest.raises(InvalidRequestError):
        client.groups.reset("admin", stream, 6)


def test_positions_are_committed_with_what_was_made_of_the_records(client, stream):
    """Read, transform, write: a crash between the two leaves neither, so nothing is made twice."""
    output = next(NAMES)
    client.create_stream(output)

    def work(consumer, *, fails):
        for batch in consumer.poll(1):
            with client.transaction(f"transform-{stream}") as transaction:
                for record in batch:
                    transaction.append(output, record.value)
                end = {PartitionName(stream, batch.partition): batch.next_offset}
                transaction.commit_offsets(consumer, end)
                if fails:
                    raise ZeroDivisionError

    def crash():
        with client.consumer("exact", stream, commit_interval_s=None) as consumer:
            while True:
                work(consumer, fails=True)

    with pytest.raises(ZeroDivisionError):
        crash()
    assert client.groups.committed_offsets("exact") == {}
    with client.consumer("exact", stream, commit_interval_s=None) as consumer:
        deadline = time.monotonic() + PATIENCE_S
        while sum(client.groups.committed_offsets("exact").values()) < 40:
            assert time.monotonic() < deadline
            work(consumer, fails=False)
    made = client.read(output).read_all()["value"].to_pylist()
    assert sorted(made) == sorted(f"{p}:{n}".encode() for p in range(4) for n in range(10))


def test_a_member_that_lost_its_partitions_commits_no_transaction(client, stream):
    """Its offsets are rejected and its records are aborted: another member does that work."""
    output = next(NAMES)
    client.create_stream(output)
    manual = {"commit_interval_s": None}
    with client.consumer("fenced", stream, **manual) as ann:
        take(ann, 40)
        late = ann.positions()
        transaction = client.transaction(f"fenced-{stream}")
        transaction.append(output, "made twice")
        transaction.commit_offsets(ann, late)
        with client.consumer("fenced", stream, **manual) as bob:
            until(lambda: sizes(ann, bob) == [2, 2], ann, bob)
            with pytest.raises(StaleMemberError):
                transaction.commit()
            assert client.groups.committed_offsets("fenced") == {}
            with client.transaction(f"fenced-{stream}") as transaction:
                transaction.append(output, "made once")
                transaction.commit_offsets(ann)
            assert client.groups.committed_offsets("fenced") == ann.positions()
            with (
                pytest.raises(GroupInUseError),
                client.transaction(f"fenced-{stream}") as transaction,
            ):
                transaction.commit_offsets("fenced", late)
    assert client.read(output).read_all()["value"].to_pylist() == [b"made once"]


def test_a_prepared_transaction_holds_the_partitions_of_its_positions(client, stream):
    """No other member gets them before the decision; then it continues after them."""
    held = PartitionName(stream, 1)
    transaction = client.transaction(f"held-{stream}")
    transaction.commit_offsets("held", {held: 7})
    staged = transaction.prepare()
    assert client.groups.info("held").undecided == {stream: {1: 7}}
    with client.consumer("held", stream) as consumer:
        assert {p for p, _ in take(consumer, 30)} == {0, 2, 3}
        assert held not in consumer.assignment()
        client.commit_prepared(f"held-{stream}", staged)
        assert take(consumer, 3) == [(1, 7), (1, 8), (1, 9)]
    assert client.groups.committed_offsets("held")[held] == 10
    with client.consumer("own", stream) as consumer:
        take(consumer, 40)
        with (
            pytest.raises(InvalidRequestError, match="commit_interval_s=None"),
            client.transaction(f"held-{stream}") as transaction,
        ):
            transaction.commit_offsets(consumer)


def test_what_an_aborted_transaction_was_told_is_still_to_be_committed(client, stream):
    """Offsets of an aborted transaction are not committed."""
    name = f"undone-{stream}"
    with client.consumer(name, stream, commit_interval_s=None) as consumer:
        take(consumer, 40)
        transaction = client.transaction(name)
        transaction.commit_offsets(consumer)
        client.abort_prepared(name, transaction.prepare())
        consumer.commit()
        assert client.groups.committed_offsets(name) == consumer.positions()
        with client.transaction(name) as transaction:
            transaction.commit_offsets(consumer, {PartitionName(stream, 0): 7})
        consumer.commit()
        assert client.groups.committed_offsets(name) == consumer.positions()


async def consume(consumer, count):
    while count > 0:
        for batch in await consumer.poll(0.2):
            count -= len(list(batch))


async def test_a_consumer_of_asyncio_that_did_not_get_to_join_is_no_member(server, client, stream):
    """A cancelled join is undone, and a closed consumer does not join late."""
    async with await strandline.connect_async(server) as asynchronous:
        late = asynchronous.consumer("hasty", stream)
        entering = asyncio.ensure_future(late.__aenter__())
        await asyncio.sleep(0)  # it begins; the loop looks at nothing more before the cancel
        until(lambda: "hasty" in {each.group for each in client.groups.list()})
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        deadline = time.monotonic() + PATIENCE_S
        while "hasty" in {each.group for each in await asynchronous.groups.list()}:
            assert time.monotonic() < deadline, "it stays a member"
        closed = asynchronous.consumer("hasty", stream)
        await closed.close()
        with pytest.raises(DisconnectedError, match="closed"):
            await closed.poll()
        with pytest.raises(InvalidRequestError, match="async with"):
            await asynchronous.transaction("hasty").append(stream, b"too early")


def test_who_belongs_to_a_closed_client_says_so_at_once(server, stream):
    """It can receive neither records nor answers any longer."""
    client = strandline.connect(server)
    consumer = client.consumer("closed", stream)
    silent = client.consumer("closed", stream, commit_interval_s=None)
    transaction = client.transaction("closed")
    client.close()
    started_s = time.monotonic()
    with pytest.raises(ClientClosedError):
        until(lambda: False, consumer)
    with pytest.raises(ClientClosedError):
        transaction.commit()
    with pytest.raises(ClientClosedError):
        client.groups.list()
    consumer.close()
    silent.close()
    assert time.monotonic() - started_s < 15


async def test_consumers_of_asyncio(server, client, stream):
    """The same names, awaited; nothing blocks the loop."""
    async with (
        await strandline.connect_async(server) as connected,
        connected.consumer("aio", stream, commit_interval_s=None) as consumer,
    ):
        async with asyncio.timeout(PATIENCE_S):
            await consume(consumer, 40)
        assert await consumer.assignment() == at(stream, 0, 1, 2, 3)
        assert set((await consumer.lag()).values()) == {0}
        await consumer.seek(stream, 0, 9)
        await consumer.pause(stream, 1)
        await consumer.resume(stream, 1)
        assert (await consumer.positions())[PartitionName(stream, 0)] == 9
        await consumer.commit()
        assert client.groups.committed_offsets("aio")[PartitionName(stream, 0)] == 9
        async with connected.transaction(f"aio-{stream}") as transaction:
            await transaction.append(stream, b"derived", partition=0)
            await consumer.seek(stream, 0, 7)
            await transaction.commit_offsets(consumer)
            await transaction.flush()
            assert not transaction.has_ended
        assert transaction.has_ended
    assert client.groups.committed_offsets("aio")[PartitionName(stream, 0)] == 7

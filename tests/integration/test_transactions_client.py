"""Transactions from Python against a real broker, as a user meets them."""

import asyncio
import contextlib
import pickle
import re
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pyarrow.flight as fl
import pytest

import strandline
from strandline.client.transactions.staged_write import StagedPart
from strandline.errors import (
    BatchSupersededError,
    FingerprintMismatchError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    StrandlineError,
    TransactionAbortedError,
    TransactionPreparedError,
    UnknownPartitionError,
    UnknownTransactionError,
)
from strandline.testing import Server
from strandline.types import PartitionName

PATIENCE_S = 20


@pytest.fixture(scope="module")
def server():
    """One broker for the module; each test has streams of its own."""
    with Server() as url:
        yield url


@pytest.fixture
def client(server):
    """A client of it."""
    with strandline.connect(server) as made:
        yield made


@pytest.fixture
def name(request):
    """A name no other test uses."""
    return re.sub(r"\W+", "-", request.node.name).strip("-")


def values(client, stream):
    """Every value that is shown, in order."""
    table = client.read(stream, columns=["value"]).read_all()
    return [value.decode() for value in table.column("value").to_pylist()]


def test_a_context_commits_everything_together(client, name):
    """Records of two streams and positions count when it is left, and not before."""
    a, b = f"{name}-a", f"{name}-b"
    client.create_stream(a, partitions=3)
    client.create_stream(b)
    with client.transaction(name) as t:
        acks = [t.append(a, f"{n}", partition=n % 3) for n in range(9)]
        t.append(b, "one", key="k", headers={"h": "1"})
        t.append_batch(b, pa.table({"value": ["two", "three"]}))
        t.commit_offsets("g", {PartitionName("in", 0): 7})
        t.flush()
        assert all(ack.done() for ack in acks)
        assert values(client, a) == values(client, b) == []
        assert client.groups.committed_offsets("g") == {}
    assert sorted(values(client, a)) == [f"{n}" for n in range(9)]
    assert values(client, b) == ["one", "two", "three"]
    assert client.groups.committed_offsets("g") == {("in", 0): 7}
    [info] = [each for each in client.transactions() if each.id == name]
    assert info.status == "committed"
    assert len(info.partitions) == 5, "four with records, and the one of positions"


def test_markers_and_aborted_records_are_not_counted_as_records(client, server, name):
    """The listing, the stream's description and a planned read say how many a reader gets."""
    client.create_stream(name)
    client.append(name, b"plain")
    with client.transaction(f"{name}-1") as transaction:
        transaction.append(name, b"in")
    with contextlib.suppress(ValueError), client.transaction(f"{name}-2") as transaction:
        transaction.append(name, b"out").result()
        raise ValueError
    assert values(client, name) == ["plain", "in"]
    [listed] = [each for each in client.list_streams() if each.name == name]
    [described] = client.stream_info(name).partitions
    assert [part.records for part in (*listed.partitions, described)] == [2, 2]
    assert described.log_end_offset - described.log_start_offset > 2, "there are markers"
    shown = subprocess.run(
        [sys.executable, "-m", "strandline.cli", "stream", "list", "-s", str(server)],
        capture_output=True,
        text=True,
        check=True,
    )
    [line] = [each.split() for each in shown.stdout.splitlines() if each.startswith(name)]
    assert line[3] == "2"


def test_an_exception_aborts(client, name):
    """Nothing of it is ever shown, and the next transaction of the id is another one."""
    client.create_stream(name)

    def fail():
        with client.transaction(name) as t:
            t.append(name, "lost").result(30)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with client.transaction(name) as t:
        t.append(name, "kept")
    assert values(client, name) == ["kept"]
    with pytest.raises(InvalidRequestError, match="committed"):
        t.append(name, "late")


def test_followers_see_what_is_committed_in_order(client, name):
    """A subscription waits for the commit, and skips aborted records."""
    client.create_stream(name)
    seen, done = [], threading.Event()
    subscription = client.subscribe(name, start="earliest")

    def follow():
        for record in subscription:
            seen.append(record.value)
            if record.value == b"end":
                done.set()
                return

    thread = threading.Thread(target=follow)
    thread.start()
    for n in range(6):
        t = client.transaction(name)
        t.append(name, f"{n}")
        t.flush()
        client.append(name, f"plain {n}")
        if n % 2:
            t.abort()
        else:
            t.commit()
    client.append(name, "end")
    assert done.wait(30)
    thread.join(30)
    subscription.close()
    expected = [[f"{n}".encode()] * (n % 2 == 0) + [f"plain {n}".encode()] for n in range(6)]
    assert seen == [*(value for pair in expected for value in pair), b"end"]


def test_a_second_process_takes_over(server, client, name):
    """The first can neither continue nor begin again; its open transaction is aborted."""
    client.create_stream(name)
    old = client.transaction(name)
    old.append(name, "old")
    old.flush()
    with strandline.connect(server) as other:
        with other.transaction(name) as new:
            new.append(name, "new")
        with pytest.raises(ProducerFencedError):
            old.append(name, "zombie").result(30)
        with pytest.raises(StrandlineError):
            old.commit()
        with pytest.raises(ProducerFencedError):
            client.transaction(name)
    assert values(client, name) == ["new"]


def test_its_time_is_limited(client, name):
    """A transaction that is not ended is aborted; its commit is rejected with the reason."""
    client.create_stream(name)
    t = client.transaction(name, timeout_s=0.3)
    t.append(name, "slow").result(30)
    assert client.wait_for(name, {0: 0}, timeout_s=30)[0] > 0, "the abort lets readers go on"
    with pytest.raises(TransactionAbortedError, match="300 ms"):
        t.commit()
    assert values(client, name) == []


def test_a_prepared_transaction_is_ended_by_anybody(server, client, name):
    """Its producer is gone; another client commits it by its staged id."""
    client.create_stream(name)
    with strandline.connect(server) as first:
        t = first.transaction(name)
        t.append(name, "staged")
        t.commit_offsets(name, {PartitionName("in", 3): 4})
        staged = t.prepare()
    assert values(client, name) == []
    with pytest.raises(TransactionPreparedError, match=re.escape(staged)):
        client.transaction(name)
    client.commit_prepared(name, staged)
    client.commit_prepared(name, staged)
    assert values(client, name) == ["staged"]
    assert client.groups.committed_offsets(name) == {("in", 3): 4}
    with pytest.raises(UnknownTransactionError):
        client.abort_prepared(name, staged)


def test_a_record_that_is_rejected_prevents_the_commit(client, name):
    """Even if its future was looked at."""
    client.create_stream(name, partitions=2)
    t = client.transaction(name)
    t.append(name, "good", partition=0)
    with pytest.raises(UnknownPartitionError):
        t.append(name, "nowhere", partition=7)
    t.append(name, "also good", partition=1)
    client.delete_stream(name)
    failed = t.append(name, "too late", partition=1)
    assert failed.exception(60) is not None
    with pytest.raises(StrandlineError):
        t.commit()
    [info] = [each for each in client.transactions() if each.id == name]
    assert info.status == "aborted"


def stage(server, name, batch, *rows):
    """A part that a task stages with a client of its own; travels as plain bytes."""
    with strandline.connect(server) as client, client.stage(name, batch) as s:
        for partition, value in rows:
            s.append_batch(name, pa.table({"value": [value]}), partition=partition)
        return pickle.loads(pickle.dumps(s.finish()))


def test_parts_are_published_once(server, client, name):
    """The named attempts; a repeat is acknowledged, an older one rejected."""
    client.create_stream(name, partitions=2)
    first = stage(server, name, 0, (0, "a0"), (1, "a1"))
    loser = stage(server, name, 0, (0, "a0"), (1, "a1"))
    other = stage(server, name, 0, (0, "b0"))
    assert first.rows == 2
    assert values(client, name) == []
    refs, positions = [first.ref, other.ref], {name: {PartitionName("in", 0): 3}}
    published = client.commit_staged(name, 0, refs, fingerprint="rows=3", offsets=positions)
    assert not published.is_repeat
    assert values(client, name) == ["a0", "b0", "a1"]
    assert client.groups.committed_offsets(name) == {("in", 0): 3}
    again = client.commit_staged(name, 0, refs, fingerprint="rows=3", offsets=positions)
    assert again.is_repeat

    again = stage(server, name, 0, (0, "a0"), (1, "a1"), (0, "b0"))
    assert again == StagedPart("", 3)
    assert client.commit_staged(name, 0, [again.ref], fingerprint="rows=3").is_repeat
    with pytest.raises(FingerprintMismatchError):
        client.commit_staged(name, 0, [], fingerprint="rows=4")
    with pytest.raises(UnknownTransactionError):
        client.commit_staged(name, 1, [loser.ref], fingerprint="x")
    assert not client.commit_staged(name, 5, [], fingerprint="rows=0").is_repeat
    with pytest.raises(BatchSupersededError):
        client.commit_staged(name, 4, [], fingerprint="rows=0")
    assert client.last_published(name).batch_id == 5
    assert client.last_published("nobody") is None
    assert values(client, name) == ["a0", "b0", "a1"]


def test_a_part_that_comes_late_is_never_shown(server, client, name):
    """A task that continues after the publication is rejected, and leaves nothing open."""
    client.create_stream(name)
    with strandline.connect(server) as other, other.stage(name, 3) as late:
        late.append(name, "late")
        part = stage(server, name, 3, (0, "part"))
        client.commit_staged(name, 3, [part.ref], fingerprint="")
        late.append(name, "later")
        with pytest.raises(ProducerFencedError):
            late.finish()
    client.append(name, "after")
    assert values(client, name) == ["part", "after"]


def test_streams_of_the_brokers_own_are_not_for_users(client, name):
    """They can be read, and neither made, written nor deleted."""
    with client.transaction(name):
        pass
    for refused in (
        lambda: client.create_stream("__mine"),
        lambda: client.delete_stream("__transactions"),
        lambda: client.append("__transactions", b"{}", timeout_s=30),
        lambda: client.transaction(name).append("__transactions", b"{}"),
    ):
        with pytest.raises(InvalidRequestError):
            refused()
    assert client.read("__transactions").read_all().num_rows > 0


async def test_the_asynchronous_client_has_the_same_names(server, client, name):
    """A context commits, an exception aborts, and a prepared one is ended by its staged id."""
    client.create_stream(name)
    made = await strandline.connect_async(server)
    async with made:
        async with made.transaction(name) as t:
            await t.append(name, "one")
            await t.append_batch(name, pa.table({"value": ["two"]}))
            await t.commit_offsets(name, {PartitionName("in", 0): 2})
        assert await made.groups.committed_offsets(name) == {("in", 0): 2}
        with contextlib.suppress(ZeroDivisionError):
            async with made.transaction(name) as t:
                await t.append(name, "lost")
                raise ZeroDivisionError
        async with made.transaction(name) as t:
            await t.append(name, "three")
            staged = await t.prepare()
        assert values(client, name) == ["one", "two"]
        await made.commit_prepared(name, staged)
        async with made.transaction(name) as t:
            staged = await t.prepare()
        await made.abort_prepared(name, staged)
        [info] = [each for each in await made.transactions() if each.id == name]
        assert info.status == "aborted"
    assert values(client, name) == ["one", "two", "three"]


async def test_parts_are_staged_asynchronously_too(server, client, name):
    """Published parts count once; a part without ``finish`` never does."""
    client.create_stream(name)
    made = await strandline.connect_async(server)
    async with made:
        async with made.stage(name, 0) as stage:
            await stage.append(name, "one")
            await stage.append_batch(name, pa.table({"value": ["two"]}))
            part = await stage.finish()
        with contextlib.suppress(ZeroDivisionError):
            async with made.stage(name, 0) as stage:
                await stage.append(name, "lost")
                raise ZeroDivisionError
        assert await made.last_published(name) is None
        for is_repeat in (False, True):
            found = await made.commit_staged(name, 0, [part.ref], fingerprint="rows=2")
            assert (found.batch_id, found.is_repeat) == (0, is_repeat)
        async with made.stage(name, 0) as stage:
            assert stage.is_published
            assert (await stage.finish()).ref == ""
        assert (await made.last_published(name)).batch_id == 0
    assert values(client, name) == ["one", "two"]


@pytest.mark.parametrize("kind", ["transaction", "stage"])
async def test_what_is_cancelled_while_it_begins_does_not_stay_open(server, client, name, kind):
    """It is aborted, though the client is closed at once."""
    async with await strandline.connect_async(server) as made:
        context = getattr(made, kind)(name, *([0] if kind == "stage" else []))
        entering = asyncio.ensure_future(context.__aenter__())
        await asyncio.sleep(0)  # it begins; the loop looks at nothing more before the cancel
        wait_until(lambda: opened(client, name) == ["open"])
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
    wait_until(lambda: "open" not in opened(client, name))


def opened(client, name):
    """Return the outcomes of the transactions, or parts, of a name."""
    return [each.status for each in client.transactions() if each.id.startswith(name)]


def wait_until(condition):
    """Wait for something, and block the loop if there is one."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_plans_of_reads_end_where_committed_records_do(server, client, name):
    """Offsets, a stream's extent and Flight's endpoints stop before undecided records."""
    client.create_stream(name)
    client.append(name, "plain")
    with client.transaction(name) as t:
        t.append(name, "open")
        t.flush()
        [part] = client.stream_info(name).partitions
        assert part.high_watermark == client.offsets(name)[0] == 1 < part.log_end_offset
        with pytest.raises(OffsetOutOfRangeError):
            client.read(name, start=2).read_all()
        flight = fl.connect(f"grpc+tcp://{server}")
        [endpoint] = flight.get_flight_info(fl.FlightDescriptor.for_path(name)).endpoints
    assert flight.do_get(endpoint.ticket).read_all().num_rows == 1
    assert values(client, name) == ["plain", "open"]
    flight.close()

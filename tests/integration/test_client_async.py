"""The asynchronous client: the same names, awaited, and nothing blocks the loop."""

import asyncio
import contextlib
import gc
import threading
import time

import pyarrow as pa
import pytest

import strandline
from strandline.errors import (
    DisconnectedError,
    RecordTooLargeError,
    StrandlineError,
    UnknownStreamError,
)

PATIENCE_S = 20


async def test_streams_records_and_reads(strandline_url):
    """A stream from its creation to its deletion."""
    async with await strandline.connect_async(strandline_url) as client:
        assert client.address == strandline_url
        await client.create_stream("s", partitions=2)
        ack = await client.append("s", b"a", partition=1)
        assert (ack, ack.partition) == (0, 1)
        await client.append_batch("s", pa.table({"value": ["b", "c"]}), partition=1)
        async with await client.read("s", partition=1) as reader:
            found = [v async for batch in reader for v in batch.column("value").to_pylist()]
        assert found == [b"a", b"b", b"c"]
        assert (await (await client.read("s")).read_all()).num_rows == 3
        assert await client.offsets("s") == {0: 0, 1: 3}
        assert await client.wait_for("s", {1: 0}) == {1: 3}
        await client.delete_records("s", 0, partition=1)
        assert (await client.stream_info("s")).partitions[1].records == 3
        assert [info.name for info in await client.list_streams()] == ["s"]
        assert (await client.server_info()).streams == 1
        await client.delete_stream("s")
        with pytest.raises(UnknownStreamError):
            await client.read("s")


async def test_a_producer_batches_gathered_appends(strandline_url):
    """A thousand awaits share a few batches, and keep their order."""
    async with await strandline.connect_async(strandline_url) as client:
        await client.create_stream("s")
        async with client.producer("s", buffer_bytes=20_000) as producer:
            acks = await asyncio.gather(
                *(producer.append(b"%d" % number, key=b"k") for number in range(1000))
            )
            await producer.flush()
            batch = await producer.append_batch(pa.table({"value": ["x"]}))
            assert batch.ranges == ((0, 1000, 1),)
            with pytest.raises(RecordTooLargeError):
                await producer.append(b"x" * (2 << 20))
        assert acks == list(range(1000))
        table = await (await client.read("s", columns=["value"])).read_all()
        assert table["value"].to_pylist()[:1000] == [b"%d" % number for number in range(1000)]


async def test_a_subscription_is_an_async_iterator(strandline_url):
    """Records arrive while the loop does other things; leaving ends it."""
    async with await strandline.connect_async(strandline_url) as client:
        await client.create_stream("s")
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        async with client.subscribe("s") as subscription:

            async def append():
                await asyncio.sleep(0.2)
                await client.append("s", b"v")

            appending = asyncio.create_task(append())
            async for record in subscription:
                assert record.value == b"v"
                break
            await appending
        ticking.cancel()
        assert ticks > 5


async def test_a_cancelled_follow_leaves_nothing_behind(strandline_url, strandline_server):
    """Cancelling the task and closing the reader ends the call on the broker."""
    async with await strandline.connect_async(strandline_url) as client:
        await client.create_stream("s")
        reader = await client.read("s", follow=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(reader), 0.2)
        await reader.close()
        telemetry = strandline_server.app.broker.telemetry
        for _ in range(200):
            if not telemetry.connections["flight"]:
                break
            await asyncio.sleep(0.02)
        assert telemetry.connections["flight"] == 0


async def test_a_subscription_that_is_cancelled_while_it_opens_ends(
    strandline_url, strandline_server
):
    """A cancelled subscription ends, although its object is still referenced."""
    connections = strandline_server.app.broker.telemetry.connections
    async with await strandline.connect_async(strandline_url) as client:
        await client.create_stream("s")
        subscription = client.subscribe("s")
        entering = asyncio.ensure_future(subscription.__aenter__())
        await asyncio.sleep(0)  # it opens; the loop looks at nothing more before the cancel
        wait_until(lambda: connections["flight"] == 1)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        wait_until(lambda: connections["flight"] == 0)
        assert [record async for record in subscription] == []


def wait_until(condition):
    """Wait for something, and block the loop meanwhile."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


async def test_nobody_there_is_an_error_of_ours(unused_tcp_port):
    """The error is the same as that of the synchronous client."""
    with pytest.raises(DisconnectedError, match="strandline serve"):
        await strandline.connect_async(f"127.0.0.1:{unused_tcp_port}")


async def test_groups_rules_and_quotas(strandline_url):
    """The administrative calls work when awaited."""
    async with await strandline.connect_async(strandline_url) as client:
        await client.create_stream("s")
        for number in range(3):
            await client.append("s", b"%d" % number)
        assert await client.groups.reset("g", "s", 1, partition=0) == {("s", 0): 1}
        await client.groups.commit("g", {("s", 0): 2})
        assert await client.groups.committed_offsets("g") == {("s", 0): 2}
        assert [group.group for group in await client.groups.list()] == ["g"]
        assert not (await client.groups.info("g")).members
        await client.groups.delete("g")
        await client.access.grant("ann", "read", "stream", "s")
        [rule] = await client.access.rules()
        assert rule.principal == "ann"
        await client.access.revoke("ann", "read", "stream", "s")
        assert (await client.access.create_token("ann", days=1)).startswith("sl")
        [token] = await client.access.tokens()
        await client.access.revoke_token(token.id)
        assert await client.access.tokens() == []
        await client.quotas.set("ann", connections=3)
        assert [quota.connections for quota in await client.quotas.list()] == [3]
        await client.quotas.remove("ann")
        assert await client.quotas.list() == []


async def test_a_closed_subscription_has_ended(strandline_url):
    """A caller that asks for another record gets an error, and does not wait."""
    async with await strandline.connect_async(strandline_url) as client:
        await client.create_stream("s")
        await client.append("s", b"v")
        async with client.subscribe("s", start="earliest") as subscription:
            assert (await anext(subscription)).value == b"v"
        async with asyncio.timeout(PATIENCE_S):
            assert [record async for record in subscription] == []


async def test_a_closed_consumer_still_answers(strandline_url):
    """Itself, and a transaction that asks it for its positions."""
    async with await strandline.connect_async(strandline_url) as client:
        await client.create_stream("s")
        async with client.consumer("g", "s", commit_interval_s=None) as consumer:
            await consumer.poll(0.1)
        async with asyncio.timeout(PATIENCE_S):
            await consumer.positions()
            with pytest.raises(StrandlineError):
                async with client.transaction("t") as transaction:
                    await transaction.commit_offsets(consumer, {("s", 0): 0})


async def test_a_consumer_joins_once(strandline_url):
    """However many tasks are the first to ask; one that has given up leaves no member behind."""
    async with await strandline.connect_async(strandline_url) as client:
        await client.create_stream("s")
        consumer = client.consumer("g", "s")
        await asyncio.gather(*(consumer.poll(0.01) for _ in range(3)))
        assert len((await client.groups.info("g")).members) == 1
        await consumer.close()
        hasty = client.consumer("g", "s")
        polling = asyncio.create_task(hasty.poll(0.01))
        await asyncio.sleep(0)  # it has begun to join
        polling.cancel()
        await hasty.close()
        await client.groups.reset("g", "s", "latest")  # refused where there is a member


async def impatient(wait, found):
    """Return the record that arrives soon, if one does."""
    waiting = asyncio.create_task(wait())
    await asyncio.wait([waiting], timeout=0.02)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        found.extend(await waiting)


@pytest.mark.parametrize("kind", ["read", "subscription", "consumer"])
async def test_waits_that_time_out_lose_nothing(strandline_url, kind):
    """A record that a cancelled waiter did not receive goes to the next one."""
    client = await strandline.connect_async(strandline_url)
    await client.create_stream("s")
    reader = await client.read("s", follow=True)
    subscription = client.subscribe("s", start="earliest")
    consumer = client.consumer("g", "s", commit_interval_s=0.0)
    await consumer.poll(0.1)

    async def wait():
        if kind == "read":
            return (await anext(reader)).column("value").to_pylist()
        if kind == "subscription":
            return [(await anext(subscription)).value]
        return [record.value for batch in await consumer.poll(60) for record in batch]

    found = []
    for number in range(20):
        await impatient(wait, found)
        await client.append("s", b"%d" % number)
    if kind == "subscription":
        assert subscription.positions[0] == len(found)
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < 20:
            found.extend(await wait())
    assert found == [b"%d" % number for number in range(20)]
    for each in (reader, subscription, consumer):
        await each.close()
    assert (await client.groups.committed_offsets("g")).get(("s", 0), 0) == 20 * (
        kind == "consumer"
    )
    await client.close()


async def test_reads_that_end_leave_no_threads(strandline_url):
    """At their end, or when their context is left early."""
    names = ("strandline-reader", "strandline-subscription")

    def reads():
        return [each for each in threading.enumerate() if each.name in names]

    async def until_none():
        async with asyncio.timeout(PATIENCE_S):
            while reads():  # noqa: ASYNC110  nobody tells when a thread ends
                await asyncio.sleep(0.02)

    async with await strandline.connect_async(strandline_url) as client:
        await client.create_stream("s")
        await client.append("s", b"v")
        whole = await client.read("s")
        assert (await whole.read_all()).num_rows == 1
        await until_none()
        with pytest.raises(StopAsyncIteration):
            await anext(whole)
        async with await client.read("s", follow=True) as endless:
            await anext(endless)
            assert len(reads()) == 1
        await until_none()
        with pytest.raises(StopAsyncIteration):
            await anext(endless)
        async with client.subscribe("s", start="earliest") as subscription:
            await anext(subscription)
            assert len(reads()) == 1
        await until_none()


async def test_reads_that_are_left_leave_no_threads(strandline_url):
    """Without being closed, which is easily forgotten."""

    def threads():
        gc.collect()
        return {each for each in threading.enumerate() if each.name.startswith("strandline-")}

    async with await strandline.connect_async(strandline_url) as client:
        await client.create_stream("s")
        await client.append("s", b"v")
        before = threads()
        for _ in range(5):
            async for _batch in await client.read("s"):
                break
            async for _record in client.subscribe("s", start="earliest"):
                break
            await client.read("s")
        async with asyncio.timeout(PATIENCE_S):
            while threads() - before:  # noqa: ASYNC110  nobody tells when a thread ends
                await asyncio.sleep(0.02)


async def test_an_option_that_does_not_exist_is_rejected_at_the_call(strandline_url):
    """Not when the producer, subscription or consumer is opened."""
    async with await strandline.connect_async(strandline_url) as client:
        await client.create_stream("s")
        assert len((await client.add_partitions("s", 1)).partitions) == 1
        for call, wrong, nearest in (
            (client.producer, "linger", "linger_ms"),
            (client.subscribe, "strat", "start"),
        ):
            with pytest.raises(TypeError, match=f"'{wrong}'; did you mean '{nearest}'"):
                call("s", **{wrong: 1})
        with pytest.raises(TypeError, match=r"^consumer\(\) got .* did you mean 'instance'"):
            client.consumer("g", "s", instances="a")
        with pytest.raises(TypeError, match=r"^read\(\) got .* did you mean 'columns'"):
            await client.read("s", colums=["value"])
        with pytest.raises(TypeError, match=r"^commit_staged\(\) got "):
            await client.commit_staged("t", 0, [], position={})
        async with client.producer("s") as producer:
            with pytest.raises(TypeError, match=r"^append\(\) got .* did you mean 'key'"):
                await producer.append(b"x", kye=b"k")
        async with client.transaction("t") as transaction:
            with pytest.raises(TypeError, match=r"^append\(\) got .* did you mean 'key'"):
                await transaction.append("s", b"x", kye=b"k")

"""Rust's NATS client (async-nats, as natsrpy wraps it) uses streams and consumers unchanged.

It insists on more fields of answers than others do. Each test runs against nats-server, too.
"""

import asyncio

import pytest
from natsrpy import Nats
from natsrpy.js import AckPolicy, PullConsumerConfig, PushConsumerConfig, StreamConfig


@pytest.fixture
async def stream(url, request):
    """The test's own stream with five messages, and the client's JetStream."""
    name = "rust_" + "".join(c if c.isalnum() else "_" for c in request.node.name)
    client = Nats([url])
    await client.startup()
    js = await client.jetstream()
    made = await js.streams.create(StreamConfig(name=name, subjects=[f"{name}.>"]))
    for number in range(5):
        await js.publish(f"{name}.{number}", b"%d" % number, wait=True)
    yield js, made
    await js.streams.delete(name)
    await client.shutdown()


async def test_a_stream_is_shown_and_purged(stream):
    """Info, and the rest after a purge."""
    _, made = stream
    assert (await made.get_info()).state.messages == 5
    await made.purge()
    state = (await made.get_info()).state
    assert (state.messages, state.last_sequence) == (0, 5)


async def test_a_pull_consumer_fetches_and_acknowledges(stream):
    """With a double acknowledgement, a refusal, and the next delivery's count."""
    _, made = stream
    config = PullConsumerConfig(name="d", durable_name="d", ack_policy=AckPolicy.EXPLICIT)
    consumer = await made.consumers.create(config)
    messages = await consumer.fetch(max_messages=3, timeout=5)
    assert [each.payload for each in messages] == [b"0", b"1", b"2"]
    for each in messages[1:]:
        await each.ack(double=True)
    await messages[0].nack(double=True)  # else the pull, which does not wait, may overtake it
    again = await consumer.fetch(max_messages=3, timeout=5)
    assert {each.payload: each.delivered for each in again} == {b"0": 2, b"3": 1, b"4": 1}
    for each in again:
        await each.ack(double=True)


async def test_a_pull_consumer_consumes(stream):
    """Messages come one after the other, also those that are published later."""
    js, made = stream
    config = PullConsumerConfig(name="c", ack_policy=AckPolicy.NONE)
    consumer = await made.consumers.create(config)
    seen = []
    async with asyncio.timeout(30):
        async with consumer.consume() as messages:
            async for each in messages:
                seen.append(each.payload)
                if len(seen) == 5:
                    await js.publish(f"{made.name}.5", b"5", wait=True)
                if len(seen) == 6:
                    break
    assert seen == [b"%d" % number for number in range(6)]


async def test_a_push_consumer_receives(stream):
    """With heartbeats and flow control; what is acknowledged does not come again."""
    js, made = stream
    config = PushConsumerConfig(
        name="p",
        durable_name="p",
        deliver_subject="_INBOX.rust.pushed",
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=1,
        idle_heartbeat=1,
        flow_control=True,
    )
    consumer = await made.consumers.create(config)
    seen = []
    async with asyncio.timeout(30):
        async with consumer.consume() as messages:
            async for each in messages:
                seen.append(each.payload)
                await each.ack(double=True)
                if len(seen) == 5:
                    await js.publish(f"{made.name}.5", b"5", wait=True)
                if len(seen) == 6:
                    break
    assert seen == [b"%d" % number for number in range(6)]

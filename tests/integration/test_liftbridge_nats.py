"""One stream, two ways in: records from NATS are read over gRPC, as in Liftbridge."""

import asyncio

import grpc
import nats
import pytest

from strandline.record import envelope
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.testing import Server

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def server():
    running = Server(nats=True, grpc={"port": 0})
    running.start()
    yield running
    running.stop()


@pytest.fixture
def api(server, grpc_stub):
    with grpc.insecure_channel(f"127.0.0.1:{server.app.ready_line()['grpc_port']}") as channel:
        yield grpc_stub(channel, pb.DESCRIPTOR.services_by_name["API"])


def read(api, stream, count):
    """The first messages of a stream, as they come."""
    request = pb.SubscribeRequest(stream=stream, startPosition=pb.EARLIEST)
    call = api.Subscribe(request, timeout=TIMEOUT_S)
    assert next(call) == pb.Message()
    found = [next(call) for _ in range(count)]
    call.cancel()
    return found


def over_nats(url, *messages):
    """Publish (subject, payload, reply) and return the messages of the inbox ``_INBOX.acks.>``."""

    async def run():
        client = await nats.connect(url)
        acks = await client.subscribe("_INBOX.acks.>")
        for subject, payload, reply in messages:
            await client.publish(subject, payload, reply=reply)
        await client.flush()
        expected = sum(payload.startswith(envelope.MAGIC) for _, payload, _ in messages)
        found = [await acks.next_msg(timeout=TIMEOUT_S) for _ in range(expected)]
        await client.close()
        return [(message.subject, envelope.decode_ack(message.data)) for message in found]

    return asyncio.run(run())


@pytest.mark.parametrize("way", ["nats_url", "ingest_url"])
def test_a_plain_message_keeps_its_subject_and_reply(api, server, way):
    """Under a wildcard; the reply subject belongs to the application."""
    name = f"plain-{way.replace('_', '-')}"
    request = pb.CreateStreamRequest(name=name, subject=f"{name}.*")
    api.CreateStream(request, timeout=TIMEOUT_S)
    url = getattr(server, way)
    assert over_nats(url, (f"{name}.x", b"v", "my.reply"), (f"{name}.y", b"w", "")) == []
    first, second = read(api, name, 2)
    assert (first.value, first.subject, first.replySubject) == (b"v", f"{name}.x", "my.reply")
    assert dict(first.headers) == {"subject": f"{name}.x".encode(), "reply": b"my.reply"}
    assert (second.value, second.subject, second.replySubject) == (b"w", f"{name}.y", "")


@pytest.mark.parametrize("way", ["nats_url", "ingest_url"])
def test_an_envelope_is_unwrapped_and_acknowledged(api, server, way):
    """Key, headers and partition; the ack goes to the inbox that the message names."""
    name = f"wrapped-{way.replace('_', '-')}"
    request = pb.CreateStreamRequest(name=name, subject=name, partitions=2)
    api.CreateStream(request, timeout=TIMEOUT_S)
    message = envelope.EnvelopeMessage(
        key=b"k",
        value=b"v",
        headers=[("h", b"1")],
        ack_inbox="_INBOX.acks.1",
        correlation_id="c",
        ack_policy=envelope.AckPolicy.ALL,
    )
    [(subject, ack)] = over_nats(
        getattr(server, way), (f"{name}.1", envelope.encode_message(message), "")
    )
    assert (subject, ack.stream, ack.offset, ack.correlation_id) == ("_INBOX.acks.1", name, 0, "c")
    assert (ack.partition_subject, ack.message_subject) == (name, f"{name}.1")
    call = api.Subscribe(
        pb.SubscribeRequest(stream=name, partition=1, startPosition=pb.EARLIEST), timeout=TIMEOUT_S
    )
    next(call)
    found = next(call)
    call.cancel()
    assert (found.key, found.value, found.headers["h"]) == (b"k", b"v", b"1")


@pytest.mark.parametrize("way", ["nats_url", "ingest_url"])
def test_an_envelope_may_expect_an_offset(api, server, way):
    """Where the stream checks it, another one than the next is rejected on the ack inbox."""
    name = f"expecting-{way.replace('_', '-')}"
    request = pb.CreateStreamRequest(name=name, subject=name)
    request.optimisticConcurrencyControl.value = True
    api.CreateStream(request, timeout=TIMEOUT_S)
    messages = [
        envelope.EnvelopeMessage(offset=offset, value=b"%d" % n, ack_inbox=f"_INBOX.acks.{n}")
        for n, offset in enumerate((0, 0, 1, -1))
    ]
    payloads = [(name, envelope.encode_message(message), "") for message in messages]
    acks = dict(over_nats(getattr(server, way), *payloads))
    assert {inbox: (ack.offset, ack.error) for inbox, ack in acks.items()} == {
        "_INBOX.acks.0": (0, envelope.AckError.OK),
        "_INBOX.acks.1": (0, envelope.AckError.INCORRECT_OFFSET),
        "_INBOX.acks.2": (1, envelope.AckError.OK),
        "_INBOX.acks.3": (2, envelope.AckError.OK),
    }


def test_a_readonly_stream_rejects_nats_too(api, server):
    """A publisher that waits gets the reason; nothing is stored."""
    api.CreateStream(pb.CreateStreamRequest(name="closed", subject="closed"), timeout=TIMEOUT_S)
    api.SetStreamReadonly(
        pb.SetStreamReadonlyRequest(name="closed", readonly=True), timeout=TIMEOUT_S
    )
    message = envelope.EnvelopeMessage(value=b"v", ack_inbox="_INBOX.acks.r")
    [(_, ack)] = over_nats(server.nats_url, ("closed", envelope.encode_message(message), ""))
    assert ack.error == envelope.AckError.UNKNOWN
    request = pb.FetchPartitionMetadataRequest(stream="closed")
    metadata = api.FetchPartitionMetadata(request, timeout=TIMEOUT_S).metadata
    assert metadata.newestOffset == -1

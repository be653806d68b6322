"""Stock NATS clients publish, records come back as Arrow: both ways in, real everything."""

import asyncio
import json

import nats
import nats.errors
import nats.js.errors
import pytest

import strandline
from strandline.record.envelope import AckError, EnvelopeMessage, decode_ack, encode_message
from strandline.testing.server import Server


@pytest.fixture(scope="module")
def server():
    """A broker with nats-server and the listener for publishers."""
    with Server(nats=True, limits={"record_bytes": 100_000}) as url:
        yield url


@pytest.fixture(scope="module")
def admin(server):
    """A client to create streams and read them."""
    with strandline.connect(server.flight) as client:
        yield client


@pytest.fixture(params=["nats_url", "ingest_url"])
async def nc(server, request):
    """A stock client on one of the two ways in."""
    client = await nats.connect(getattr(server, request.param))
    yield client
    await client.close()


@pytest.fixture
def stream(admin, request):
    """A function that creates a stream of the test's own, on a subject named after it."""
    base = "".join(c if c.isalnum() else "-" for c in request.node.name)
    created = []

    def create(suffix="", *, subject=None, **settings):
        name = f"{base}{suffix}"
        admin.create_stream(name, subject=subject or f"{name}.x", **settings)
        created.append(name)
        return name

    yield create
    for name in created:
        admin.delete_stream(name)


def rows(admin, name, **options):
    """All records of a stream as dictionaries."""
    return [row for batch in admin.read(name, **options) for row in batch.to_pylist()]


async def bound(nc, subject):
    """Wait until the subject has a stream behind it."""
    async with asyncio.timeout(60):
        while True:
            try:
                await nc.request(subject, b"probe", timeout=1, headers={"Nats-Rollup": "refused"})
            except nats.errors.NoRespondersError:
                await asyncio.sleep(0.005)
            else:
                return


async def test_js_publish(admin, nc, stream):
    """``js.publish`` of a stock client is acked, and the record is there with its headers."""
    name = stream()
    await bound(nc, f"{name}.x")
    js = nc.jetstream()
    for number in range(3):
        ack = await js.publish(f"{name}.x", b"%d" % number, headers={"a": "b", "c": "d"})
        assert (ack.stream, ack.seq, ack.duplicate) == (name, number + 1, None)
    found = rows(admin, name)
    assert [row["value"] for row in found] == [b"0", b"1", b"2"]
    assert [row["offset"] for row in found] == [0, 1, 2]
    assert found[0]["subject"] == f"{name}.x"
    assert found[0]["headers"] == [("a", b"b"), ("c", b"d")]


async def test_js_publish_async(admin, nc, stream):
    """Many publishes in flight are all acked, in order, without a gap."""
    name = stream()
    await bound(nc, f"{name}.x")
    js = nc.jetstream()
    futures = [await js.publish_async(f"{name}.x", b"%d" % n) for n in range(500)]
    acks = await asyncio.gather(*futures)
    assert [ack.seq for ack in acks] == list(range(1, 501))
    assert [row["value"] for row in rows(admin, name)] == [b"%d" % n for n in range(500)]


async def test_message_id_deduplicates(admin, nc, stream):
    """A retry with the same Nats-Msg-Id is acked as a duplicate, with the first sequence."""
    name = stream()
    await bound(nc, f"{name}.x")
    js = nc.jetstream()
    headers = {"Nats-Msg-Id": "once"}
    first = await js.publish(f"{name}.x", b"1", headers=headers)
    again = await js.publish(f"{name}.x", b"1", headers=headers)
    assert (first.seq, first.duplicate) == (1, None)
    assert (again.seq, again.duplicate) == (1, True)
    assert len(rows(admin, name)) == 1


async def test_expected_last_sequence(admin, nc, stream):
    """A wrong expectation gets JetStream's rejection, a right one is stored."""
    name = stream()
    await bound(nc, f"{name}.x")
    js = nc.jetstream()
    await js.publish(f"{name}.x", b"1", headers={"Nats-Expected-Last-Sequence": "0"})
    with pytest.raises(nats.js.errors.APIError) as caught:
        await js.publish(f"{name}.x", b"2", headers={"Nats-Expected-Last-Sequence": "0"})
    assert caught.value.err_code == 10071
    assert caught.value.description == "wrong last sequence: 1"
    await js.publish(f"{name}.x", b"2", headers={"Nats-Expected-Last-Sequence": "1"})
    assert len(rows(admin, name)) == 2


async def test_expected_stream(nc, stream):
    """The publish call's ``stream`` argument is checked."""
    name = stream()
    await bound(nc, f"{name}.x")
    js = nc.jetstream()
    assert (await js.publish(f"{name}.x", b"1", stream=name)).stream == name
    with pytest.raises(nats.js.errors.APIError) as caught:
        await js.publish(f"{name}.x", b"1", stream="another")
    assert caught.value.err_code == 10060


async def test_a_stream_that_answers_nobody_stores_everything(server, admin, stream):
    """Headers meant for another stream keep nothing out, and the service of a subject answers."""
    name = stream(pub_ack=False)
    controls = [
        {"Nats-Rollup": "sub"},
        {"Nats-TTL": "1h"},
        {"Nats-Expected-Last-Subject-Sequence": "0"},
        {"Nats-Expected-Stream": "ORDERS"},
        {"Nats-Expected-Last-Sequence": "7"},
        {"Nats-Msg-Id": "same"},
        {"Nats-Msg-Id": "same"},
    ]

    async def service(message):
        await message.respond(b"the real answer")

    nc = await nats.connect(server.nats_url)
    try:
        await nc.subscribe(f"{name}.x", cb=service)
        for number, headers in enumerate(controls):
            answer = await nc.request(f"{name}.x", b"%d" % number, headers=headers)
            assert answer.data == b"the real answer"
            await nc.publish(f"{name}.x", b"%d" % number, headers=headers)
        await nc.flush()
    finally:
        await nc.close()
    async with asyncio.timeout(60):
        while len(found := rows(admin, name)) < 2 * len(controls):  # noqa: ASYNC110  no event to wait for
            await asyncio.sleep(0.01)
    assert [int(row["value"]) for row in found] == sorted([*range(7), *range(7)])


async def test_no_stream(nc):
    """A subject without a stream gets an error at once, as from nats-server."""
    with pytest.raises(nats.js.errors.NoStreamResponseError):
        await nc.jetstream().publish("nobody.listens", b"x")


async def test_too_large(nc, stream):
    """A record over the limit is rejected with the limit's name; the connection continues."""
    name = stream()
    await bound(nc, f"{name}.x")
    js = nc.jetstream()
    with pytest.raises(nats.js.errors.APIError) as caught:
        await js.publish(f"{name}.x", bytes(100_001))
    assert caught.value.err_code == 10054
    assert "limits.record_bytes is 100000" in caught.value.description
    assert (await js.publish(f"{name}.x", bytes(100_000))).seq == 1


async def test_plain_publish_is_recorded(admin, nc, stream):
    """A publish without a reply subject is recorded all the same, in order."""
    name = stream()
    await bound(nc, f"{name}.x")
    for number in range(200):
        await nc.publish(f"{name}.x", b"%d" % number)
    assert (await nc.jetstream().publish(f"{name}.x", b"last")).seq == 201
    values = [row["value"] for row in rows(admin, name)]
    assert values == [b"%d" % n for n in range(200)] + [b"last"]


async def test_two_streams_on_one_subject(admin, nc, stream):
    """Each stream gets every record; the client takes the first ack that comes."""
    one = stream("one", subject="shared.two")
    two = stream("two", subject="shared.*")
    await bound(nc, "shared.two")
    js = nc.jetstream()
    for number in range(20):
        assert (await js.publish("shared.two", b"%d" % number)).stream in (one, two)
    await js.publish("shared.two", b"end", stream=one)
    await js.publish("shared.two", b"end", stream=two)
    for name in (one, two):
        assert [row["value"] for row in rows(admin, name)][:20] == [b"%d" % n for n in range(20)]


async def test_an_expected_stream_gets_what_its_queue_group_is_given(admin, nc, stream):
    """Whichever broker receives it, and out of turn: stored there, and acked."""
    names = [stream(suffix, subject="expected.queue", queue_group="g") for suffix in ("a", "b")]
    await bound(nc, "expected.queue")
    js = nc.jetstream()
    for number in range(20):
        assert (await js.publish("expected.queue", b"%d" % number, stream=names[0])).seq
    assert [len(rows(admin, name)) for name in names] == [20, 0]


async def test_queue_group_shares(admin, nc, stream):
    """Streams of one group divide the records among them."""
    names = [stream(suffix, subject="shared.queue", queue_group="g") for suffix in ("a", "b")]
    await bound(nc, "shared.queue")
    js = nc.jetstream()
    for number in range(60):
        await js.publish("shared.queue", b"%d" % number)
    parts = [[int(row["value"]) for row in rows(admin, name)] for name in names]
    assert sorted(parts[0] + parts[1]) == list(range(60))
    assert all(parts)


async def test_partition_by_suffix(admin, nc, stream):
    """``subject.N`` reaches partition N, whose acks say so."""
    name = stream(partitions=3)
    for number in (0, 1, 2):
        subject = f"{name}.x.{number}" if number else f"{name}.x"
        await bound(nc, subject)
        reply = await nc.request(subject, b"%d" % number)
        ack = json.loads(reply.data)
        assert (ack["seq"], ack.get("partition", 0)) == (1, number)
        assert [row["value"] for row in rows(admin, name, partition=number)] == [b"%d" % number]


async def test_partition_by_key(admin, nc, stream):
    """Records of one key share a partition and keep their order."""
    name = stream(partitions=4, partition_by="key")
    await bound(nc, f"{name}.x")
    js = nc.jetstream()
    for number in range(40):
        key = f"k{number % 5}"
        await js.publish(f"{name}.x", b"%d" % number, headers={"Strandline-Key": key})
    found = rows(admin, name)
    assert len(found) == 40
    for key in range(5):
        mine = [row for row in found if row["key"] == b"k%d" % key]
        assert len({row["partition"] for row in mine}) == 1
        assert [int(row["value"]) for row in mine] == list(range(key, 40, 5))
    assert all(row["headers"] in (None, []) for row in found)


async def test_wildcard_stream_partitions_by_subject(admin, nc, stream):
    """Each subject of a wildcard stream stays in one partition."""
    name = stream(subject="flights.*.*", partitions=3)
    await bound(nc, "flights.a.b")
    js = nc.jetstream()
    for number in range(30):
        await js.publish(f"flights.JFK.{number % 6}", b"%d" % number)
    found = rows(admin, name)
    homes = {(row["subject"], row["partition"]) for row in found}
    assert len(homes) == 6
    assert len({partition for _, partition in homes}) > 1


async def test_tombstone(admin, nc, stream):
    """The tombstone header stores a null value."""
    name = stream()
    await bound(nc, f"{name}.x")
    headers = {"Strandline-Key": "k", "Strandline-Tombstone": "1"}
    await nc.jetstream().publish(f"{name}.x", b"", headers=headers)
    (row,) = rows(admin, name)
    assert (row["key"], row["value"]) == (b"k", None)


async def test_liftbridge_envelope(admin, nc, stream, flushed):
    """A Liftbridge client's raw publish: key, value and headers stored, ack on the ack inbox."""
    name = stream()
    await bound(nc, f"{name}.x")
    inbox = nc.new_inbox()
    acks = await nc.subscribe(inbox)
    await flushed(nc)
    message = EnvelopeMessage(
        key=b"k", value=b"v", headers=[("h", b"1")], ack_inbox=inbox, correlation_id="c"
    )
    await nc.publish(f"{name}.x", encode_message(message))
    ack = decode_ack((await acks.next_msg(5)).data)
    assert (ack.stream, ack.offset, ack.correlation_id, ack.error) == (name, 0, "c", AckError.OK)
    assert (ack.partition_subject, ack.message_subject) == (f"{name}.x", f"{name}.x")
    assert 0 < ack.reception_timestamp_ns <= ack.commit_timestamp_ns
    (row,) = rows(admin, name)
    assert (row["key"], row["value"], row["headers"]) == (b"k", b"v", [("h", b"1")])


async def test_invalid_envelope_is_recorded_verbatim(admin, nc, stream):
    """Bytes that only begin like an envelope are a value like any other."""
    name = stream()
    await bound(nc, f"{name}.x")
    payload = bytes.fromhex("b90e43b400ff0000")
    await nc.jetstream().publish(f"{name}.x", payload)
    assert [row["value"] for row in rows(admin, name)] == [payload]


async def test_stream_without_pub_ack_leaves_the_reply_to_the_application(
    admin, server, stream, flushed
):
    """With ``pub_ack`` off, a request through nats-server is answered by the application alone."""
    name = stream(pub_ack=False)
    nc = await nats.connect(server.nats_url)

    async def respond(message):
        await message.respond(b"from the application")

    await nc.subscribe(f"{name}.x", cb=respond)
    await flushed(nc)
    reply = await nc.request(f"{name}.x", b"question")
    assert reply.data == b"from the application"
    await nc.close()
    async with asyncio.timeout(60):
        while not (found := rows(admin, name)):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    assert [row["value"] for row in found] == [b"question"]


async def test_deleted_stream_has_no_responders(admin, nc, stream):
    """After a stream is deleted, its subject has no responder."""
    name = stream()
    await bound(nc, f"{name}.x")
    admin.delete_stream(name)
    async with asyncio.timeout(60):
        while await is_answered(nc, f"{name}.x"):
            pass
    admin.create_stream(name, subject=f"{name}.x")


async def is_answered(nc, subject):
    """Whether anybody is behind a subject."""
    try:
        await nc.request(subject, b"x", timeout=1)
    except nats.errors.NoRespondersError:
        return False
    return True

"""Pull consumers over the JetStream API; most tests ask nats-server's JetStream the same."""

import asyncio
import json
import time

import nats.errors
import pytest
from nats.js.api import ConsumerConfig

import strandline
from strandline.testing.server import Server

from .conftest import connected, ended_by_its_group, floor_of, shape, until, used_up

NS = 1_000_000_000


@pytest.fixture
async def filled(stream):
    """A stream with nine messages, alternately on two subjects."""
    for number in range(1, 10):
        subject = stream.subject("odd" if number % 2 else "even")
        await stream.js.publish(subject, b"%d" % number, headers={"number": str(number)})
    return stream


def data(messages):
    return [shape(each) for each in messages]


async def test_fetching_and_acknowledging(filled):
    """Subjects, headers and metadata are the messages' own; acknowledged is done."""
    sub = await filled.js.pull_subscribe(filled.subject(">"), "d", stream=filled.name)
    messages = await sub.fetch(4, timeout=5)
    assert [each.data for each in messages] == [b"1", b"2", b"3", b"4"]
    second = messages[1]
    assert (second.subject, second.headers) == (filled.subject("even"), {"number": "2"})
    metadata = second.metadata
    assert (metadata.sequence.stream, metadata.sequence.consumer) == (2, 2)
    assert (metadata.num_delivered, metadata.num_pending) == (1, 7)
    for each in messages:
        await each.ack_sync()
    info = await sub.consumer_info()
    assert (info.ack_floor.stream_seq, info.ack_floor.consumer_seq) == (4, 4)
    assert (info.num_ack_pending, info.num_pending) == (0, 5)
    rest = await sub.fetch(9, timeout=2)
    assert [each.data for each in rest] == [b"5", b"6", b"7", b"8", b"9"]
    with pytest.raises(nats.errors.TimeoutError):
        await sub.fetch(1, timeout=0.5)


async def test_every_kind_of_acknowledgement(filled):
    """Not now, later, never, still at work, done."""
    config = ConsumerConfig(ack_wait=30)
    sub = await filled.js.pull_subscribe("", "d", stream=filled.name, config=config)
    first = await sub.fetch(5, timeout=5)
    await first[0].nak()
    await first[1].nak(delay=0.5)
    await first[2].term()
    await first[3].in_progress()
    await first[3].ack_sync()
    await first[4].ack_sync()
    [again] = await sub.fetch(1, timeout=5)
    assert (again.data, again.metadata.num_delivered) == (b"1", 2)
    assert again.metadata.sequence.consumer == 6
    began = time.monotonic()
    seen = []
    while b"2" not in seen:
        found = await sub.fetch(1, timeout=5)
        seen += [each.data for each in found]
        for each in found:
            await each.ack_sync()
    assert time.monotonic() - began < 5
    assert b"3" not in seen


async def test_what_is_not_acknowledged_comes_again(ask, filled):
    """After ``ack_wait``; as often as ``max_deliver`` says."""
    name = filled.name
    config = {"durable_name": "m", "ack_wait": NS // 5, "max_deliver": 2, "max_ack_pending": 2}
    await ask.consumer(name, "m", **config)
    body = {"batch": 4, "expires": NS}
    found = await ask.pull(name, "m", body, seconds=1.5)
    assert data(found) == ["1", "2", "1", "2"]
    counts = [each.reply.split(".")[4:7] for each in found]
    assert counts == [["1", "1", "1"], ["1", "2", "2"], ["2", "1", "3"], ["2", "2", "4"]]
    await asyncio.sleep(0.3)
    info = await ask(f"CONSUMER.INFO.{name}.m")
    assert info["delivered"]["consumer_seq"] == 4


async def test_the_floor_stays_when_all_deliveries_are_used_up(ask, filled):
    """Until the last pending message is acknowledged."""
    delivered = await used_up(ask, filled.name, 9)
    for each, left in zip(delivered[-2:], (8, 7), strict=True):
        await ask.nc.request(each.reply, b"+ACK")
        info = await ask(f"CONSUMER.INFO.{filled.name}.u")
        assert (info["num_redelivered"], floor_of(info)) == (left, (0, 0))
    for number in range(2):
        await ask.nc.request(filled.subject("odd"), b"new %d" % number)
    found = await ask.pull(filled.name, "u", 2)
    places = []
    for each in reversed(found):
        await ask.nc.request(each.reply, b"+ACK")
        places.append(floor_of(await ask(f"CONSUMER.INFO.{filled.name}.u")))
    assert places == [(0, 0), (20, 11)]


async def test_backoff_spreads_redeliveries(ask, filled):
    """Each delivery waits longer."""
    config = {"backoff": [NS // 10, NS], "max_deliver": 3, "max_ack_pending": 1}
    info = await ask.consumer(filled.name, "b", durable_name="b", **config)
    assert info["config"]["ack_wait"] == NS // 10
    began = time.monotonic()
    body = {"batch": 3, "expires": 3 * NS}
    found = await ask.pull(filled.name, "b", body, seconds=2)
    assert data(found)[:3] == ["1", "1", "1"]
    assert 1 < time.monotonic() - began < 8


async def test_acknowledging_all_before(ask, filled):
    """One acknowledgement settles everything up to its message."""
    await ask.consumer(filled.name, "a", ack_policy="all", durable_name="a")
    found = await ask.pull(filled.name, "a", {"batch": 4, "no_wait": True}, seconds=0.5)
    await ask.nc.request(found[2].reply, b"+ACK", timeout=5)
    info = await ask(f"CONSUMER.INFO.{filled.name}.a")
    assert info["ack_floor"] == {"consumer_seq": 3, "stream_seq": 3} | {
        key: value for key, value in info["ack_floor"].items() if key == "last_active"
    }
    assert info["num_ack_pending"] == 1


async def test_without_acknowledgements(ask, filled):
    """Delivered is done."""
    await ask.consumer(filled.name, "n", ack_policy="none", durable_name="n")
    found = await ask.pull(filled.name, "n", {"batch": 3, "no_wait": True}, seconds=0.5)
    assert data(found) == ["1", "2", "3"]
    info = await ask(f"CONSUMER.INFO.{filled.name}.n")
    assert (info["ack_floor"]["stream_seq"], info["num_ack_pending"]) == (3, 0)
    assert info["num_pending"] == 6


async def test_how_a_pull_ends(ask, filled):
    """Each with the status and the headers that clients look at."""
    name = filled.name
    await ask.consumer(name, "e", durable_name="e")

    async def pull(body, seconds=0.7):
        return data(await ask.pull(name, "e", body, seconds=seconds))

    assert await pull(b"") == ["1"]
    assert await pull(b"2") == ["2", "3"]
    assert await pull({"batch": 1, "max_bytes": 3, "expires": NS // 3}) == [
        ("409", "Message Size Exceeds MaxBytes", "1", "3")
    ]
    [message, (code, text, left, size)] = await pull(
        {"batch": 1, "max_bytes": 1000, "expires": NS // 3}
    )
    assert (message, code, text, left) == ("4", "409", "Batch Completed", "0")
    assert 800 < int(size) < 1000
    assert await pull({"batch": 9, "no_wait": True}) == [
        "5",
        "6",
        "7",
        "8",
        "9",
        ("404", "No Messages"),
    ]
    assert await pull({"batch": 9, "no_wait": True}) == [("404", "No Messages")]
    timed_out = ("408", "Request Timeout", "5", "0")
    assert await pull({"batch": 5, "expires": NS // 3}) == [timed_out]
    assert await pull({"batch": 5, "expires": NS // 3, "no_wait": True}) == [timed_out]
    beats = {"batch": 5, "expires": 4 * NS // 10, "idle_heartbeat": 15 * NS // 100}
    found = await pull(beats)
    assert found == [("100", "Idle Heartbeat")] * 2 + [timed_out]
    too_large = {"batch": 5, "expires": NS // 5, "idle_heartbeat": 15 * NS // 100}
    assert await pull(too_large) == [("400", "Bad Request - heartbeat value too large")]
    [(code, text)] = await pull(b"{x")
    assert code == "400"
    assert text.startswith("Bad Request - ")
    [(code, text)] = [shape(each) for each in await level_pull(ask, name, "e")]
    assert (code, text) == ("412", "Required Api Level")
    [gone] = await ask.pull(name, "nobody", seconds=0.5)
    assert gone.headers["Status"] == "503"


async def level_pull(ask, stream, consumer):
    """A pull that needs a newer API."""
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    headers = {"Nats-Required-Api-Level": "99"}
    return [await ask.nc.request(subject, b"", headers=headers, timeout=5)]


async def test_heartbeats_say_how_far_it_is(ask, filled):
    """The last delivery, in both counts."""
    await ask.consumer(filled.name, "h", durable_name="h")
    await ask.pull(filled.name, "h", {"batch": 9, "no_wait": True}, seconds=0.3)
    body = {"batch": 1, "expires": NS // 2, "idle_heartbeat": NS // 5}
    beat, *_ = await ask.pull(filled.name, "h", body, seconds=1)
    headers = beat.headers
    assert (headers["Nats-Last-Consumer"], headers["Nats-Last-Stream"]) == ("9", "9")


async def test_limits_of_pulls(ask, filled):
    """A consumer may limit its pulls."""
    config = {"max_batch": 2, "max_expires": NS, "max_bytes": 100}
    await ask.consumer(filled.name, "l", durable_name="l", **config)

    async def pull(body):
        return data(await ask.pull(filled.name, "l", body, seconds=0.5))

    assert await pull({"batch": 3}) == [("409", "Exceeded MaxRequestBatch of 2")]
    assert await pull({"expires": 2 * NS}) == [("409", "Exceeded MaxRequestExpires of 1s")]
    body = {"max_bytes": 101, "expires": NS}
    assert await pull(body) == [("409", "Exceeded MaxRequestMaxBytes of 100")]


async def test_filters_select_subjects(ask, filled):
    """One or several; other messages are neither delivered nor counted."""
    name = filled.name
    info = await ask.consumer(name, "f", filter_subject=filled.subject("even"))
    assert info["num_pending"] == 4
    found = await ask.pull(name, "f", {"batch": 9, "no_wait": True}, seconds=0.5)
    assert data(found) == ["2", "4", "6", "8", ("404", "No Messages")]
    assert [each.reply.split(".")[-1] for each in found[:4]] == ["3", "2", "1", "0"]
    both = [filled.subject("even"), filled.subject("odd")]
    info = await ask.consumer(name, "g", filter_subjects=both)
    assert info["num_pending"] == 9
    path = f"CONSUMER.CREATE.{name}.x.{filled.subject('odd')}"
    config = {"name": "x", "ack_policy": "none", "filter_subject": filled.subject("odd")}
    info = await ask(path, {"stream_name": name, "config": config})
    assert (info["name"], info["num_pending"]) == ("x", 5)
    info = await ask.consumer(name, "z", filter_subject="elsewhere")
    assert info["num_pending"] == 0


@pytest.mark.parametrize(
    ("config", "first"),
    [
        ({"deliver_policy": "all"}, "1"),
        ({"deliver_policy": "last"}, "9"),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 4}, "4"),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2001-01-01T00:00:00Z"}, "1"),
        ({"deliver_policy": "new"}, ("404", "No Messages")),
    ],
)
async def test_where_a_consumer_begins(ask, filled, config, first):
    """At every start of JetStream except the last of each subject."""
    await ask.consumer(filled.name, "s", **config)
    found = await ask.pull(filled.name, "s", {"batch": 1, "no_wait": True}, seconds=0.5)
    assert data(found)[0] == first


async def test_waiting_pulls_get_what_is_published(ask, filled):
    """Also one without an end."""
    await ask.consumer(filled.name, "w", deliver_policy="new")
    waiting = asyncio.create_task(ask.pull(filled.name, "w", {"expires": 3 * NS}, seconds=2))
    await asyncio.sleep(0.5)
    await filled.js.publish(filled.subject("x"), b"new")
    assert data(await waiting) == ["new"]


async def test_headers_only(ask, filled):
    """The payload is omitted, and its size is a header."""
    await ask.consumer(filled.name, "o", headers_only=True)
    [found] = await ask.pull(filled.name, "o", seconds=0.5)
    assert found.data == b""
    assert found.headers["Nats-Msg-Size"] == "1"
    assert found.headers["number"] == "1"


async def test_acknowledge_and_pull_in_one(ask, filled):
    """``+NXT`` asks for the next message at the acknowledgement's reply subject."""
    await ask.consumer(filled.name, "x", durable_name="x")
    [first] = await ask.pull(filled.name, "x", seconds=0.5)
    inbox = ask.nc.new_inbox()
    receiving = await ask.nc.subscribe(inbox)
    await ask.nc.publish(first.reply, b"+NXT", reply=inbox)
    assert (await receiving.next_msg(timeout=5)).data == b"2"
    info = await ask(f"CONSUMER.INFO.{filled.name}.x")
    assert info["ack_floor"]["stream_seq"] == 1


async def test_double_acknowledgements_are_answered(ask, filled):
    """With nothing in them: also repeats and junk."""
    await ask.consumer(filled.name, "y", durable_name="y")
    [first] = await ask.pull(filled.name, "y", seconds=0.5)
    for body in (b"+ACK", b"+ACK", b"", b"-NAK", b"junk"):
        assert (await ask.nc.request(first.reply, body, timeout=5)).data == b""
    info = await ask(f"CONSUMER.INFO.{filled.name}.y")
    assert info["num_ack_pending"] == 0


async def test_consumers_are_listed_shown_and_deleted(ask, filled):
    """The pulls of a deleted one end."""
    name = filled.name
    for number in range(3):
        await ask.consumer(name, f"c{number}", durable_name=f"c{number}", deliver_policy="new")
    assert (await ask(f"CONSUMER.NAMES.{name}"))["consumers"] == ["c0", "c1", "c2"]
    listed = await ask(f"CONSUMER.LIST.{name}", {"offset": 1})
    assert [each["name"] for each in listed["consumers"]] == ["c1", "c2"]
    assert (listed["total"], listed["offset"], listed["limit"]) == (3, 1, 256)
    assert (await ask(f"STREAM.INFO.{name}"))["state"]["consumer_count"] == 3
    waiting = asyncio.create_task(ask.pull(name, "c1", {"expires": 5 * NS}, seconds=2))
    await asyncio.sleep(0.3)
    assert (await ask(f"CONSUMER.DELETE.{name}.c1"))["success"] is True
    [(code, text, *_)] = data(await waiting)
    assert (code, text) == ("409", "Consumer Deleted")
    missing = (404, 10014, "consumer not found")
    for operation in ("INFO", "DELETE"):
        assert await ask.error(f"CONSUMER.{operation}.{name}.c1") == missing


async def test_info_has_every_field(ask, filled):
    """Those without which some clients fail, and the settings with their defaults."""
    info = await ask.consumer(filled.name, "i", durable_name="i")
    fields = (
        "stream_name name created config delivered ack_floor num_ack_pending num_redelivered "
        "num_waiting num_pending ts"
    )
    assert set(fields.split()) <= set(info)
    config = {key: value for key, value in info["config"].items() if key != "metadata"}
    assert config == {
        "durable_name": "i",
        "name": "i",
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": 30 * NS,
        "max_deliver": -1,
        "replay_policy": "instant",
        "max_waiting": 512,
        "max_ack_pending": 1000,
        "num_replicas": 0,
    }


async def test_info_says_when_it_was_last_active(ask, filled):
    """A delivery; and an acknowledgement that counts, so none that asks for more time."""
    times = []

    async def times_of(name):
        info = await ask(f"CONSUMER.INFO.{filled.name}.{name}")
        times.append((info["delivered"].get("last_active"), info["ack_floor"].get("last_active")))
        return times[-1]

    await ask.consumer(filled.name, "a", durable_name="a")
    assert await times_of("a") == (None, None)
    first, second = await ask.pull(filled.name, "a", 2)
    delivered, acked = await times_of("a")
    assert delivered.endswith("Z")
    assert acked is None
    await ask.nc.request(first.reply, b"+WPI")
    assert (await times_of("a"))[1] is None
    await ask.nc.request(second.reply, b"+ACK")
    acked = (await times_of("a"))[1]
    assert acked.endswith("Z")
    await ask.nc.request(first.reply, b"+TERM")
    last = (await times_of("a"))[1]
    assert last != acked
    await ask.nc.request(first.reply, b"+TERM")
    await ask.pull(filled.name, "a", 1)
    assert (await times_of("a"))[0] != delivered
    await ask.consumer(filled.name, "n", ack_policy="none")
    await ask.pull(filled.name, "n", 1)
    delivered, acked = await times_of("n")
    assert (bool(delivered), acked) == (True, None)


async def test_making_a_consumer_again(ask, filled):
    """The same again is its info; an update changes some settings and not others."""
    name = filled.name
    made = await ask.consumer(name, "u", durable_name="u")
    again = await ask.consumer(name, "u", durable_name="u", max_deliver=0, ack_wait=0)
    assert again["created"] == made["created"]
    path = f"CONSUMER.CREATE.{name}.u"

    def body(action, **config):
        base = {"name": "u", "durable_name": "u", "ack_policy": "explicit"}
        return {"stream_name": name, "action": action, "config": {**base, **config}}

    assert (await ask(path, body("update", max_deliver=7)))["config"]["max_deliver"] == 7
    fixed = (500, 10012, "ack policy can not be updated")
    assert await ask.error(path, body("", ack_policy="none")) == fixed
    exists = (400, 10148, "consumer already exists")
    assert await ask.error(path, body("create", max_deliver=9)) == exists
    missing = (400, 10149, "consumer does not exist")
    other = f"CONSUMER.CREATE.{name}.v"
    config = {"name": "v", "ack_policy": "explicit"}
    assert await ask.error(other, {"stream_name": name, "action": "update", "config": config}) == (
        missing
    )


async def test_impossible_consumers_are_rejected_with_the_same_numbers(ask, filled):
    """Code, number and text."""
    name = filled.name
    path = f"CONSUMER.CREATE.{name}.p"

    async def refused(path=path, stream=name, **config):
        body = {"stream_name": stream, "config": {"name": "p", **config}}
        return await ask.error(path, body)

    mismatch = (400, 10056, "stream name in subject does not match request")
    assert await refused(stream="other") == mismatch
    assert await refused(f"CONSUMER.CREATE.{name}.p.a.b", filter_subject="a.c") == (
        400,
        10131,
        "Consumer create request did not match filtered subject from create subject",
    )
    start = "consumer delivery policy is deliver by start sequence, but optional start sequence"
    assert await refused(deliver_policy="by_start_sequence") == (400, 10094, f"{start} is not set")
    last = "consumer delivery policy is deliver last per subject, but optional filter subject"
    assert await refused(deliver_policy="last_per_subject") == (400, 10094, f"{last} is not set")
    heartbeat = "consumer idle heartbeat requires a push based consumer"
    assert await refused(idle_heartbeat=NS) == (400, 10088, heartbeat)
    both = "consumer cannot have both FilterSubject and FilterSubjects specified"
    assert await refused(filter_subject="a", filter_subjects=["b"]) == (400, 10136, both)
    overlap = (400, 10138, "consumer subject filters cannot overlap")
    assert await refused(filter_subjects=["a.*", "a.b"]) == overlap
    empty = (400, 10139, "consumer filter in FilterSubjects cannot be empty")
    assert await refused(filter_subjects=["a", ""]) == empty
    assert (await refused(backoff=[1, 2, 3], max_deliver=2, ack_policy="explicit"))[1] == 10116
    assert (await refused(deliver_policy="foo"))[:2] == (400, 10025)
    negative = (400, 10133, "replicas count cannot be negative")
    assert await refused(num_replicas=-3) == negative
    alone = (500, 10074, "replicas > 1 not supported in non-clustered mode")
    assert await refused(num_replicas=5) == alone
    assert (await refused(max_expires=NS // 10_000))[1] == 10115
    long = "x" * 256
    longest = (400, 10102, "consumer name is too long, maximum allowed is 255")
    durable = f"CONSUMER.DURABLE.CREATE.{name}.{long}"
    create = f"CONSUMER.CREATE.{name}.{long}"
    for operation in (create, durable):
        assert await refused(operation, name=long, durable_name=long) == longest
    separators = (400, 10127, "Consumer name can not contain path separators")
    assert await refused(f"CONSUMER.CREATE.{name}.a/b", name="a/b") == separators
    missing = (404, 10059, "stream not found")
    assert await refused("CONSUMER.CREATE.nope.p", stream="nope") == missing
    assert await ask.error("CONSUMER.NAMES.nope") == missing


async def test_answers_show_the_settings_in_force(ask, filled):
    """Not the number that was asked for, where it means that there is no limit."""
    made = await ask.consumer(filled.name, "f", max_deliver=-7, num_replicas=1)
    assert (made["config"]["max_deliver"], made["config"]["num_replicas"]) == (-1, 1)


async def test_old_forms_of_creating(ask, filled):
    """A durable by its own subject; an ephemeral that the server names."""
    body = {"stream_name": filled.name, "config": {"durable_name": "d", "ack_policy": "all"}}
    info = await ask(f"CONSUMER.DURABLE.CREATE.{filled.name}.d", body)
    assert (info["name"], info["config"]["durable_name"]) == ("d", "d")
    body = {"stream_name": filled.name, "config": {"ack_policy": "none"}}
    info = await ask(f"CONSUMER.CREATE.{filled.name}", body)
    assert len(info["name"]) == 8
    assert info["config"]["inactive_threshold"] == 5 * NS


# Ours alone


async def test_an_unused_consumer_ends(ask_us):
    """After its threshold without a pull; a waiting pull keeps it."""
    await ask_us("STREAM.CREATE.unused", {"name": "unused", "subjects": ["unused"]})
    await ask_us.consumer("unused", "q", inactive_threshold=2 * NS)
    body = {"expires": 4 * NS, "batch": 99}
    waiting = asyncio.create_task(ask_us.pull("unused", "q", body, seconds=5))
    await asyncio.sleep(3)
    assert (await ask_us("CONSUMER.INFO.unused.q"))["name"] == "q"

    async def is_gone():
        return "error" in await ask_us("CONSUMER.INFO.unused.q")

    await waiting
    await until(is_gone)
    await ask_us("STREAM.DELETE.unused")


async def test_durable_consumers_survive_a_restart(tmp_path):
    """Position, pending messages and their counts; the group shows how far it is."""
    with Server(nats=True, data_dir=tmp_path) as url:
        client = await connected(url.nats_url)
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        for number in range(1, 7):
            await js.publish("s", b"%d" % number)
        config = ConsumerConfig(ack_wait=0.5)
        sub = await js.pull_subscribe("s", "d", stream="S", config=config)
        messages = await sub.fetch(4, timeout=5)
        await messages[0].ack_sync()
        await messages[2].ack_sync()
        await client.close()
        with strandline.connect(url.flight) as admin:
            assert admin.groups.list()
    with Server(nats=True, data_dir=tmp_path) as url:
        client = await connected(url.nats_url)
        js = client.jetstream()
        info = await js.consumer_info("S", "d")
        assert (info.delivered.stream_seq, info.ack_floor.stream_seq) == (4, 1)
        assert (info.num_ack_pending, info.num_pending) == (2, 2)
        sub = await js.pull_subscribe_bind("d", stream="S")
        seen = {}
        while len(seen) < 4:
            for each in await sub.fetch(4, timeout=10):
                seen[each.data] = each.metadata.num_delivered
                await each.ack_sync()
        assert seen == {b"2": 2, b"4": 2, b"5": 1, b"6": 1}
        await client.close()


async def test_a_consumers_group_belongs_to_it(ours, ask_us):
    """Members through Flight are rejected; deleting the group deletes the consumer."""
    await ask_us("STREAM.CREATE.owned", {"name": "owned", "subjects": ["owned"]})
    await ask_us.consumer("owned", "d", durable_name="d")
    with strandline.connect(ours.flight) as admin:
        with (
            pytest.raises(strandline.errors.GroupInUseError),
            admin.consumer("js/owned/d", "owned"),
        ):
            pass
        with admin.consumer("js/owned/e", "owned"):
            refused = await ask_us.consumer("owned", "e", durable_name="e")
            assert refused["error"]["err_code"] == 10012
        await ended_by_its_group(ask_us, admin, "owned", "d")
    await ask_us("STREAM.DELETE.owned")


async def test_a_group_of_members_does_not_delete_a_consumer_of_its_name(ours, ask_us):
    """One that is not durable has no group."""
    await ask_us("STREAM.CREATE.apart", {"name": "apart", "subjects": ["apart"]})
    await ask_us.consumer("apart", "c", inactive_threshold=60 * NS)
    with strandline.connect(ours.flight) as admin:
        admin.groups.commit("js/apart/c", {("apart", 0): 0})
        admin.groups.delete("js/apart/c")
    assert (await ask_us("CONSUMER.NAMES.apart"))["consumers"] == ["c"]
    await ask_us("STREAM.DELETE.apart")


async def test_a_deleted_streams_consumers_are_forgotten(ours, ask_us):
    """A stream of the same name begins without them."""
    for _ in range(2):
        await ask_us("STREAM.CREATE.again", {"name": "again", "subjects": ["again"]})
        assert (await ask_us("CONSUMER.NAMES.again"))["consumers"] == []
        await ask_us.consumer("again", "d", durable_name="d")
        await ask_us("STREAM.DELETE.again")
    with strandline.connect(ours.flight) as admin:
        admin.create_stream("again")
        assert (await ask_us("CONSUMER.NAMES.again"))["consumers"] == []
        await ask_us.consumer("again", "d", durable_name="d")
        admin.delete_stream("again")
        admin.create_stream("again")
        assert (await ask_us("CONSUMER.NAMES.again"))["consumers"] == []
        admin.delete_stream("again")


async def test_what_is_not_built_is_rejected(ask_us):
    """By its name."""
    await ask_us("STREAM.CREATE.less", {"name": "less", "subjects": ["less"]})
    settings = {
        "priority_policy": "overflow",
        "sample_freq": "100%",
    }
    for name, value in settings.items():
        refused = await ask_us.consumer("less", "c", **{name: value})
        assert refused["error"]["err_code"] == 10012, name
        assert name in refused["error"]["description"]
    for operation in ("UNPIN", "RESET"):
        assert (await ask_us.error(f"CONSUMER.{operation}.less.c"))[1] == 10039
    await ask_us("STREAM.DELETE.less")


async def test_messages_of_a_closed_inbox_are_not_lost(ask_us):
    """A client that goes away while its pull waits takes no message with it."""
    await ask_us("STREAM.CREATE.closed", {"name": "closed", "subjects": ["closed"]})
    await ask_us.consumer("closed", "d", durable_name="d")
    client = await connected(ask_us.nc.connected_url.geturl())
    inbox = client.new_inbox()
    await client.subscribe(inbox)
    body = json.dumps({"batch": 5, "expires": 60 * NS}).encode()
    await client.publish("$JS.API.CONSUMER.MSG.NEXT.closed.d", body, reply=inbox)
    await client.flush()

    async def waiting():
        return (await ask_us("CONSUMER.INFO.closed.d"))["num_waiting"]

    async def is_waiting():
        return await waiting() == 1

    async def is_gone():
        return await waiting() == 0

    await until(is_waiting)
    await client.close()
    await until(is_gone)
    await ask_us.nc.request("closed", b"x")
    assert data(await ask_us.pull("closed", "d", seconds=1)) == ["x"]
    await ask_us("STREAM.DELETE.closed")


async def test_purged_messages_are_not_delivered_again(ask_us):
    """Pending messages that were purged count as done."""
    await ask_us("STREAM.CREATE.purged", {"name": "purged", "subjects": ["purged"]})
    for number in range(4):
        await ask_us.nc.request("purged", b"%d" % number)
    await ask_us.consumer("purged", "d", durable_name="d", ack_wait=NS // 5)
    assert len(await ask_us.pull("purged", "d", {"batch": 2}, seconds=0.3)) == 2
    await ask_us("STREAM.PURGE.purged", {"seq": 4})
    await asyncio.sleep(0.3)
    assert data(await ask_us.pull("purged", "d", seconds=0.5)) == ["3"]
    info = await ask_us("CONSUMER.INFO.purged.d")
    assert (info["num_ack_pending"], info["delivered"]["stream_seq"]) == (1, 4)
    await ask_us("STREAM.DELETE.purged")


async def test_many_messages_through_many_fetches(ours, our_nc):
    """Thousands, in order, each once, with explicit acknowledgements."""
    js = our_nc.jetstream()
    await js.add_stream(name="bulk", subjects=["bulk"])
    with strandline.connect(ours.flight) as admin, admin.producer("bulk") as producer:
        for number in range(5_000):
            producer.append(b"%d" % number)
    sub = await js.pull_subscribe("bulk", "d", stream="bulk")
    seen = []
    while len(seen) < 5_000:
        for each in await sub.fetch(500, timeout=10):
            seen.append(int(each.data))
            await each.ack()
    assert seen == list(range(5_000))

    async def is_done():
        return (await sub.consumer_info()).ack_floor.stream_seq == 5_000

    await until(is_done)
    await js.delete_stream("bulk")


async def test_any_acknowledgement_and_pull_is_survived(ask_us):
    """Any bytes sent there leave the consumer working."""
    await ask_us("STREAM.CREATE.junk", {"name": "junk", "subjects": ["junk"]})
    await ask_us.consumer("junk", "d", durable_name="d")
    await ask_us.nc.request("junk", b"x")
    subjects = ["1.1.1.1.1", "x.1.1.1.1", "1.1", "9" * 30 + ".1.1.1.1", "-1.1.1.1.1", "1.1.1.1.1.1"]
    bodies = [b"", b"+NXT {", b"+NXT 99999999999", b"-NAK {", b'-NAK {"delay":-5}', b"\xff" * 50]
    for subject in subjects:
        for body in bodies:
            await ask_us.nc.publish(f"$JS.ACK.junk.d.{subject}", body)
            await ask_us.nc.publish(f"$JS.ACK.junk.d.{subject}", body, reply="_INBOX.nobody")
    for body in ({"batch": -1}, {"expires": 1 << 80}, {"batch": "x"}, {"max_bytes": -7}, []):
        await ask_us.pull("junk", "d", json.dumps(body).encode(), seconds=0.05)
    info = await ask_us("CONSUMER.INFO.junk.d")
    assert info["name"] == "d"
    await ask_us("STREAM.DELETE.junk")

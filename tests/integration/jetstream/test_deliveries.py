"""What consumers deliver, and when: last per subject, original replay, rates, pauses.

Most tests ask nats-server's JetStream the same.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from nats.js.api import ConsumerConfig

from strandline.testing.server import Server

from .conftest import Asker, connected, shape, until
from .test_push_consumers import Listener, status_of, texts

NS = 1_000_000_000


def data(messages):
    return [each.data.decode() for each in messages if not status_of(each)]


def pending(message):
    return int(message.reply.split(".")[8])


def later(seconds):
    """A time from now, as JetStream writes it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


@pytest.fixture
async def keyed(stream):
    """A stream with several records on each of four subjects, one of them of another kind."""
    for number, key in enumerate("abcabcaxcb", 1):
        await stream.js.publish(stream.subject(f"k.{key}"), b"%d" % number)
    await stream.js.publish(stream.subject("other"), b"11")
    return stream


async def test_the_last_record_of_each_subject(ask, keyed):
    """In the order of the log, then everything that comes; the counts are exact."""
    config = {"deliver_policy": "last_per_subject", "filter_subject": keyed.subject("k.*")}
    info = await ask.consumer(keyed.name, "l", **config)
    assert info["num_pending"] == 4
    found = await ask.pull(keyed.name, "l", {"batch": 2, "no_wait": True}, seconds=0.5)
    assert data(found) == ["7", "8"]
    assert [pending(each) for each in found] == [3, 2]
    for key in "ax":
        await keyed.js.publish(keyed.subject(f"k.{key}"), b"late " + key.encode())
    await keyed.js.publish(keyed.subject("other"), b"not this")
    assert (await ask(f"CONSUMER.INFO.{keyed.name}.l"))["num_pending"] == 4
    found = await ask.pull(keyed.name, "l", {"batch": 9, "no_wait": True}, seconds=0.5)
    assert data(found) == ["9", "10", "late a", "late x"]
    assert [pending(each) for each in found if not status_of(each)] == [3, 2, 1, 0]


async def test_the_last_record_of_several_filters(ask, keyed):
    """One each of whatever matches; with none there the next ones come."""
    subjects = [keyed.subject("k.b"), keyed.subject("other"), keyed.subject("nothing.>")]
    config = {"deliver_policy": "last_per_subject", "filter_subjects": subjects}
    await ask.consumer(keyed.name, "l", **config)
    found = await ask.pull(keyed.name, "l", {"batch": 9, "no_wait": True}, seconds=0.5)
    assert data(found) == ["10", "11"]
    config["filter_subjects"] = [keyed.subject("nothing.>")]
    info = await ask.consumer(keyed.name, "m", **config)
    assert info["num_pending"] == 0
    await keyed.js.publish(keyed.subject("nothing.x"), b"first")
    found = await ask.pull(keyed.name, "m", {"batch": 1, "no_wait": True}, seconds=0.5)
    assert data(found) == ["first"]


async def test_a_watch_begins_with_the_last_records(ask, keyed):
    """Pushed and ordered, as key-value watches do it, with headers only."""
    listener = Listener(ask.nc)
    await listener.start()
    config = {
        "deliver_subject": listener.subject,
        "deliver_policy": "last_per_subject",
        "filter_subject": keyed.subject("k.>"),
        "ack_policy": "none",
        "headers_only": True,
        "idle_heartbeat": 5 * NS,
        "flow_control": True,
        "mem_storage": True,
        "num_replicas": 1,
    }
    info = await ask.consumer(keyed.name, "w", **config)
    assert info["num_pending"] == 4
    await listener.until(lambda found: len(texts(found)) == 4)
    subjects = [each.subject.removeprefix(keyed.subject("k.")) for each in listener.found]
    assert subjects == ["a", "x", "c", "b"]
    assert all(each.headers["Nats-Msg-Size"] in "12" for each in listener.found)
    assert pending(listener.found[-1]) == 0
    await listener.stop()


async def test_the_last_records_need_a_filter(ask, keyed):
    """As JetStream says it."""
    body = {"stream_name": keyed.name, "config": {"deliver_policy": "last_per_subject"}}
    code, number, text = await ask.error(f"CONSUMER.CREATE.{keyed.name}.l", body)
    assert (code, number) == (400, 10094)
    assert text.endswith("but optional filter subject is not set")


async def test_original_replay(ask, stream):
    """With the pauses between the publishes; what is published later comes at once."""
    for number in range(3):
        await stream.js.publish(stream.subject("x"), b"%d" % number)
        await asyncio.sleep(0.6)
    info = await ask.consumer(stream.name, "o", replay_policy="original")
    assert info["config"]["replay_policy"] == "original"
    began, times = time.monotonic(), []
    inbox = ask.nc.new_inbox()

    async def note(_):
        times.append(time.monotonic() - began)

    await ask.nc.subscribe(inbox, cb=note)
    body = b'{"batch":9,"expires":5000000000}'
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.o"
    await ask.nc.publish(subject, body, reply=inbox)

    async def has(count):
        return len(times) >= count

    await until(lambda: has(3))
    assert times[1] - times[0] > 0.4
    assert times[2] - times[1] > 0.4
    await stream.js.publish(stream.subject("x"), b"new")
    await until(lambda: has(4))
    assert times[3] - times[2] < 5


async def test_a_rate_is_kept(ask, stream):
    """A burst of a megabyte comes at once, the rest as fast as is allowed."""
    payload = b"x" * 100_000
    for _ in range(30):
        await stream.js.publish(stream.subject("x"), payload)
    listener = Listener(ask.nc)
    config = {"deliver_subject": listener.subject, "rate_limit_bps": 8 << 20, "ack_policy": "none"}
    info = await ask.consumer(stream.name, "r", **config)
    assert info["config"]["rate_limit_bps"] == 8 << 20
    began = time.monotonic()
    await listener.start()
    await listener.until(lambda found: len(found) == 30)
    assert time.monotonic() - began > 1.5, "3 MB at 1 MiB a second, less a burst"
    await listener.stop()


async def test_a_paused_consumer_delivers_nothing(ask, stream):
    """Until its time, or until somebody lets it go on. Its pulls wait."""
    await stream.js.publish(stream.subject("x"), b"1")
    await ask.consumer(stream.name, "p", durable_name="p")
    path = f"CONSUMER.PAUSE.{stream.name}.p"
    paused = await ask(path, {"pause_until": later(60)})
    assert paused["paused"] is True
    assert 0 < paused["pause_remaining"] <= 60 * NS
    info = await ask(f"CONSUMER.INFO.{stream.name}.p")
    assert info["paused"] is True
    assert info["pause_remaining"] > 0
    assert info["config"]["pause_until"] == paused["pause_until"]
    found = await ask.pull(stream.name, "p", {"batch": 1, "expires": NS // 2}, seconds=0.8)
    assert [shape(each) for each in found] == [("408", "Request Timeout", "1", "0")]
    resumed = await ask(path)
    assert (resumed["paused"], resumed["pause_until"]) == (False, "0001-01-01T00:00:00Z")
    assert "paused" not in await ask(f"CONSUMER.INFO.{stream.name}.p")
    found = await ask.pull(stream.name, "p", {"batch": 1, "expires": 2 * NS}, seconds=0.8)
    assert data(found) == ["1"]
    missing = (404, 10014, "consumer not found")
    assert await ask.error(f"CONSUMER.PAUSE.{stream.name}.q", {}) == missing


async def test_a_pause_ends_by_itself(ask, stream):
    """A pull that waits gets the message then; heartbeats say meanwhile that it is served."""
    await stream.js.publish(stream.subject("x"), b"1")
    info = await ask.consumer(stream.name, "p", durable_name="p", pause_until=later(1.5))
    assert info["paused"] is True
    body = {"batch": 1, "expires": 10 * NS, "idle_heartbeat": NS // 4}
    found = await ask.pull(stream.name, "p", body, seconds=1.2)
    assert data(found) == ["1"]
    assert len([each for each in found if status_of(each) == "100"]) >= 3


# Ours alone


async def test_the_last_records_go_on_after_a_restart(tmp_path):
    """A durable consumer in the middle of them delivers the others, each once."""
    with Server(nats=True, data_dir=tmp_path) as url:
        client = await connected(url.nats_url)
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s.>"])
        for number in range(40):
            await js.publish(f"s.{number % 10}", b"%d" % number)
        config = {"deliver_policy": "last_per_subject", "filter_subject": "s.>"}
        await Asker(client).consumer("S", "d", durable_name="d", **config)
        for number in range(40, 45):
            await js.publish(f"s.{number % 10}", b"%d" % number)
        found = await Asker(client).pull("S", "d", {"batch": 4, "no_wait": True}, seconds=0.5)
        assert data(found) == ["30", "31", "32", "33"]
        for each in found:
            await client.request(each.reply, b"+ACK", timeout=5)
        until_then = later(1)
        await Asker(client)("CONSUMER.PAUSE.S.d", {"pause_until": until_then})
        await client.close()
    with Server(nats=True, data_dir=tmp_path) as url:
        client = await connected(url.nats_url)
        ask = Asker(client)
        info = await ask("CONSUMER.INFO.S.d")
        assert info["num_pending"] == 11
        assert info["config"]["pause_until"].startswith(until_then[:19])
        found = await ask.pull("S", "d", {"batch": 11, "expires": 9 * NS}, seconds=2)
        assert data(found) == [str(number) for number in range(34, 45)]
        await client.close()


async def test_subjects_that_are_far_apart(ours, our_nc):
    """The last records are found without delivering what is between them."""
    js = our_nc.jetstream()
    await js.add_stream(name="sparse", subjects=["sparse.>"])
    await js.publish("sparse.first", b"first")
    for _ in range(40):
        await js.publish("sparse.noise", b"x" * 50_000)
    await js.publish("sparse.last", b"last")
    config = ConsumerConfig(deliver_policy="last_per_subject", filter_subject="sparse.*")
    sub = await js.subscribe("sparse.*", config=config)
    found = [(await sub.next_msg(timeout=10)).subject for _ in range(3)]
    assert found == ["sparse.first", "sparse.noise", "sparse.last"]
    await js.delete_stream("sparse")


async def test_any_pause_is_answered(ask_us):
    """Whatever is sent there."""
    await ask_us("STREAM.CREATE.odd", {"name": "odd", "subjects": ["odd"]})
    await ask_us.consumer("odd", "c", durable_name="c")
    for body in (b"{", b"[]", {"pause_until": "soon"}, {"pause_until": 7}, b"\xff"):
        assert (await ask_us.error("CONSUMER.PAUSE.odd.c", body))[1] == 10025, body
    assert (await ask_us("CONSUMER.PAUSE.odd.c", {"pause_until": None}))["paused"] is False
    for text in ("9999-12-31T23:59:59Z", "0001-01-01T00:00:01Z", "0000-00-00T00:00:00Z"):
        await ask_us("CONSUMER.PAUSE.odd.c", {"pause_until": text})
        assert (await ask_us("CONSUMER.INFO.odd.c"))["name"] == "c"
    await ask_us("STREAM.DELETE.odd")

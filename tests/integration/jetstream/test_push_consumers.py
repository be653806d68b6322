"""Push consumers over the JetStream API; most tests ask nats-server's JetStream the same."""

import asyncio
import json

import nats
import nats.errors
import nats.js.errors as js_errors
import pytest
from nats.js.api import ConsumerConfig, DeliverPolicy

import strandline
from strandline.testing.server import Server

from .conftest import Asker, connected, shape, until

NS = 1_000_000_000
HEARTBEAT_NS = NS // 5


@pytest.fixture
async def filled(stream):
    """A stream with nine messages, alternately on two subjects."""
    for number in range(1, 10):
        subject = stream.subject("odd" if number % 2 else "even")
        await stream.js.publish(subject, b"%d" % number, headers={"number": str(number)})
    return stream


async def until_that(condition):
    """Wait for something to become so, which costs nothing to look at."""

    async def holds():
        return condition()

    await until(holds)


class Listener:
    """A subscription to a deliver subject that keeps what comes, in order."""

    def __init__(self, nc):
        self.nc = nc
        self.subject = nc.new_inbox()
        self.found = []
        self._sub = None

    async def start(self, queue=""):
        async def keep(message):
            self.found.append(message)

        self._sub = await self.nc.subscribe(self.subject, queue=queue, cb=keep)
        await self.nc.flush()

    async def stop(self):
        await self._sub.unsubscribe()
        await self.nc.flush()

    async def until(self, condition):
        await until_that(lambda: condition(self.found))


def status_of(message):
    return (message.headers or {}).get("Status", "")


def texts(messages):
    """The payloads of records among what came."""
    return [each.data.decode() for each in messages if not status_of(each)]


def statuses(messages, text):
    """What came with a status of this text."""
    return [each for each in messages if (each.headers or {}).get("Description") == text]


@pytest.fixture
async def listener(nc):
    return Listener(nc)


async def test_an_ordered_consumer_of_nats_py(filled):
    """What there is and what comes later, in order; the subject and headers are its own."""
    seen = []

    async def keep(message):
        seen.append((message.data, message.subject, message.headers["number"]))

    sub = await filled.js.subscribe(
        filled.subject(">"), cb=keep, ordered_consumer=True, idle_heartbeat=0.5
    )
    await filled.js.publish(filled.subject("late"), b"10", headers={"number": "10"})
    await until_that(lambda: len(seen) == 10)
    assert [data for data, *_ in seen] == [b"%d" % number for number in range(1, 11)]
    assert seen[1][1:] == (filled.subject("even"), "2")
    await sub.unsubscribe()


async def test_an_ordered_consumer_goes_on_when_it_is_lost(filled, ask):
    """The server forgets it: its client makes another one that begins after the last message."""
    seen = []

    async def keep(message):
        seen.append(int(message.data))

    sub = await filled.js.subscribe(
        filled.subject(">"), cb=keep, ordered_consumer=True, idle_heartbeat=0.3
    )
    await until_that(lambda: len(seen) == 9)
    [name] = (await ask(f"CONSUMER.NAMES.{filled.name}"))["consumers"]
    await ask(f"CONSUMER.DELETE.{filled.name}.{name}")
    for number in range(10, 15):
        await filled.js.publish(filled.subject("late"), b"%d" % number, headers={"number": "x"})
    await until_that(lambda: len(seen) == 14)
    assert seen == list(range(1, 15))
    await sub.unsubscribe()


async def test_delivery_begins_with_a_subscription(ask, filled, listener):
    """Not before: nothing is lost when the consumer is made first. Info says who is there."""
    info = await ask.consumer(filled.name, "p", durable_name="p", deliver_subject=listener.subject)
    assert (info["num_pending"], info["num_waiting"]) == (9, 0)
    assert "push_bound" not in info
    assert "max_waiting" not in info["config"]
    await listener.start()
    await listener.until(lambda found: len(found) == 9)
    assert texts(listener.found) == [str(number) for number in range(1, 10)]
    info = await ask(f"CONSUMER.INFO.{filled.name}.p")
    assert (info["push_bound"], info["num_ack_pending"]) == (True, 9)
    await listener.stop()

    async def is_unbound():
        return "push_bound" not in await ask(f"CONSUMER.INFO.{filled.name}.p")

    await until(is_unbound)


async def test_unacknowledged_messages_come_again_to_whoever_subscribes(ask, filled, listener):
    """After ``ack_wait``, also if nobody was there meanwhile; what is acknowledged does not."""
    config = {"durable_name": "p", "deliver_subject": listener.subject, "ack_wait": NS // 2}
    await ask.consumer(filled.name, "p", **config)
    await listener.start()
    await listener.until(lambda found: len(found) >= 9)
    for each in listener.found[:9:2]:
        await ask.nc.request(each.reply, b"+ACK", timeout=5)
    await listener.stop()
    first, listener.found = listener.found, []
    await listener.start()
    await listener.until(lambda found: len(set(texts(found))) == 4)
    assert set(texts(listener.found)) == {"2", "4", "6", "8"}
    assert all(int(each.reply.split(".")[4]) >= 2 for each in listener.found)
    assert len(first) >= 9
    await listener.stop()


async def test_the_limit_of_pending_messages_holds_back(ask, filled, listener):
    """The next message comes when one is acknowledged."""
    config = {"deliver_subject": listener.subject, "max_ack_pending": 2}
    await ask.consumer(filled.name, "p", **config)
    await listener.start()
    await listener.until(lambda found: len(found) == 2)
    await asyncio.sleep(0.3)
    assert texts(listener.found) == ["1", "2"]
    await ask.nc.request(listener.found[0].reply, b"", timeout=5)
    await listener.until(lambda found: len(found) == 3)
    assert texts(listener.found)[2] == "3"
    await ask.nc.request(listener.found[1].reply, b"-NAK", timeout=5)
    await listener.until(lambda found: len(found) == 4)
    assert texts(listener.found)[3] == "2"
    await listener.stop()


async def test_a_policy_of_all(ask, filled, listener):
    """One acknowledgement is for everything before it."""
    config = {"deliver_subject": listener.subject, "ack_policy": "all"}
    await ask.consumer(filled.name, "p", **config)
    await listener.start()
    await listener.until(lambda found: len(found) == 9)
    await ask.nc.request(listener.found[6].reply, b"+ACK", timeout=5)
    info = await ask(f"CONSUMER.INFO.{filled.name}.p")
    assert (info["ack_floor"]["stream_seq"], info["num_ack_pending"]) == (7, 2)
    await listener.stop()


async def test_heartbeats_come_in_silence(ask, filled, listener):
    """They say how far deliveries are, in both counts."""
    config = {
        "deliver_subject": listener.subject,
        "idle_heartbeat": HEARTBEAT_NS,
        "ack_policy": "none",
        "filter_subject": filled.subject("odd"),
    }
    await ask.consumer(filled.name, "p", **config)
    await listener.start()
    await listener.until(lambda found: len(statuses(found, "Idle Heartbeat")) >= 2)
    assert texts(listener.found) == ["1", "3", "5", "7", "9"]
    beat = listener.found[-1]
    assert beat.headers["Status"] == "100"
    assert (beat.headers["Nats-Last-Consumer"], beat.headers["Nats-Last-Stream"]) == ("5", "9")
    assert beat.reply == ""
    await listener.stop()


async def test_flow_control_waits_for_its_answer(ask, stream, listener):
    """A receiver that does not answer gets no more than the window, and hears that it stalls."""
    payload = b"x" * 100_000
    for _ in range(60):
        await stream.js.publish(stream.subject("big"), payload)
    config = {
        "deliver_subject": listener.subject,
        "idle_heartbeat": HEARTBEAT_NS,
        "flow_control": True,
        "ack_policy": "none",
    }
    await ask.consumer(stream.name, "p", **config)
    await listener.start()

    def is_stalled(found):
        return any("Nats-Consumer-Stalled" in (each.headers or {}) for each in found)

    await listener.until(is_stalled)
    assert len(texts(listener.found)) == 21, "2 MiB and what begins below that"
    [asked] = statuses(listener.found, "FlowControl Request")
    assert asked.headers["Status"] == "100"
    assert asked.reply.startswith(f"$JS.FC.{stream.name}.p.")
    assert listener.found[-1].headers["Nats-Consumer-Stalled"] == asked.reply
    await ask.nc.publish(f"$JS.FC.{stream.name}.p.wrong", b"")
    await ask.nc.flush()
    await asyncio.sleep(0.3)
    assert len(texts(listener.found)) == 21, "an answer to something else"
    await ask.nc.publish(asked.reply, b"")

    async def answer_all():
        for each in statuses(listener.found, "FlowControl Request"):
            await ask.nc.publish(each.reply, b"")
        return len(texts(listener.found)) == 60

    await until(answer_all)
    await listener.stop()


async def test_clients_answer_flow_control(stream):
    """nats.py gets many megabytes, in order and without a reset."""
    payload = b"x" * 100_000
    for _ in range(150):
        await stream.js.publish(stream.subject("big"), payload)
    sub = await stream.js.subscribe(
        stream.subject(">"),
        config=ConsumerConfig(ack_policy="none"),
        flow_control=True,
        idle_heartbeat=1,
    )
    for number in range(1, 151):
        message = await sub.next_msg(timeout=20)
        assert message.metadata.sequence.consumer == number
    await sub.unsubscribe()


async def test_a_key_value_bucket_is_watched(nc):
    """What there is, then the mark of its end, then every change; keys and history end."""
    js = nc.jetstream()
    bucket = await js.create_key_value(bucket="watched", history=3)
    for number in range(4):
        await bucket.put("a", b"%d" % number)
        await bucket.put(f"b.{number}", b"x")
    watcher = await bucket.watchall()
    seen = []
    while (entry := await watcher.updates(timeout=10)) is not None:
        seen.append((entry.key, entry.value))
    assert seen == [("b.0", b"x"), ("b.1", b"x"), ("b.2", b"x"), ("a", b"3"), ("b.3", b"x")]
    revision = await bucket.put("a", b"new")
    entry = await watcher.updates(timeout=10)
    assert (entry.key, entry.value, entry.revision) == ("a", b"new", revision)
    await bucket.delete("a")
    assert (await watcher.updates(timeout=10)).operation == "DEL"
    assert [each.value for each in await bucket.history("a")] == [b"3", b"new", b""]
    assert sorted(await bucket.keys()) == [f"b.{number}" for number in range(4)]
    await watcher.stop()
    await js.delete_key_value("watched")


async def test_a_queue_group_shares_the_messages(ask, stream):
    """Each goes to one member; a subscription outside the group does not make it deliver."""
    subject = ask.nc.new_inbox()
    listeners = [Listener(ask.nc) for _ in range(3)]
    for each in listeners:
        each.subject = subject
    config = {"deliver_subject": subject, "deliver_group": "workers", "durable_name": "p"}
    await ask.consumer(stream.name, "p", **config)
    await stream.js.publish(stream.subject("x"), b"0")
    await listeners[2].start()
    await asyncio.sleep(0.5)
    assert listeners[2].found == []
    await listeners[2].stop()
    await listeners[0].start("workers")
    await listeners[1].start("workers")
    for number in range(1, 60):
        await stream.js.publish(stream.subject("x"), b"%d" % number)

    async def is_done():
        return sum(len(each.found) for each in listeners[:2]) == 60

    await until(is_done)
    found = [int(data) for each in listeners[:2] for data in texts(each.found)]
    assert sorted(found) == list(range(60))
    assert all(len(each.found) > 5 for each in listeners[:2])
    await listeners[0].stop()
    await listeners[1].stop()


async def test_whoever_subscribes_to_the_subject_receives(ask, stream):
    """Every plain subscription gets each message, and one of each queue group.

    A group alone does not make a consumer without one deliver.
    """
    plain, group, pattern = (Listener(ask.nc) for _ in range(3))
    base = ask.nc.new_inbox()
    plain.subject = group.subject = f"{base}.to"
    pattern.subject = f"{base}.*"
    await group.start("workers")
    await pattern.start("watchers")
    await ask.consumer(stream.name, "p", deliver_subject=plain.subject, durable_name="p")
    await stream.js.publish(stream.subject("x"), b"0")
    await asyncio.sleep(0.5)
    assert group.found == []
    await plain.start()
    for number in range(1, 5):
        await stream.js.publish(stream.subject("x"), b"%d" % number)
    for each in (plain, group, pattern):
        await each.until(lambda found: len(texts(found)) >= 5)
        assert texts(each.found) == [str(number) for number in range(5)]
        await each.stop()


async def test_queue_subscriptions_of_nats_py(filled):
    """Several bind to one durable consumer; each message is acknowledged once."""
    done = []

    async def work(message):
        done.append(int(message.data))
        await message.ack()

    subs = [await filled.js.subscribe(filled.subject(">"), queue="q", cb=work) for _ in range(3)]
    await until_that(lambda: len(done) == 9)
    assert sorted(done) == list(range(1, 10))

    async def is_acked():
        return (await subs[0].consumer_info()).ack_floor.stream_seq == 9

    await until(is_acked)
    for each in subs:
        await each.unsubscribe()


async def test_a_pull_from_a_push_consumer_is_refused(ask, filled, listener):
    """With the status that clients know."""
    await ask.consumer(filled.name, "p", deliver_subject=listener.subject)
    [refused] = await ask.pull(filled.name, "p", {"batch": 1, "expires": NS}, seconds=0.5)
    assert shape(refused) == ("409", "Consumer is push based")


async def test_an_ephemeral_ends_without_a_receiver(ask, filled, listener):
    """After its threshold; while somebody subscribes it stays."""
    config = {"deliver_subject": listener.subject, "inactive_threshold": NS, "ack_policy": "none"}
    await listener.start()
    await ask.consumer(filled.name, "p", **config)
    await asyncio.sleep(2)
    assert (await ask(f"CONSUMER.INFO.{filled.name}.p"))["push_bound"] is True
    await listener.stop()

    async def is_gone():
        return "error" in await ask(f"CONSUMER.INFO.{filled.name}.p")

    await until(is_gone)


async def test_old_forms_of_creating_push_consumers(ask, filled, listener):
    """A durable by its own subject, and an ephemeral that the server names."""
    config = {"durable_name": "d", "deliver_subject": "push.d", "ack_policy": "explicit"}
    body = {"stream_name": filled.name, "config": config}
    info = await ask(f"CONSUMER.DURABLE.CREATE.{filled.name}.d", body)
    assert info["config"]["deliver_subject"] == "push.d"
    assert "inactive_threshold" not in info["config"]
    body["config"] = {"deliver_subject": listener.subject}
    info = await ask(f"CONSUMER.CREATE.{filled.name}", body)
    assert info["config"]["ack_policy"] == "none"
    assert info["config"]["inactive_threshold"] == 5 * NS
    await listener.start()
    await listener.until(lambda found: len(found) == 9)
    await listener.stop()


async def test_the_deliver_subject_changes_while_nobody_is_bound(ask, filled, listener):
    """Else the name is in use. What is pending is delivered at the new subject at once."""
    config = {"durable_name": "p", "deliver_subject": listener.subject, "ack_policy": "explicit"}
    await ask.consumer(filled.name, "p", **config)
    await listener.start()
    await listener.until(lambda found: len(found) == 9)
    other = Listener(ask.nc)
    await other.start()
    path = f"CONSUMER.CREATE.{filled.name}.p"
    body = {"stream_name": filled.name, "config": {**config, "deliver_subject": other.subject}}
    assert (await ask.error(path, body))[2].startswith("consumer name already in use")
    await listener.stop()

    async def is_moved():
        return "error" not in await ask(path, body)

    await until(is_moved)
    await other.until(lambda found: len(found) == 9)
    assert all(each.reply.split(".")[4] == "2" for each in other.found)
    await other.stop()


async def test_what_push_consumers_may_not_be(ask, filled, listener):
    """Code, number and text."""
    path = f"CONSUMER.CREATE.{filled.name}.p"

    async def refused(**config):
        config = {"name": "p", "deliver_subject": listener.subject, **config}
        return await ask.error(path, {"stream_name": filled.name, "config": config})

    assert await refused(deliver_subject="a.*") == (
        400,
        10079,
        "consumer deliver subject has wildcards",
    )
    assert await refused(deliver_subject="a..b") == (
        400,
        10112,
        "invalid push consumer deliver subject",
    )
    assert await refused(deliver_subject=filled.subject("x")) == (
        400,
        10081,
        "consumer deliver subject forms a cycle",
    )
    assert await refused(max_waiting=5) == (
        400,
        10080,
        "consumer in push mode can not set max waiting",
    )
    assert await refused(max_ack_pending=5, ack_policy="none") == (
        400,
        10082,
        "consumer requires ack policy for max ack pending",
    )
    assert await refused(idle_heartbeat=NS // 100) == (
        400,
        10083,
        "consumer idle heartbeat needs to be >= 100ms",
    )
    assert await refused(flow_control=True) == (
        400,
        10108,
        "consumer with flow control also needs heartbeats",
    )
    config = {"deliver_subject": "", "rate_limit_bps": 1000}
    assert await refused(**config) == (
        400,
        10086,
        "consumer in pull mode can not have rate limit set",
    )


async def test_what_an_update_of_a_push_consumer_may_not_change(ask, filled, listener):
    """Between push and pull, heartbeats, flow control."""
    name = filled.name
    config = {"durable_name": "p", "ack_policy": "explicit", "deliver_subject": listener.subject}
    await ask.consumer(name, "p", **config, idle_heartbeat=NS, flow_control=True)
    await ask.consumer(name, "q", durable_name="q")

    async def refused(consumer, **config):
        config = {"durable_name": consumer, "ack_policy": "explicit", **config}
        body = {"stream_name": name, "config": config}
        return await ask.error(f"CONSUMER.CREATE.{name}.{consumer}", body)

    push = "can not update pull consumer to push based"
    assert await refused("q", deliver_subject=listener.subject) == (500, 10012, push)
    beats = "heart beats can not be updated"
    settings = {"deliver_subject": listener.subject, "flow_control": True}
    assert await refused("p", **settings, idle_heartbeat=2 * NS) == (500, 10012, beats)
    flow = "flow control can not be updated"
    settings["flow_control"] = False
    assert await refused("p", **settings, idle_heartbeat=NS) == (500, 10012, flow)


async def test_new_messages_only(filled):
    """And the last one only."""
    sub = await filled.js.subscribe(
        filled.subject(">"), config=ConsumerConfig(deliver_policy=DeliverPolicy.NEW)
    )
    last = await filled.js.subscribe(
        filled.subject(">"), config=ConsumerConfig(deliver_policy=DeliverPolicy.LAST)
    )
    assert (await last.next_msg(timeout=5)).data == b"9"
    with pytest.raises(nats.errors.TimeoutError):
        await sub.next_msg(timeout=0.5)
    await filled.js.publish(filled.subject("x"), b"10")
    assert (await sub.next_msg(timeout=5)).data == b"10"


async def test_acknowledgements_are_heard_where_there_are_consumers(ask, filled):
    """Elsewhere nobody responds, so a client learns at once that it is not acknowledged."""
    with pytest.raises(nats.errors.NoRespondersError):
        await ask.nc.request(f"$JS.ACK.{filled.name}.c.1.1.1.1.1", b"+ACK", timeout=5)
    await ask.consumer(filled.name, "c", durable_name="c")
    [message] = await ask.pull(filled.name, "c", seconds=0.5)
    assert (await ask.nc.request(message.reply, b"+ACK", timeout=5)).data == b""
    await ask(f"CONSUMER.DELETE.{filled.name}.c")
    with pytest.raises(nats.errors.NoRespondersError):
        await ask.nc.request(message.reply, b"+ACK", timeout=5)


# Ours alone


async def test_a_durable_push_consumer_goes_on_after_a_restart(tmp_path):
    """Without being asked for: its receivers only subscribe to its subject."""
    with Server(nats=True, data_dir=tmp_path) as url:
        client = await connected(url.nats_url)
        await client.jetstream().add_stream(name="S", subjects=["s"])
        for number in range(5):
            await client.request("s", b"%d" % number, timeout=10)
        config = {"durable_name": "d", "deliver_subject": "to.d", "ack_wait": NS}
        await Asker(client).consumer("S", "d", **config)
        listener = Listener(client)
        listener.subject = "to.d"
        await listener.start()
        await listener.until(lambda found: len(found) == 5)
        for each in listener.found[:2]:
            await client.request(each.reply, b"+ACK", timeout=5)
        await client.close()
    with Server(nats=True, data_dir=tmp_path) as url:
        client = await connected(url.nats_url)
        listener = Listener(client)
        listener.subject = "to.d"
        await listener.start()
        await listener.until(lambda found: len(set(texts(found))) == 3)
        assert set(texts(listener.found)) == {"2", "3", "4"}
        assert all(int(each.reply.split(".")[4]) >= 2 for each in listener.found)
        await client.close()


async def test_many_push_consumers_at_once(ours, our_nc):
    """Each gets everything, in order, over one link."""
    js = our_nc.jetstream()
    await js.add_stream(name="pushed", subjects=["pushed"])
    with strandline.connect(ours.flight) as admin, admin.producer("pushed") as producer:
        for number in range(3_000):
            producer.append(b"%d" % number)
    seen = [[] for _ in range(8)]

    def keeper(found):
        async def keep(message):
            found.append(int(message.data))

        return keep

    for found in seen:
        await js.subscribe("pushed", cb=keeper(found), ordered_consumer=True, idle_heartbeat=1)
    await until_that(lambda: all(len(found) == 3_000 for found in seen))
    assert all(found == list(range(3_000)) for found in seen)
    await js.delete_stream("pushed")


async def test_any_answer_to_flow_control_is_survived(ask_us):
    """Whatever is sent there, the consumer goes on."""
    await ask_us("STREAM.CREATE.fc", {"name": "fc", "subjects": ["fc"]})
    config = {"deliver_subject": "to.fc", "flow_control": True, "idle_heartbeat": NS}
    await ask_us.consumer("fc", "d", **config)
    for rest in ("d.x", "d", "d.1.2", "nobody.1", "d." + "9" * 99, "d.é"):
        for body in (b"", b"\xff" * 9, json.dumps({"a": 1}).encode()):
            await ask_us.nc.publish(f"$JS.FC.fc.{rest}", body)
            await ask_us.nc.publish(f"$JS.FC.fc.{rest}", body, reply="_INBOX.nobody")
    assert (await ask_us("CONSUMER.INFO.fc.d"))["name"] == "d"
    await ask_us("STREAM.DELETE.fc")


async def test_a_deleted_push_consumers_subscriber_is_told_by_its_client(our_nc):
    """The consumer is gone; its name can be used again."""
    js = our_nc.jetstream()
    await js.add_stream(name="gone", subjects=["gone"])
    sub = await js.subscribe("gone", durable="d")
    await js.delete_consumer("gone", "d")
    with pytest.raises(js_errors.NotFoundError):
        await sub.consumer_info()
    again = await js.subscribe("gone", durable="d")
    await js.publish("gone", b"x")
    assert (await again.next_msg(timeout=5)).data == b"x"
    await js.delete_stream("gone")

"""Atomic batches (ADR-50): up to 1,000 messages that are stored all or not at all."""

import asyncio
import json

import pytest

import strandline
from tests.kit.clusters import leader_of

from .conftest import Asker, connected, name_of, until
from .test_cluster import until_made

ID_LENGTH_MAX = 64


class Publisher:
    """Publishes messages of batches, and returns what is answered."""

    def __init__(self, nc, subject):
        self.nc = nc
        self.subject = subject

    async def send(self, batch_id, number, *, commit=None, data=None, rest="x", **headers):
        """Return the decoded answer; None is an empty one."""
        words = {"Nats-Batch-Id": batch_id, **{k.replace("_", "-"): v for k, v in headers.items()}}
        if number is not None:
            words["Nats-Batch-Sequence"] = str(number)
        if commit is not None:
            words["Nats-Batch-Commit"] = commit
        payload = b"%d" % (number or 0) if data is None else data
        subject = f"{self.subject}.{rest}"
        answer = await self.nc.request(subject, payload, headers=words, timeout=5)
        return json.loads(answer.data) if answer.data else None

    async def error(self, *args, **options):
        """Return the error's numbers and its text."""
        answer = await self.send(*args, **options)
        assert answer["seq"] == 0
        return answer["error"]["code"], answer["error"]["err_code"], answer["error"]["description"]


@pytest.fixture
async def batches(nc, ask, request):
    """A publisher to a stream of its own."""
    name = name_of(request)
    config = {"name": name, "subjects": [f"{name}.>"], "allow_atomic": True}
    config["allow_direct"] = True
    created = await ask(f"STREAM.CREATE.{name}", config)
    assert created["config"]["allow_atomic"] is True
    publisher = Publisher(nc, name)
    publisher.count = lambda: messages(ask, name)
    yield publisher
    await ask(f"STREAM.DELETE.{name}")


async def messages(ask, name):
    return (await ask(f"STREAM.INFO.{name}"))["state"]["messages"]


async def test_a_batch_is_stored_when_it_is_committed(batches, nc, ask):
    """Not before; in order, with its headers, and with one sequence as its answer."""
    assert await batches.send("b", 1) is None
    assert await batches.send("b", 2) is None
    assert await batches.count() == 0
    done = await batches.send("b", 3, commit="1", own="h")
    assert done == {"stream": batches.subject, "seq": 3, "batch": "b", "count": 3}
    found = [await ask.raw(f"DIRECT.GET.{batches.subject}", {"seq": seq}) for seq in (1, 2, 3)]
    assert [each.data for each in found] == [b"1", b"2", b"3"]
    assert [each.headers["Nats-Batch-Sequence"] for each in found] == ["1", "2", "3"]
    assert (found[2].headers["Nats-Batch-Commit"], found[2].headers["own"]) == ("1", "h")
    alone = await batches.send("alone", 1, commit="1")
    assert (alone["seq"], alone["count"]) == (4, 1)


async def test_a_batch_may_end_without_another_message(batches, ask):
    """The last one stored is marked then."""
    await batches.send("e", 1)
    await batches.send("e", 2)
    done = await batches.send("e", 3, commit="eob", data=b"")
    assert (done["seq"], done["count"]) == (2, 2)
    last = await ask.raw(f"DIRECT.GET.{batches.subject}", {"seq": 2})
    assert (last.data, last.headers["Nats-Batch-Commit"]) == (b"2", "1")


async def test_a_thousand_messages_are_one_batch_and_no_more(batches, nc):
    """Only the last one needs an answer."""
    for size, is_stored in ((1_000, True), (1_001, False)):
        for number in range(1, size):
            headers = {"Nats-Batch-Id": f"n{size}", "Nats-Batch-Sequence": str(number)}
            await nc.publish(f"{batches.subject}.x", b"x", headers=headers)
        if is_stored:
            assert (await batches.send(f"n{size}", size, commit="1"))["count"] == size
        else:
            found = await batches.error(f"n{size}", size, commit="1")
            assert found[:2] == (400, 10199)
    assert await batches.count() == 1_000


async def test_what_cannot_be_a_batch_is_rejected_with_the_same_numbers(batches):
    """And nothing of it is stored."""
    incomplete = (400, 10176, "atomic publish batch is incomplete")
    assert await batches.error("u", 5) == incomplete
    await batches.send("g", 1)
    assert await batches.error("g", 3) == incomplete
    assert await batches.error("g", 2) == incomplete
    assert await batches.error("z", None) == (400, 10175, "atomic publish sequence is missing")
    invalid = (400, 10179, "atomic publish batch ID is invalid")
    assert await batches.error("x" * (ID_LENGTH_MAX + 1), 1) == invalid
    invalid = (400, 10200, "atomic publish batch commit is invalid")
    assert await batches.error("y", 1, commit="2") == invalid
    assert await batches.error("w", 1, commit="1", Nats_Expected_Last_Msg_Id="1") == (
        400,
        10177,
        "atomic publish unsupported header used: Nats-Expected-Last-Msg-Id",
    )
    assert (await batches.error("l", 1, commit="1", Nats_Required_Api_Level="99"))[:2] == (
        412,
        10185,
    )
    assert await batches.count() == 0


async def test_conditions_are_checked_at_the_commit(batches):
    """Of the last sequence; message ids are stored once, in a batch as elsewhere."""
    await batches.send("first", 1, commit="1", Nats_Msg_Id="a")
    found = await batches.error("w", 1, commit="1", Nats_Expected_Last_Sequence="7")
    assert found == (400, 10071, "wrong last sequence: 1")
    await batches.send("ok", 1, Nats_Expected_Last_Sequence="1")
    assert (await batches.send("ok", 2, commit="1"))["seq"] == 3
    await batches.send("again", 1)
    assert (await batches.error("again", 2, commit="1", Nats_Msg_Id="a"))[1] == 10201
    await batches.send("twice", 1, Nats_Msg_Id="t")
    assert (await batches.error("twice", 2, commit="1", Nats_Msg_Id="t"))[1] == 10201
    await batches.send("new", 1, Nats_Msg_Id="t")
    assert (await batches.send("new", 2, commit="1"))["seq"] == 5
    assert await batches.count() == 5


async def test_too_many_open_batches_are_rejected(batches):
    """Fifty may be open in a stream."""
    for number in range(50):
        assert await batches.send(f"open{number}", 1) is None
    code, err_code, _ = await batches.error("one more", 1)
    assert (code, err_code) == (429, 10210)
    assert (await batches.send("open7", 2, commit="1"))["count"] == 2
    assert await batches.send("one more", 1) is None


async def test_batches_of_several_streams_of_partitions_and_buckets(our_nc, ours):
    """All of a batch is in one partition; a bucket's revisions are expected in one, too."""
    ask = Asker(our_nc)
    with strandline.connect(ours.flight) as client:
        client.create_stream("parts", subject="parts.>", partitions=3, partition_by="subject")
    publisher = Publisher(our_nc, "parts")
    assert await publisher.send("p", 1, rest="a") is None
    assert (await publisher.send("p", 2, rest="a", commit="1"))["count"] == 2
    errors = set()
    for rest in "bcdefghijklmnopqrst":
        await publisher.send("q", 1, rest="a")
        answer = await publisher.send("q", 2, rest=rest, commit="1")
        errors.add(answer.get("error", {}).get("err_code"))
    assert errors == {None, 10052}
    config = {"name": "KV_at", "subjects": ["$KV.at.>"], "max_msgs_per_subject": 1}
    await ask("STREAM.CREATE.KV_at", config)
    publisher = Publisher(our_nc, "$KV.at")
    expected = {"Nats_Expected_Last_Subject_Sequence": "0"}
    await publisher.send("k", 1, rest="a", **expected)
    assert (await publisher.send("k", 2, rest="b", commit="1", **expected))["count"] == 2
    await publisher.send("l", 1, rest="c", **expected)
    found = await publisher.error("l", 2, rest="a", commit="1", **expected)
    assert found[1:] == (10071, "wrong last sequence: 1")
    assert await messages(ask, "KV_at") == 2
    for name in ("parts", "KV_at"):
        await ask(f"STREAM.DELETE.{name}")


async def test_a_batch_at_the_ingest_listener(ours):
    """As at nats-server."""
    nc = await connected(ours.ingest_url)
    ask = Asker(nc)
    await ask("STREAM.CREATE.listed", {"name": "listed", "subjects": ["listed.>"]})
    publisher = Publisher(nc, "listed")
    assert await publisher.send("b", 1) is None
    assert (await publisher.send("b", 2, commit="1"))["seq"] == 2
    await ask("STREAM.DELETE.listed")
    await nc.close()


async def test_the_command_publishes_in_batches(ours, cli, our_nc):
    """``nats bench js pub atomic``, which asks for a level of the API."""
    ask = Asker(our_nc)
    await ask("STREAM.CREATE.benched", {"name": "benched", "subjects": ["benched"]})
    arguments = ["--stream", "benched", "--msgs", "2000", "--batch", "500", "--no-progress"]
    await asyncio.to_thread(
        cli, ours.nats_url, "bench", "js", "pub", "atomic", "benched", *arguments
    )
    assert await messages(ask, "benched") == 2_000
    await ask("STREAM.DELETE.benched")


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_an_open_batch_is_lost_with_its_leader_and_a_committed_one_is_not(cluster):
    """The next leader says that the batch is incomplete, and stores one that begins there."""
    client = await connected(cluster[1].nats_url)
    await until_made(client.jetstream(), name="at", subjects=["at.>"], num_replicas=3)
    await client.close()
    leader = await asyncio.to_thread(leader_of, cluster, "at")
    other = next(number for number in cluster if number != leader)
    nc = await connected(cluster[other].nats_url)
    publisher = Publisher(nc, "at")
    await publisher.send("done", 1)
    assert (await publisher.send("done", 2, commit="1"))["seq"] == 2
    assert await publisher.send("open", 1) is None
    cluster[leader].kill()

    async def is_answered():
        try:
            answer = await publisher.send("open", 2, commit="1")
        except Exception:  # noqa: BLE001  no responders, no answer in time
            return False
        return answer is not None and answer["error"]["err_code"] == 10176

    await until(is_answered)
    await publisher.send("next", 1)
    assert (await publisher.send("next", 2, commit="1"))["seq"] == 4
    assert await messages(Asker(nc), "at") == 4
    await nc.close()

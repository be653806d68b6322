"""Key-value buckets of stock NATS clients; most tests ask nats-server's JetStream, too."""

import asyncio
import json

import nats.js.errors as js_errors
import pytest
from nats.js.api import KeyValueConfig

import strandline


@pytest.fixture
async def bucket(nc, request):
    """A function that creates a bucket of the test's own; buckets are deleted at the end."""
    js, names = nc.jetstream(), []

    async def create(**settings):
        name = f"b{len(names)}_{abs(hash(request.node.name)):x}"
        kv = await js.create_key_value(KeyValueConfig(bucket=name, **settings))
        names.append(name)
        return kv

    yield create
    for name in names:
        await js.delete_key_value(name)


async def state(ask, kv):
    """The state of a bucket's stream."""
    return (await ask(f"STREAM.INFO.{kv._stream}", {"subjects_filter": ">"}))["state"]


async def test_values_are_put_and_got(bucket):
    """The newest value of a key, its revision, and a key that is not there."""
    kv = await bucket()
    assert await kv.put("color", b"red") == 1
    assert await kv.put("size", b"xl") == 2
    assert await kv.put("color", b"blue") == 3
    entry = await kv.get("color")
    assert (entry.key, entry.value, entry.revision) == ("color", b"blue", 3)
    assert (await kv.get("size", revision=2)).value == b"xl"
    with pytest.raises(js_errors.KeyNotFoundError):
        await kv.get("weight")


async def test_a_bucket_has_the_settings_that_its_clients_ask_for(bucket, ask):
    """A client may compare them with what it asked for."""
    kv = await bucket(history=5)
    config = (await ask(f"STREAM.INFO.{kv._stream}"))["config"]
    wanted = {
        "discard": "new",
        "deny_delete": True,
        "deny_purge": False,
        "allow_rollup_hdrs": True,
        "max_msgs_per_subject": 5,
        "max_bytes": -1,
    }
    assert {name: config.get(name, False) for name in wanted} == wanted


async def test_an_old_revision_is_gone_at_once(bucket, ask):
    """With a history of one, nothing but the newest value is seen, in no way of looking."""
    kv = await bucket()
    for value in (b"1", b"2", b"3"):
        await kv.put("k", value)
    for revision in (1, 2):
        with pytest.raises(js_errors.KeyNotFoundError):
            await kv.get("k", revision=revision)
    found = await state(ask, kv)
    assert (found["messages"], found["first_seq"], found["last_seq"]) == (1, 3, 3)
    assert found["subjects"] == {f"$KV.{kv._name}.k": 1}
    assert (await kv.status()).values == 1
    got = await ask(f"STREAM.MSG.GET.{kv._stream}", {"seq": 1, "next_by_subj": "$KV.>"})
    assert got["message"]["seq"] == 3


async def test_a_history_keeps_as_many_as_asked_for(bucket, ask):
    """Older revisions are removed; those of other keys do not count."""
    kv = await bucket(history=3)
    for number in range(5):
        await kv.put("k", b"%d" % number)
        await kv.put(f"other{number}", b"")
    for revision, value in ((5, b"2"), (7, b"3"), (9, b"4")):
        assert (await kv.get("k", revision=revision)).value == value
    with pytest.raises(js_errors.KeyNotFoundError):
        await kv.get("k", revision=3)
    assert (await state(ask, kv))["messages"] == 8


async def test_create_only_succeeds_once(bucket):
    """A key that has a value is not created; one that was deleted is."""
    kv = await bucket()
    assert await kv.create("k", b"1") == 1
    with pytest.raises(js_errors.KeyWrongLastSequenceError):
        await kv.create("k", b"2")
    await kv.delete("k")
    assert await kv.create("k", b"3") == 3
    assert (await kv.get("k")).value == b"3"


async def test_updates_expect_a_revision(bucket):
    """Another revision is rejected with the present sequence; of racing writers one wins."""
    kv = await bucket(history=5)
    first = await kv.put("k", b"1")
    await kv.put("other", b"")
    second = await kv.update("k", b"2", last=first)
    with pytest.raises(js_errors.KeyWrongLastSequenceError) as caught:
        await kv.update("k", b"3", last=first)
    assert f"wrong last sequence: {second}" in str(caught.value)
    racing = [kv.update("k", b"%d" % number, last=second) for number in range(10)]
    outcomes = await asyncio.gather(*racing, return_exceptions=True)
    assert [isinstance(each, int) for each in outcomes].count(True) == 1


async def test_deleted_and_purged_keys_are_not_found(bucket, ask):
    """A deletion leaves older revisions, a purge takes them along."""
    kv = await bucket(history=5)
    for value in (b"1", b"2"):
        await kv.put("gone", value)
        await kv.put("purged", value)
    await kv.delete("gone")
    await kv.purge("purged")
    for key in ("gone", "purged"):
        with pytest.raises(js_errors.KeyNotFoundError):
            await kv.get(key)
    assert (await kv.get("gone", revision=1)).value == b"1"
    with pytest.raises(js_errors.KeyNotFoundError):
        await kv.get("purged", revision=2)
    assert (await state(ask, kv))["messages"] == 4


async def test_a_rollup_of_all_takes_the_place_of_everything(nc, bucket, ask):
    """Also of other subjects; later messages are kept."""
    kv = await bucket(history=5)
    for key in ("a", "b"):
        await kv.put(key, b"old")
    subject, headers = f"$KV.{kv._name}.c", {"Nats-Rollup": "all"}
    assert (await nc.jetstream().publish(subject, b"new", headers=headers)).seq == 3
    await kv.put("a", b"newer")
    assert (await state(ask, kv))["subjects"] == {subject: 1, f"$KV.{kv._name}.a": 1}
    assert await kv.create("b", b"again") == 5


async def test_headers_that_a_stream_does_not_know_are_rejected(nc, stream):
    """A rollup where none is allowed, and one of an unknown kind."""
    with pytest.raises(js_errors.APIError) as caught:
        await stream.js.publish(stream.subject("a"), b"", headers={"Nats-Rollup": "sub"})
    assert caught.value.err_code == 10111


@pytest.mark.parametrize(
    ("header", "value", "expected"),
    [
        ("Nats-TTL", "1h", (400, 10166, "per-message TTL is disabled")),
        ("Nats-Incr", "+1", (400, 10168, "message counters is disabled")),
        ("Nats-Schedule", "@every 1h", (400, 10188, "message schedules is disabled")),
    ],
)
async def test_features_of_single_messages_are_off(stream, header, value, expected):
    """Nothing is stored without what its publisher asked for; as by a stream without them."""
    js, subject = stream.js, stream.subject("a")
    with pytest.raises(js_errors.APIError) as caught:
        await js.publish(subject, b"" if header == "Nats-Incr" else b"x", headers={header: value})
    error = caught.value
    assert (error.code, error.err_code, error.description) == expected
    assert (await js.stream_info(stream.name)).state.messages == 0


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ({"filter": "$KV.B.a"}, {"$KV.B.b": 3}),
        ({"filter": "$KV.B.*", "seq": 4}, {"$KV.B.a": 1, "$KV.B.b": 2}),
        ({"filter": "$KV.B.a", "keep": 1}, {"$KV.B.a": 1, "$KV.B.b": 3}),
        ({"filter": "$KV.B.none"}, {"$KV.B.a": 3, "$KV.B.b": 3}),
        ({"filter": "$KV.B.>", "keep": 1}, {"$KV.B.b": 1}),
    ],
    ids=["subject", "below a sequence", "keep", "nothing", "all but one"],
)
async def test_subjects_are_purged(bucket, ask, body, left):
    """A purge with a filter removes matching messages, and reports their number."""
    kv = await bucket(history=5)
    for _ in range(3):
        for key in ("a", "b"):
            await kv.put(key, b"v")
    body = json.loads(json.dumps(body).replace("$KV.B.", f"$KV.{kv._name}."))
    answer = await ask(f"STREAM.PURGE.{kv._stream}", body)
    assert answer["purged"] == 6 - sum(left.values())
    expected = {name.replace("$KV.B.", f"$KV.{kv._name}."): count for name, count in left.items()}
    assert (await state(ask, kv)).get("subjects", {}) == expected
    await kv.put("a", b"after")
    assert (await kv.get("a")).value == b"after"


async def test_values_of_a_bucket_with_a_ttl_end(bucket):
    """A value that is older is not found."""
    kv = await bucket(ttl=1)
    await kv.put("k", b"v")
    assert (await kv.get("k")).value == b"v"
    await asyncio.sleep(1.5)
    with pytest.raises(js_errors.KeyNotFoundError):
        await kv.get("k")
    assert await kv.create("k", b"again") == 2


async def test_a_bucket_is_created_bound_and_shown(nc, bucket):
    """Its settings are returned; creating it with others is rejected."""
    kv = await bucket(history=4, ttl=3600, description="for tests")
    found = await nc.jetstream().key_value(kv._name)
    status = await found.status()
    assert (status.history, status.ttl, status.bucket) == (4, 3600, kv._name)
    assert status.stream_info.config.description == "for tests"
    await found.put("k", b"v")
    assert (await kv.get("k")).value == b"v"
    with pytest.raises(js_errors.BadRequestError):
        await nc.jetstream().create_key_value(KeyValueConfig(bucket=kv._name, history=5))


async def test_many_writers_count_up_without_a_loss(bucket):
    """Read, add one and update with the revision, from many tasks at once."""
    kv = await bucket()
    await kv.put("n", b"0")

    async def add():
        while True:
            entry = await kv.get("n")
            try:
                await kv.update("n", b"%d" % (int(entry.value) + 1), last=entry.revision)
            except js_errors.KeyWrongLastSequenceError:
                continue
            return

    await asyncio.gather(*(add() for _ in range(20)))
    assert (await kv.get("n")).value == b"20"


async def test_readers_of_other_doors_see_the_same(ours, our_nc):
    """Arrow Flight shows nothing that is replaced, purged or hidden."""
    js = our_nc.jetstream()
    kv = await js.create_key_value(KeyValueConfig(bucket="doors"))
    for number in range(100):
        await kv.put(f"k{number % 10}", b"%d" % number)
    await kv.purge("k0")
    await js.purge_stream("KV_doors", subject="$KV.doors.k1")
    with strandline.connect(ours.flight) as client:
        table = client.read("KV_doors", start="earliest").read_all()
        subjects = table.column("subject").to_pylist()
        assert subjects == [*(f"$KV.doors.k{n}" for n in range(2, 10)), "$KV.doors.k0"]
        one = client.read("KV_doors", start="earliest", subject="$KV.doors.k7").read_all()
        assert one.column("value").to_pylist() == [b"97"]
    await js.delete_key_value("doors")


async def updates(watcher, count):
    """So many entries of a watcher, as key and value; None ends the initial ones."""
    found = []
    for _ in range(count):
        entry = await watcher.updates(timeout=5)
        found.append(None if entry is None else (entry.key, entry.value, entry.operation))
    return found


async def test_keys_and_history_are_listed(bucket):
    """Keys without the deleted ones; a key's revisions, the oldest first."""
    kv = await bucket(history=3)
    for number in range(4):
        await kv.put("a", b"%d" % number)
        await kv.put(f"k.{number}", b"")
    await kv.delete("k.2")
    await kv.purge("k.3")
    assert sorted(await kv.keys()) == ["a", "k.0", "k.1"]
    history = await kv.history("a")
    assert [(entry.value, entry.revision) for entry in history] == [
        (b"1", 3), (b"2", 5), (b"3", 7),
    ]  # fmt: skip
    assert [entry.operation for entry in await kv.history("k.2")] == [None, "DEL"]
    assert [entry.operation for entry in await kv.history("k.3")] == ["PURGE"]


async def test_a_bucket_is_watched(bucket):
    """First the newest value of each key, then every change; an empty bucket ends at once."""
    kv = await bucket()
    watcher = await kv.watchall()
    assert await updates(watcher, 1) == [None]
    await kv.put("a", b"1")
    assert await updates(watcher, 1) == [("a", b"1", None)]
    await watcher.stop()
    for value in (b"2", b"3"):
        await kv.put("a", value)
        await kv.put("b", value)
    await kv.delete("b")
    watcher = await kv.watchall()
    assert await updates(watcher, 3) == [("a", b"3", None), ("b", b"", "DEL"), None]
    await kv.put("c", b"4")
    assert await updates(watcher, 1) == [("c", b"4", None)]
    await watcher.stop()
    watcher = await kv.watch("a")
    assert await updates(watcher, 2) == [("a", b"3", None), None]
    await kv.put("b", b"5")
    await kv.put("a", b"6")
    assert await updates(watcher, 1) == [("a", b"6", None)]
    await watcher.stop()


async def test_a_watch_of_many_keys_sees_each_once(bucket):
    """However often they were put before."""
    kv = await bucket(history=2)
    for number in range(300):
        await kv.put(f"k{number % 100}", b"%d" % number)
    watcher = await kv.watchall(ignore_deletes=True)
    found = await updates(watcher, 101)
    assert found[-1] is None
    assert {key: value for key, value, _ in found[:-1]} == {
        f"k{number % 100}": b"%d" % number for number in range(200, 300)
    }
    await watcher.stop()


async def test_deletions_are_purged(bucket, ask):
    """What was deleted, and the markers of it, are gone; everything else stays."""
    kv = await bucket(history=3)
    for key in ("a", "b", "c"):
        await kv.put(key, b"1")
        await kv.put(key, b"2")
    await kv.delete("b")
    await kv.purge("c")
    await kv.purge_deletes(olderthan=-1)
    assert set((await state(ask, kv))["subjects"]) == {f"$KV.{kv._name}.a"}

"""Streams over the JetStream API, asked by nats-py; most tests ask nats-server's JetStream too."""

import asyncio
import base64
import json
import random

import nats.js.errors as js_errors
import pytest
from nats.js.api import StreamConfig

import strandline
from strandline.servers.nats.jetstream import records
from strandline.storage.log_subjects import LogSubjects
from strandline.testing.server import Server


async def fill(stream, count=5):
    """Publish numbered messages, alternately on two subjects; every second one has a header."""
    for number in range(count):
        headers = {"number": str(number)} if number % 2 else None
        subject = stream.subject("odd" if number % 2 else "even")
        await stream.js.publish(subject, b"%d" % number, headers=headers)


async def test_the_account_is_shown(nc, stream):
    """Every field that clients insist on is there; streams and consumers are counted."""
    info = await stream.js.account_info()
    assert info.streams >= 1
    assert info.memory == 0
    await stream.js.add_consumer(stream.name, durable_name="d", ack_policy="explicit")
    assert (await stream.js.account_info()).consumers == info.consumers + 1
    assert info.limits.max_streams == -1


async def test_a_new_stream_is_empty(nc, stream):
    """Its sequences are zero, and making it again changes nothing."""
    state = (await stream.js.stream_info(stream.name)).state
    assert (state.messages, state.first_seq, state.last_seq, state.bytes) == (0, 0, 0, 0)
    again = await stream.js.add_stream(name=stream.name, subjects=[stream.subject(">")])
    assert again.config.name == stream.name


async def test_the_state_follows_publishes_and_purges(nc, stream):
    """Messages and sequences are exact; sequences continue after a purge."""
    await fill(stream, 10)

    async def state():
        found = (await stream.js.stream_info(stream.name)).state
        return found.messages, found.first_seq, found.last_seq

    assert await state() == (10, 1, 10)
    await stream.js.purge_stream(stream.name, seq=4)
    assert await state() == (7, 4, 10)
    await stream.js.purge_stream(stream.name, keep=2)
    assert await state() == (2, 9, 10)
    await stream.js.purge_stream(stream.name)
    assert await state() == (0, 11, 10)
    ack = await stream.js.publish(stream.subject("x"), b"more")
    assert ack.seq == 11
    assert await state() == (1, 11, 11)


async def test_a_purge_says_how_many_it_deleted(ask, stream):
    """Also when there was nothing to delete."""
    await fill(stream, 6)
    operation = f"STREAM.PURGE.{stream.name}"
    assert (await ask(operation, {"keep": 4}))["purged"] == 2
    assert (await ask(operation, {"seq": 1}))["purged"] == 0
    assert (await ask(operation, {"seq": 100}))["purged"] == 4
    assert (await ask(operation))["purged"] == 0
    assert await ask.error(operation, {"seq": 2, "keep": 1}) == (400, 10003, "bad request")


async def test_messages_are_read_by_sequence(nc, stream):
    """With subject, payload, time and headers; a missing one is not found."""
    await fill(stream)
    found = await stream.js.get_msg(stream.name, 2)
    assert (found.subject, found.seq, found.data) == (stream.subject("odd"), 2, b"1")
    assert found.headers == {"number": "1"}
    for sequence in (6, 1 << 50):
        with pytest.raises(js_errors.NotFoundError):
            await stream.js.get_msg(stream.name, sequence)


async def test_messages_are_read_by_subject(nc, stream):
    """The last of a subject or pattern, and the next from a sequence on."""
    await fill(stream)
    js, name = stream.js, stream.name
    assert (await js.get_last_msg(name, stream.subject("odd"))).seq == 4
    assert (await js.get_last_msg(name, stream.subject(">"))).seq == 5
    with pytest.raises(js_errors.NotFoundError):
        await js.get_last_msg(name, stream.subject("none"))
    found = await js.get_msg(name, 2, subject=stream.subject("even"), next=True)
    assert (found.seq, found.data) == (3, b"2")
    with pytest.raises(js_errors.NotFoundError):
        await js.get_msg(name, 5, subject=stream.subject("odd"), next=True)


async def test_a_raw_get_has_every_field(ask, stream):
    """Payload and header block in base64, and the time with nanoseconds."""
    await fill(stream)
    message = (await ask(f"STREAM.MSG.GET.{stream.name}", {"seq": 2}))["message"]
    assert set(message) == {"subject", "seq", "data", "hdrs", "time"}
    assert base64.b64decode(message["hdrs"]).startswith(b"NATS/1.0\r\nnumber: 1\r\n")
    operation = f"STREAM.MSG.GET.{stream.name}"
    later = await ask(operation, {"start_time": "2001-01-01T00:00:00Z"})
    assert later["message"]["seq"] == 1
    assert await ask.error(operation, {}) == (400, 10003, "bad request")
    missing = (404, 10037, "no message found")
    assert await ask.error(operation, {"start_time": "2100-01-01T00:00:00Z"}) == missing
    assert await ask.error(operation, {"seq": 77}) == missing


@pytest.fixture
async def direct(nc, request):
    """A stream that allows direct reads."""
    name = "direct_" + "".join(c if c.isalnum() else "_" for c in request.node.name)
    js = nc.jetstream()
    await js.add_stream(name=name, subjects=[f"{name}.>"], allow_direct=True)
    for number in range(5):
        subject = f"{name}.{'odd' if number % 2 else 'even'}"
        await js.publish(subject, b"%d" % number, headers={"number": str(number)})
    yield name
    await js.delete_stream(name)


async def test_direct_reads_are_the_messages_themselves(ask, direct):
    """With headers that say where they are stored."""
    found = await ask.raw(f"DIRECT.GET.{direct}", {"seq": 2})
    assert found.data == b"1"
    headers = found.headers
    assert headers["number"] == "1"
    assert headers["Nats-Stream"] == direct
    assert headers["Nats-Subject"] == f"{direct}.odd"
    assert headers["Nats-Sequence"] == "2"
    assert headers["Nats-Time-Stamp"].endswith("Z")
    last = await ask.raw(f"DIRECT.GET.{direct}.{direct}.even")
    assert (last.data, last.headers["Nats-Sequence"]) == (b"4", "5")
    after = await ask.raw(f"DIRECT.GET.{direct}", {"seq": 3, "next_by_subj": f"{direct}.odd"})
    assert (after.data, after.headers["Nats-Sequence"]) == (b"3", "4")
    bare = await ask.raw(f"DIRECT.GET.{direct}", {"last_by_subj": f"{direct}.odd", "no_hdr": True})
    assert bare.data == b"3"


async def test_direct_reads_say_in_the_status_what_is_wrong(ask, direct):
    """Clients look at the status line."""

    async def status(operation, body=None, **options):
        found = await ask.raw(operation, body, **options)
        return found.headers["Status"], found.headers["Description"]

    get = f"DIRECT.GET.{direct}"
    assert await status(get, {"seq": 77}) == ("404", "Message Not Found")
    assert await status(f"{get}.{direct}.none") == ("404", "Message Not Found")
    assert await status(get) == ("408", "Empty Request")
    level = {"Nats-Required-Api-Level": "99"}
    assert await status(get, {"seq": 1}, headers=level) == ("412", "Required Api Level")


async def test_streams_are_listed_by_name_and_subject(nc, ask, stream):
    """In pages; a subject selects the streams whose subjects overlap it."""
    listed = await ask("STREAM.NAMES")
    assert stream.name in listed["streams"]
    assert (listed["offset"], listed["limit"]) == (0, 1024)
    assert listed["total"] == len(listed["streams"])
    beyond = await ask("STREAM.NAMES", {"offset": 1000})
    assert (beyond["offset"], beyond["streams"] or []) == (beyond["total"], [])
    for pattern in (stream.subject("a"), stream.subject("*.b"), stream.subject(">")):
        assert (await ask("STREAM.NAMES", {"subject": pattern}))["streams"] == [stream.name]
    assert await stream.js.find_stream_name_by_subject(stream.subject("a")) == stream.name
    assert ((await ask("STREAM.NAMES", {"subject": "nowhere"}))["streams"] or []) == []
    infos = await stream.js.streams_info()
    assert stream.name in [info.config.name for info in infos]


async def test_subjects_are_counted(ask, stream):
    """A filter shows how many messages each subject has."""
    await fill(stream)
    found = await ask(f"STREAM.INFO.{stream.name}", {"subjects_filter": ">"})
    assert found["total"] == 2
    counts = {stream.subject("even"): 3, stream.subject("odd"): 2}
    assert found["state"]["subjects"] == counts
    only = await ask(f"STREAM.INFO.{stream.name}", {"subjects_filter": stream.subject("odd")})
    assert only["state"]["subjects"] == {stream.subject("odd"): 2}
    none = await ask(f"STREAM.INFO.{stream.name}", {"subjects_filter": "nowhere.else"})
    assert "subjects" not in none["state"]
    page = await ask(f"STREAM.INFO.{stream.name}", {"subjects_filter": ">", "offset": 1})
    assert page["state"]["subjects"] == {stream.subject("odd"): 2}
    assert (page["total"], page["offset"], page["limit"]) == (2, 1, 100_000)


@pytest.mark.parametrize("body", [b"", b" ", b"null", b" null\n", b"{}"])
async def test_a_body_may_have_no_fields(ask, stream, body):
    """Clients in Rust and Go send ``null`` where they ask for nothing in particular."""
    assert "error" not in await ask("INFO", body)
    assert stream.name in (await ask("STREAM.NAMES", body))["streams"]
    assert (await ask(f"STREAM.INFO.{stream.name}", body))["config"]["name"] == stream.name
    await stream.js.publish(stream.subject("x"), b"1")
    assert (await ask(f"STREAM.PURGE.{stream.name}", body))["purged"] == 1
    assert (await ask(f"CONSUMER.NAMES.{stream.name}", body))["total"] == 0


async def test_what_cannot_be_is_rejected_with_the_same_numbers(ask, stream):
    """Errors of requests about streams: code, number and text."""
    missing = (404, 10059, "stream not found")
    for operation in ("INFO", "DELETE", "PURGE", "MSG.GET", "MSG.DELETE"):
        body = {"seq": 1} if operation.startswith("MSG") else None
        assert await ask.error(f"STREAM.{operation}.nope", body) == missing
    assert await ask.error("STREAM.UPDATE.nope", {"name": "nope"}) == missing
    mismatch = (400, 10056, "stream name in subject does not match request")
    for body in (None, {"name": "other"}):
        assert await ask.error("STREAM.CREATE.one", body) == mismatch
    overlapping = {"name": "one", "subjects": [stream.subject("x")]}
    overlap = (400, 10065, "subjects overlap with an existing stream")
    assert await ask.error("STREAM.CREATE.one", overlapping) == overlap
    other = {"name": stream.name, "subjects": [stream.subject(">")], "max_msgs": 5}
    in_use = (400, 10058, "stream name already in use with a different configuration")
    code, number, text = await ask.error(f"STREAM.CREATE.{stream.name}", other)
    assert (code, number, text.partition(": ")[0]) == in_use  # here with the settings that differ
    everything = (500, 10052, "capturing all subjects requires no-ack to be true")
    assert await ask.error("STREAM.CREATE.A", {"name": "A", "subjects": [">"]}) == everything
    copies = (500, 10074, "replicas > 1 not supported in non-clustered mode")
    long = {"name": "x" * 256, "subjects": ["r"]}
    longest = (500, 10052, "stream name is too long, maximum allowed is 255")
    assert await ask.error(f"STREAM.CREATE.{long['name']}", long) == longest
    fewer = {"name": "R", "subjects": ["r"], "num_replicas": -3}
    negative = (400, 10133, "replicas count cannot be negative")
    assert await ask.error("STREAM.CREATE.R", fewer) == negative
    three = {"name": "R", "subjects": ["r"], "num_replicas": 3}
    assert await ask.error("STREAM.CREATE.R", three) == copies
    young = {"name": "Y", "subjects": ["y"], "max_age": 100}
    assert await ask.error("STREAM.CREATE.Y", young) == (500, 10052, "max age needs to be >= 100ms")
    for body in (b"{", b'{"name": 7}', b'{"name": "T", "storage": "x"}'):
        assert (await ask.error("STREAM.CREATE.T", body))[:2] == (400, 10025)
    level = {"Nats-Required-Api-Level": "99"}
    needed = (412, 10185, "JetStream minimum api level required")
    assert await ask.error(f"STREAM.INFO.{stream.name}", headers=level) == needed


async def test_an_update_without_a_change_is_answered(ask, stream):
    """As clients send it before they create a stream."""
    body = {"name": stream.name, "subjects": [stream.subject(">")]}
    found = await ask(f"STREAM.UPDATE.{stream.name}", body)
    assert found["config"]["name"] == stream.name
    assert found["type"] == "io.nats.jetstream.api.v1.stream_update_response"


async def test_limits_and_replicas_are_kept(nc, stream):
    """A stream shows the limits that it was made with."""
    config = StreamConfig(
        name="limited",
        subjects=["limited"],
        max_msgs=100,
        max_bytes=1 << 20,
        max_age=3600,
        duplicate_window=60,
    )
    made = (await stream.js.add_stream(config)).config
    assert (made.max_msgs, made.max_bytes, made.max_age) == (100, 1 << 20, 3600)
    assert (made.duplicate_window, made.num_replicas) == (60, 1)
    assert (await stream.js.add_stream(config)).config == made
    await stream.js.delete_stream("limited")
    with pytest.raises(js_errors.NotFoundError):
        await stream.js.stream_info("limited")


# Ours alone


async def test_settings_that_are_not_built_are_rejected_by_name(ask_us):
    """Each with JetStream's error for a configuration that cannot be."""
    settings = {
        "retention": "workqueue",
        "storage": "memory",
        "compression": "s2",
        "max_msg_size": 100,
        "allow_rollup_hdrs": True,
        "mirror": {"name": "other"},
        "sources": [{"name": "other"}],
        "first_seq": 10,
        "republish": {"src": ">", "dest": "x.>"},
        "sealed": True,
        "metadata": {"owner": "me"},
    }
    for name, value in settings.items():
        body = {"name": "refused", "subjects": ["refused"], name: value}
        code, number, text = await ask_us.error("STREAM.CREATE.refused", body)
        assert (code, number) == (500, 10052)
        assert name in text
    assert "refused" not in (await ask_us("STREAM.NAMES"))["streams"]


async def test_settings_that_ask_for_nothing_are_taken(ask_us):
    """Zero, null, false and empty mean that clients do not want the feature."""
    body = {
        "name": "nothing",
        "subjects": ["nothing"],
        "max_msgs": 0,
        "max_age": None,
        "mirror": None,
        "sources": [],
        "sealed": False,
        "consumer_limits": {},
        "allow_rollup_hdrs": False,
        "description": "",
        "num_replicas": 0,
        "unknown": {"setting": 1},
    }
    assert (await ask_us("STREAM.CREATE.nothing", body))["did_create"] is True
    assert (await ask_us("STREAM.DELETE.nothing"))["success"] is True


async def test_changes_and_deletions_of_messages_are_rejected(ask_us):
    """The settings of a stream are fixed, and a log has no holes."""
    body = {"name": "fixed", "subjects": ["fixed.>"]}
    await ask_us("STREAM.CREATE.fixed", body)
    code, number, text = await ask_us.error("STREAM.UPDATE.fixed", {**body, "max_msgs": 7})
    assert (code, number) == (500, 10052)
    assert "max_msgs from -1 to 7" in text
    refused = await ask_us.error("STREAM.MSG.DELETE.fixed", {"seq": 1})
    assert refused == (500, 10057, "messages cannot be deleted")
    code, number, _ = await ask_us.error("STREAM.PURGE.fixed", {"filter": "fixed.a"})
    assert (code, number) == (500, 10110)
    assert (await ask_us("STREAM.PURGE.fixed", {"filter": "fixed.>"}))["success"] is True
    await ask_us("STREAM.DELETE.fixed")


async def test_unknown_operations_are_answered(ask_us):
    """Where nats-server is silent, a client need not wait."""
    assert (await ask_us.error("BOGUS.x"))[:2] == (503, 10039)
    assert (await ask_us.error("STREAM.INFO"))[:2] == (503, 10039)


async def test_a_request_for_nobody_is_ignored(our_nc, ask_us):
    """Without a reply subject nothing happens."""
    await ask_us("STREAM.CREATE.kept", {"name": "kept", "subjects": ["kept"]})
    await our_nc.publish("$JS.API.STREAM.DELETE.kept", b"")
    assert "kept" in (await ask_us("STREAM.NAMES"))["streams"]
    await ask_us("STREAM.DELETE.kept")


async def test_partitions_are_streams_of_their_own(ours, ask_us):
    """Each is exact; all together have counts, and no addresses."""
    with strandline.connect(ours.flight) as admin:
        admin.create_stream("many.parts", subject="parts.>", partitions=3)
        for number in range(30):
            admin.append("many.parts", b"%d" % number, subject=f"parts.{number}")
    names = (await ask_us("STREAM.NAMES", {"subject": "parts.7"}))["streams"]
    assert names == ["many=parts", "many=parts:0", "many=parts:1", "many=parts:2"]
    states = [(await ask_us(f"STREAM.INFO.{name}"))["state"] for name in names]
    assert states[0]["messages"] == 30
    assert sum(state["messages"] for state in states[1:]) == 30
    assert all(state["last_seq"] == state["messages"] for state in states[1:])
    found = await ask_us("STREAM.MSG.GET.many=parts:1", {"seq": 1})
    assert found["message"]["seq"] == 1
    refused = await ask_us.error("STREAM.MSG.GET.many=parts", {"seq": 1})
    assert refused[:2] == (400, 10003)
    assert "many=parts:0" in refused[2]
    for subject, body in (("", {"seq": 1}), (".x", b"")):
        status = (await ask_us.raw(f"DIRECT.GET.many=parts{subject}", body)).headers
        assert status["Status"] == "408"
        text = "Bad Request: stream has 3 partitions: use many=parts:0 to many=parts:2"
        assert status["Description"] == text
    config = (await ask_us("STREAM.INFO.many=parts:2"))["config"]
    assert config["metadata"]["strandline.partition"] == "2"
    missing = (404, 10059, "stream not found")
    for name in ("many=parts:3", "many=parts:x", "many=parts:00", "many=parts:01", "many"):
        assert await ask_us.error(f"STREAM.INFO.{name}") == missing
    assert (await ask_us.error("STREAM.DELETE.many=parts:1"))[:2] == (400, 10003)
    assert (await ask_us("STREAM.DELETE.many=parts"))["success"] is True


async def test_streams_of_the_broker_are_hidden(ours, ask_us):
    """Internal streams are neither listed nor found."""
    with strandline.connect(ours.flight) as admin:
        admin.create_stream("seen")
        with admin.consumer("some", "seen"):
            pass
        listed = {info.config.name for info in admin.list_streams()}
    assert "__groups" in listed
    assert "__groups" not in (await ask_us("STREAM.NAMES"))["streams"]
    assert (await ask_us.error("STREAM.INFO.__groups"))[1] == 10059
    assert (await ask_us.error("STREAM.CREATE.__x", {"name": "__x"}))[:2] == (500, 10052)
    await ask_us("STREAM.DELETE.seen")


async def test_keys_tombstones_and_odd_headers_are_shown(ours, ask_us):
    """A key is a header; a header that NATS cannot carry is omitted."""
    with strandline.connect(ours.flight) as admin:
        admin.create_stream("keyed")
        admin.append("keyed", b"v", key=b"k", headers={"a": b"1", "odd": b"line\r\nbreak"})
        admin.append("keyed", None, key=b"k")
    found = await ask_us.raw("DIRECT.GET.keyed", {"seq": 1})
    headers = dict(found.headers)
    assert (headers["Strandline-Key"], headers["a"]) == ("k", "1")
    assert "odd" not in headers
    message = (await ask_us("STREAM.MSG.GET.keyed", {"seq": 2}))["message"]
    assert "data" not in message
    await ask_us("STREAM.DELETE.keyed")


@pytest.mark.slow
async def test_gaps_of_compaction_are_counted():
    """A compacted stream has fewer messages than sequences; a removed one is not found."""
    often = {"cleaner_interval_ms": 50, "journal": {"checkpoint_interval_ms": 50}}
    with Server(nats=True, **often) as url, strandline.connect(url.flight) as admin:
        admin.create_stream("compact", compact=True, segment_bytes=1 << 16)
        for number in range(60):
            admin.append("compact", bytes(4000), key=b"%d" % (number % 5))
        client = await _client(url.nats_url)

        async def ask(operation, body=None):
            payload = json.dumps(body).encode() if body else b""
            return json.loads((await client.request(f"$JS.API.{operation}", payload)).data)

        state = (await ask("STREAM.INFO.compact"))["state"]
        while state["messages"] == 60:
            await asyncio.sleep(0.1)
            state = (await ask("STREAM.INFO.compact"))["state"]
        rows = [o for batch in admin.read("compact") for o in batch["offset"].to_pylist()]
        state = (await ask("STREAM.INFO.compact"))["state"]
        assert len(rows) >= state["messages"] >= 5
        assert state["last_seq"] == 60
        assert state["num_deleted"] == 60 - state["first_seq"] + 1 - state["messages"]
        removed = await ask("STREAM.MSG.GET.compact", {"seq": 1})
        assert removed["error"]["err_code"] == 10037
        await client.close()


async def _client(url):
    import nats

    return await nats.connect(url)


@pytest.fixture
def long(ours, monkeypatch):
    """A stream with more records than a search may read."""
    monkeypatch.setattr(records, "BATCH_BYTES", 4096)
    monkeypatch.setattr(records, "SEARCH_BYTES_MAX", 8192)
    with strandline.connect(ours.flight) as admin:
        admin.create_stream("long", subject="long.>")
        for number in range(10):
            admin.append("long", bytes(8192), subject=f"long.{'a' if number else 'first'}")
        yield
        admin.delete_stream("long")


@pytest.mark.usefixtures("long")
async def test_subjects_are_found_without_reading_what_lies_between(ask_us):
    """The subject index has their offsets, or shows that there are none."""
    found = await ask_us("STREAM.MSG.GET.long", {"last_by_subj": "long.first"})
    assert found["message"]["seq"] == 1
    found = await ask_us("STREAM.MSG.GET.long", {"next_by_subj": "long.a", "seq": 2})
    assert found["message"]["seq"] == 2
    for body in ({"last_by_subj": "long.b"}, {"next_by_subj": "long.*.*"}):
        code, number, _ = await ask_us.error("STREAM.MSG.GET.long", body)
        assert (code, number) == (404, 10037)
    found = await ask_us("STREAM.INFO.long", {"subjects_filter": "long.*"})
    assert found["state"]["subjects"] == {"long.a": 9, "long.first": 1}


@pytest.mark.usefixtures("long")
async def test_a_search_reads_no_more_than_its_share(ask_us, monkeypatch):
    """Without an index, a long search ends with an error."""
    monkeypatch.setattr(LogSubjects, "look", lambda *_: None)
    code, number, _ = await ask_us.error("STREAM.MSG.GET.long", {"last_by_subj": "long.b"})
    assert (code, number) == (503, 10008)
    found = await ask_us("STREAM.MSG.GET.long", {"last_by_subj": "long.a"})
    assert found["message"]["seq"] == 10
    code, number, _ = await ask_us.error("STREAM.INFO.long", {"subjects_filter": ">"})
    assert (code, number) == (503, 10008)


async def test_subjects_come_in_pages_that_fit_into_an_answer(ours, ask_us):
    """However long they are: clients ask until they have as many as there are."""
    wanted = {f"wide.{number}.{'x' * 200}": 1 for number in range(6_000)}
    with strandline.connect(ours.flight) as admin:
        admin.create_stream("wide", subject="wide.>")
        with admin.producer("wide") as producer:
            for subject in wanted:
                producer.append(b"v", subject=subject)
    found, pages = {}, 0
    while len(found) < 6_000:
        body = {"subjects_filter": ">", "offset": len(found)}
        answer = await ask_us("STREAM.INFO.wide", body)
        assert (answer["total"], answer["offset"]) == (6_000, len(found))
        found |= answer["state"]["subjects"]
        pages += 1
    assert found == wanted
    assert pages == 2
    await ask_us("STREAM.DELETE.wide")


async def test_an_answer_that_is_too_large_says_so(ours, ask_us):
    """A message in base64 may be larger than the server lets through; itself it is not."""
    with strandline.connect(ours.flight) as admin:
        admin.create_stream("large")
        admin.append("large", bytes(1_000_000))
    code, number, text = await ask_us.error("STREAM.MSG.GET.large", {"seq": 1})
    assert (code, number) == (503, 10023)
    assert "max_payload" in text
    found = await ask_us.raw("DIRECT.GET.large", {"seq": 1})
    assert len(found.data) == 1_000_000
    await ask_us("STREAM.DELETE.large")


JUNK = [None, True, -1, 0, 1, 1 << 70, 1.5, "", "x", "*", "a..b", ">", [], [1], {}, {"a": {}}]
FIELDS = """
offset subject subjects_filter filter seq keep last_by_subj next_by_subj start_time no_hdr batch
multi_last name subjects max_msgs max_age metadata mirror duplicate_window
""".split()  # noqa: SIM905  readable


async def test_any_body_is_answered(ask_us):
    """Whatever a request asks for, it has one answer, and the broker has no error to report."""
    await ask_us("STREAM.CREATE.any", {"name": "any", "subjects": ["any"]})
    await ask_us.nc.request("any", b"x")
    operations = ("STREAM.INFO", "STREAM.PURGE", "STREAM.MSG.GET", "STREAM.UPDATE", "STREAM.CREATE")
    chosen = random.Random(7)
    for _ in range(300):
        body = {name: chosen.choice(JUNK) for name in chosen.sample(FIELDS, 3)}
        operation = f"{chosen.choice(operations)}.any"
        answer = await ask_us(operation, body)
        assert answer["type"].startswith("io.nats.jetstream.api.v1.stream_")
        assert answer.get("error", {}).get("description") != "internal error", (operation, body)
        found = await ask_us.raw("DIRECT.GET.any", body)
        assert "internal" not in (found.headers or {}).get("Description", ""), body
    assert "any" in (await ask_us("STREAM.NAMES"))["streams"]
    await ask_us("STREAM.DELETE.any")

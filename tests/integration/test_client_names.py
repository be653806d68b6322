"""Invalid names, times and the like raise one of our errors."""

import asyncio

import pandas as pd
import pyarrow as pa
import pytest

import strandline
from strandline.errors import InvalidRecordError, InvalidRequestError, StrandlineError
from strandline.testing import Server


def commit_offsets(client, name):
    with client.transaction("t") as transaction:
        transaction.commit_offsets(name, {("s", 0): 1})


def stage_positions(client, name):
    with client.stage("t", 0) as stage:
        stage.commit_offsets(name, {("s", 0): 1})


CALLS = {
    "consumer": lambda client, name: client.consumer(name, "s"),
    "streams of a consumer": lambda client, name: client.consumer("g", [name]),
    "instance": lambda client, name: client.consumer("g", "s", instance=name or "\udc80"),
    "groups.info": lambda client, name: client.groups.info(name),
    "groups.committed_offsets": lambda client, name: client.groups.committed_offsets(name),
    "groups.commit": lambda client, name: client.groups.commit(name, {("s", 0): 1}),
    "groups.commit in": lambda client, name: client.groups.commit("g", {(name, 0): 1}),
    "groups.reset": lambda client, name: client.groups.reset(name, "s", "latest"),
    "groups.delete": lambda client, name: client.groups.delete(name),
    "transaction": lambda client, name: client.transaction(name),
    "commit_offsets": commit_offsets,
    "staged positions": stage_positions,
    "stage": lambda client, name: client.stage(name, 0),
    "commit_prepared": lambda client, name: client.commit_prepared(name, "1.2"),
    "commit_staged": lambda client, name: client.commit_staged(name, 0, [], fingerprint=""),
    "last_published": lambda client, name: client.last_published(name),
    "create_stream": lambda client, name: client.create_stream(name),
    "delete_stream": lambda client, name: client.delete_stream(name),
    "stream_info": lambda client, name: client.stream_info(name),
    "append": lambda client, name: client.append(name, b"v"),
    "read": lambda client, name: client.read(name),
    "columns": lambda client, name: client.read("s", columns=[name]),
    "create_token": lambda client, name: client.access.create_token(name),
}


@pytest.fixture(scope="module")
def client():
    """A client of a broker with one stream."""
    with Server() as url, strandline.connect(url) as made:
        made.create_stream("s")
        yield made


NO_NAMES = {
    "no Unicode": "\udc80",
    "int": 5,
    "None": None,
    "bytes": b"s",
    "": "",
    "long": "x" * 10_000,
}


@pytest.mark.parametrize("name", NO_NAMES.values(), ids=NO_NAMES)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_name_is_rejected_in_our_words(client, call, name):
    """Text that is no Unicode, another type, nothing at all and far too much."""
    with pytest.raises(StrandlineError) as rejection:
        CALLS[call](client, name)
    assert not rejection.value.retriable


async def append_async(client, timeout_s):
    async with await strandline.connect_async(client.address) as other:
        await other.append("s", b"v", timeout_s=timeout_s)


def poll(client, timeout_s):
    with client.consumer("poll", "s") as consumer:
        consumer.poll(timeout_s)


def publish(client, refs=(), fingerprint=""):
    client.commit_staged("t", 0, refs, fingerprint=fingerprint)


WRONG = {
    "append": lambda client: client.append("s", b"v", timeout_s="5"),
    "append for no time": lambda client: client.append("s", b"v", timeout_s=None),
    "append_batch": lambda client: client.append_batch("s", pa.table({"value": []}), timeout_s="5"),
    "append of asyncio": lambda client: asyncio.run(append_async(client, "5")),
    "poll": lambda client: poll(client, "a"),
    "wait_for": lambda client: client.wait_for("s", 5),
    "wait_for a time": lambda client: client.wait_for("s", {0: 0}, timeout_s="5"),
    "no refs": lambda client: publish(client, None),
    "one ref": lambda client: publish(client, "ref"),
    "refs of bytes": lambda client: publish(client, [b"ref"]),
    "fingerprint": lambda client: publish(client, fingerprint=b"x"),
    "batch": lambda client: client.commit_staged("t", "0", [], fingerprint=""),
}


@pytest.mark.parametrize("call", WRONG)
def test_what_cannot_be_is_rejected_before_anything_is_done(client, call):
    """A TypeError of Python's came when the record was on its way, and bytes went as Base64."""
    before = client.stream_info("s").partitions
    with pytest.raises(InvalidRequestError):
        WRONG[call](client)
    assert client.stream_info("s").partitions == before
    assert client.last_published("t") is None


def test_a_part_counts_the_rows_that_it_has(client):
    """Of data frames, too, and without rejected ones."""
    with client.stage("counted", 0) as stage:
        stage.append_batch("s", pd.DataFrame({"value": [b"a", b"b"]}))
        stage.append("s", b"c")
        with pytest.raises(InvalidRecordError):
            stage.append("s", 5)
        for refused in ([1], pa.table({"valeu": [b"x"]})):
            with pytest.raises(InvalidRecordError):
                stage.append_batch("s", refused)
        part = stage.finish()
    assert part.rows == 3
    client.commit_staged("counted", 0, [part.ref], fingerprint="3")
    assert client.read("s").read_all().column("value").to_pylist() == [b"a", b"b", b"c"]

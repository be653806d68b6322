"""Names that cannot be: whoever gives one is told so by an error of ours."""

import pytest

import strandline
from strandline.errors import StrandlineError
from strandline.testing import Server


def commit_positions(client, name):
    with client.transaction("t") as transaction:
        transaction.commit_positions(name, {("s", 0): 1})


def stage_positions(client, name):
    with client.stage("t", 0) as stage:
        stage.commit_positions(name, {("s", 0): 1})


CALLS = {
    "consumer": lambda client, name: client.consumer(name, "s"),
    "streams of a consumer": lambda client, name: client.consumer("g", [name]),
    "instance": lambda client, name: client.consumer("g", "s", instance=name or "\udc80"),
    "groups.info": lambda client, name: client.groups.info(name),
    "groups.positions": lambda client, name: client.groups.positions(name),
    "groups.commit": lambda client, name: client.groups.commit(name, {("s", 0): 1}),
    "groups.commit in": lambda client, name: client.groups.commit("g", {(name, 0): 1}),
    "groups.reset": lambda client, name: client.groups.reset(name, "s", "latest"),
    "groups.delete": lambda client, name: client.groups.delete(name),
    "transaction": lambda client, name: client.transaction(name),
    "commit_positions": commit_positions,
    "staged positions": stage_positions,
    "stage": lambda client, name: client.stage(name, 0),
    "commit_staged": lambda client, name: client.commit_staged(name, "1.2"),
    "publish_staged": lambda client, name: client.publish_staged(name, 0, [], fingerprint=""),
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
def test_what_is_no_name_is_refused_in_our_words(client, call, name):
    """Text that is no Unicode, another type, nothing at all and far too much."""
    with pytest.raises(StrandlineError) as refusal:
        CALLS[call](client, name)
    assert not refusal.value.retriable

"""How far a query has come, noted at a real broker as the positions of a group."""

import threading

import pytest

import strandline
from strandline.errors import UnknownStreamError
from strandline.spark.connection import forget_client
from strandline.spark.options import parse_read_options
from strandline.spark.progress import QueryProgress, failure_noted
from strandline.testing import Server


@pytest.fixture
def broker():
    """A broker with a stream, and a client of it."""
    with Server() as url, strandline.connect(url) as client:
        client.create_stream("orders", partitions=2)
        yield str(url), client
        forget_client(str(url))


def progress(url, **options):
    """Of a query that reads ``orders``."""
    values = {"server": url, "stream": "orders", **options}
    return QueryProgress(parse_read_options(values, streaming=True))


def test_what_a_query_has_reached_is_the_position_of_its_group(broker):
    """The last offset of each partition counts; a query without a group commits nothing."""
    url, client = broker
    query = progress(url, group="a copy")
    query.reached({0: 3, 1: 0})
    query.reached({0: 5, 1: 2})
    progress(url).reached({0: 9, 1: 9})
    assert client.groups.committed_offsets("a copy") == {("orders", 0): 5, ("orders", 1): 2}
    assert [group.group for group in client.groups.list()] == ["a copy"]


def test_the_error_that_ends_a_pipeline_is_shown_until_it_runs_again(broker):
    """In each of its groups; that it cannot be noted hides no error, nor does a stop."""
    url, client = broker
    stop = threading.Event()
    with pytest.raises(UnknownStreamError), failure_noted(url, ["a copy", "a load"], stop):
        raise UnknownStreamError("no stream 'orders'")
    assert [client.groups.info(each).metadata for each in ("a copy", "a load")] == [
        "no stream 'orders'"
    ] * 2
    progress(url, group="a copy").reached({0: 3})
    assert client.groups.info("a copy").metadata == ""
    with failure_noted(url, ["a load", "a fresh one"], stop):
        assert client.groups.info("a load").metadata == ""
    assert "a fresh one" not in {each.group for each in client.groups.list()}
    with pytest.raises(UnknownStreamError), failure_noted(url, ["x" * 4000], stop):
        raise UnknownStreamError("no stream 'orders'")
    with pytest.raises(ZeroDivisionError), failure_noted(url, ["a load"], stop):
        1 / 0  # noqa: B018 - a fault of ours
    assert client.groups.info("a load").metadata == "ZeroDivisionError('division by zero')"
    with failure_noted(url, ["a load"], stop):
        pass
    stop.set()
    with pytest.raises(UnknownStreamError), failure_noted(url, ["a load"], stop):
        raise UnknownStreamError("no stream 'orders'")
    assert client.groups.info("a load").metadata == ""


def test_the_same_place_is_noted_once(broker):
    """An idle query, which asks for records all the time, writes nothing."""
    url, client = broker
    query = progress(url, group="a copy")
    query.reached({0: 3})
    client.groups.delete("a copy")
    query.reached({0: 3})
    assert client.groups.list() == []


def test_a_query_that_may_not_note_continues_without(broker):
    """A group with members takes no positions from others: the query is not ended, and stops
    asking.
    """
    url, client = broker
    query = progress(url, group="billing")
    with client.consumer("billing", ["orders"], commit_interval_s=None) as consumer:
        consumer.poll(0)
        query.reached({0: 3})
    query.reached({0: 4})
    assert client.groups.committed_offsets("billing") == {}

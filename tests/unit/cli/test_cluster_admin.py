"""Cluster commands of the CLI: checks before any request is sent."""

import pytest
from typer.testing import CliRunner

from strandline.api.cluster import CopiesInfo
from strandline.cli.app import app
from strandline.cli.cluster import of_stream
from strandline.cli.replicas import lags
from strandline.errors import UnknownStreamError
from strandline.testing import Server

NOBODY = "127.0.0.1:9"


def run(*words, server=NOBODY, stdin=None):
    return CliRunner().invoke(app, ["cluster", *words, "--server", server], input=stdin)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("add", "4"), "not ID=HOST:PORT"),
        (("add", "0=host:1"), "not ID=HOST:PORT"),
        (("add", "4=host"), "not ID=HOST:PORT"),
        (("reassign", "s", "--to", "1,,2"), "not a list of brokers"),
        (("reassign", "s", "--to", "a"), "not a list of brokers"),
    ],
)
def test_what_cannot_be_meant_is_rejected_before_asking(words, reason):
    """No broker runs here, and none is needed to say so."""
    done = run(*words)
    assert done.exit_code == 1
    assert reason in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("add", "4=h:1"),
        ("drain", "1"),
        ("undrain", "1"),
        ("remove", "1", "--yes"),
        ("replace-disk", "1", "--yes"),
        ("reassign", "s"),
        ("rebalance",),
        ("elect", "s", "--leader", "1"),
    ],
)
def test_a_broker_that_stands_alone_has_no_cluster(url, words):
    """It says so, and where to read on."""
    done = run(*words, server=url)
    assert done.exit_code == 1
    assert "not part of a cluster" in done.stderr


def test_an_unclean_election_is_announced_loudly(url):
    """A warning comes before the command; programs and --yes are not asked."""
    done = run("elect", "s", "--leader", "1", "--unclean", "--yes", server=url)
    assert "RECORDS MAY BE LOST" in done.stderr


@pytest.fixture(scope="module")
def url():
    with Server() as url:
        yield url


def test_how_far_copies_are_behind():
    """Compared with the leader's end; unknown where a broker did not answer."""
    part = CopiesInfo(
        stream="s", partition=0, leader=1, leader_epoch=0, replicas=(1, 2, 3), isr=(1, 2)
    )
    ends = {1: {("s", 0): 10}, 2: {("s", 0): 7}}
    assert lags(part, ends) == {1: 0, 2: 3, 3: None}
    assert lags(part, {}) == {1: None, 2: None, 3: None}


def test_the_status_of_a_stream_that_is_not_there_is_an_error():
    """A name that is written wrong must not look like a stream that lacks nothing."""
    part = CopiesInfo(
        stream="s", partition=0, leader=1, leader_epoch=0, replicas=(1, 2, 3), isr=(1, 2)
    )
    assert of_stream([part], "s") == of_stream([part], None) == [part]
    assert of_stream([], None) == []
    with pytest.raises(UnknownStreamError, match="no stream 't'; there are: s"):
        of_stream([part], "t")

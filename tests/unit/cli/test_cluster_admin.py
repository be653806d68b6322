"""Cluster commands of the CLI: checks before any request is sent."""

import contextlib
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from strandline.api.cluster import ClusterStatus, CopiesInfo
from strandline.cli import cluster_admin
from strandline.cli.app import app
from strandline.cli.cluster import of_stream
from strandline.cli.output import OutputFormat
from strandline.cli.replicas import lags
from strandline.errors import UnavailableError, UnknownStreamError
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
    assert "not part of a cluster: 'strandline top' shows one alone" in done.stderr


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
    assert of_stream([part], "t", is_current=False) == [], "a broker that lacks it may be behind"


@pytest.mark.parametrize(
    ("controller", "age_ms", "told"),
    [
        (None, 4000, "broker 1 has had no controller for 4 s"),
        (2, 1, "broker 1 has not received the metadata since its start"),
    ],
)
def test_an_old_status_does_not_say_that_there_is_no_stream(monkeypatch, controller, age_ms, told):
    """It is shown, and ends with an error for which others are asked."""
    status = ClusterStatus(
        cluster="c", broker=1, controller=controller, brokers=(), partitions=(), age_ms=age_ms
    )

    @contextlib.contextmanager
    def connected(*_, **__):
        yield SimpleNamespace(action=lambda *_: [status])

    monkeypatch.setattr(cluster_admin, "connected", connected)
    done = run("status", "--stream", "orders")
    assert done.exit_code == 1
    assert told in done.stderr
    assert "(unavailable)" in done.stderr
    assert "no stream" not in done.stderr


def part(number, *, stranded=False, adding=()):
    """A partition that has to move."""
    return CopiesInfo(
        stream="s",
        partition=number,
        leader=1,
        leader_epoch=1,
        replicas=(1, 2),
        isr=(1, 2),
        adding=adding,
        is_stranded=stranded,
    )


def watched(monkeypatch, *rounds):
    """Watch partitions move; each round has those that are left."""
    left = [SimpleNamespace(partitions=each) for each in rounds]
    monkeypatch.setattr(cluster_admin, "POLL_S", 0)
    monkeypatch.setattr(cluster_admin, "_status", lambda _: left.pop(0))
    monkeypatch.setattr(cluster_admin, "log_ends", lambda *_: {})
    monkeypatch.setattr(cluster_admin, "lags", lambda *_: {2: 7, 3: 1200, 4: None})
    cluster_admin._watch(None, lambda _: True, OutputFormat.text)
    assert not left


def test_moves_are_watched_to_their_end(monkeypatch, capsys):
    """A line for each change, the last one with nothing left."""
    three, two = [part(0), part(1), part(2, adding=(2, 3, 4))], [part(0), part(1)]
    watched(monkeypatch, three, three, two, [])
    assert capsys.readouterr().out.splitlines() == [
        "3 partitions left, 1 of them moving, 1,200 records to copy",
        "2 partitions left, 0 of them moving, 0 records to copy",
        "0 partitions left, 0 of them moving, 0 records to copy",
    ]
    watched(monkeypatch, [])
    assert capsys.readouterr().out == "", "there was nothing to do"


def test_partitions_that_nobody_can_take_end_the_watch(monkeypatch, capsys):
    """Only if all that are left are such; it says what to do."""
    some = [part(0, stranded=True), part(1)]
    with pytest.raises(UnavailableError, match="no broker can take 2 partitions, such as s/0"):
        watched(monkeypatch, some, some, [part(0, stranded=True), part(1, stranded=True)])
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_broker_that_is_silent_is_asked_again(monkeypatch):
    """For a minute; then the error is told."""
    monkeypatch.setattr(cluster_admin, "POLL_S", 0)
    answers = [UnavailableError("starting"), UnavailableError("starting"), ["the status"]]

    def action(*_):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    connection = SimpleNamespace(action=action)
    assert cluster_admin._status(connection) == "the status"
    answers[:] = [UnavailableError("gone")] * 3
    monkeypatch.setattr(cluster_admin, "SILENCE_S_MAX", -1)
    with pytest.raises(UnavailableError, match="gone"):
        cluster_admin._status(connection)
    assert len(answers) == 2

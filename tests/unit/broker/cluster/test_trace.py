"""Traces of real brokers: vector clocks on the links, and what they prove."""

import re
from types import SimpleNamespace

import pytest

from strandline.broker.cluster.trace import open_trace, take_clock
from strandline.core.replication.trace import Trace
from strandline.errors import InvalidConfigError, InvalidRecordError
from strandline.testing.shiviz import check_clocks, read_trace


async def test_a_commit_is_after_every_copy_of_it(cluster):
    """A leader's commit comes after every in-sync replica's sync in the clocks."""
    files = {number: cluster.tmp_path / f"trace-{number}" for number in (1, 2, 3)}
    cluster.tls = {number: {"trace": str(file)} for number, file in files.items()}
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("a", "b", "c")
    await cluster.agree(["a", "b", "c"])
    leader = await cluster.leader()
    await cluster.kill(leader)
    await cluster.put("d")
    events = [e for file in files.values() for e in read_trace(file.read_text().splitlines())]
    check_clocks(events)
    hosts = {event.host for event in events}
    assert hosts == {"broker-1.1", "broker-2.1", "broker-3.1"}
    commits = [e for e in events if e.host == f"broker-{leader}.1" and "commits to 3" in e.what]
    assert len(commits) == 1
    for host in hosts:
        synced = [
            e
            for e in events
            if e.host == host and int((re.findall(r"synced to (\d+)", e.what) or [0])[-1]) >= 3
        ]
        assert commits[0].knows(synced[0]), host
    assert any(e.host != commits[0].host and ": leads" in e.what for e in events)


def test_what_is_no_clock_is_rejected():
    """It comes from a peer; the trace goes on without it."""
    events = []
    trace = Trace("broker-1.1", events.append)
    take_clock(trace, SimpleNamespace(header=b"\x81\xa1b\x05"))
    for header in (b"", b"\xc1", b"\x93", b"\x81\x01\x02"):
        with pytest.raises(InvalidRecordError, match="not a clock"):
            take_clock(trace, SimpleNamespace(header=header))


def test_a_trace_needs_a_file_that_can_be_written(tmp_path):
    """The error names the setting; without a path there is no trace."""
    assert open_trace("", "broker-1.1") is None
    with pytest.raises(InvalidConfigError, match=r"cluster\.trace"):
        open_trace(str(tmp_path / "missing" / "trace"), "broker-1.1")

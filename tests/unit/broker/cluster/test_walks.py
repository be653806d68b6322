"""The walks of docs/explanation/walks.md, against traces of real requests."""

import re
import socket
import sys
import threading
from pathlib import Path

import pytest

import strandline
from strandline.reading.cursor import Cursor
from strandline.servers.flight.server import FlightServer
from strandline.testing import Server

SOURCE = Path(strandline.__file__).parents[1]
PAGE = Path(__file__).parents[4] / "docs/explanation/walks.md"
STEP = re.compile(r"^\d+\. \[`([\w.]+)`\]\(([^)]+)\)", re.MULTILINE)


class Trace:
    """Our functions in the order in which they are called, on every thread that is traced."""

    def __init__(self):
        self.calls = []
        self.is_on = False

    def note(self, frame, event, _):
        """Note a call, as ``sys.setprofile`` reports it."""
        if self.is_on and event == "call":
            code = frame.f_code
            self.calls.append((Path(code.co_filename), code.co_qualname))

    def during(self, request):
        """Call ``request`` and return the functions called meanwhile."""
        self.calls.clear()
        self.is_on = True
        request()
        self.is_on = False
        return list(self.calls)


@pytest.fixture
def trace():
    made = Trace()
    threading.setprofile(made.note)
    yield made
    threading.setprofile(None)
    sys.setprofile(None)


def steps(title):
    """The functions of a walk: file and qualified name."""
    [section] = [s for s in PAGE.read_text().split("\n## ") if s.startswith(title)]
    return [((PAGE.parent / link).resolve(), name) for name, link in STEP.findall(section)]


def check_walk(title, calls):
    """Every function of the walk is called, each after the one before it."""
    remaining = iter(calls)
    walk = steps(title)
    assert len(walk) > 5
    for step in walk:
        assert step in remaining, f"{step[1]} is not called, or not after the step before it"


def traced(method, trace):
    """Trace a method that Arrow's threads call, which ``threading`` does not know."""

    def call(*arguments):
        sys.setprofile(trace.note)
        return method(*arguments)

    return call


def test_a_publish_takes_the_walk(trace):
    """From the socket to the PubAck."""
    with Server(nats=True) as url:
        with strandline.connect(url) as client:
            client.create_stream("orders", subject="orders")
        host, port = url.ingest_url.removeprefix("nats://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as publisher:
            publisher.sendall(b'CONNECT {"verbose":false}\r\nSUB _INBOX.a.* 1\r\n')

            def publish():
                publisher.sendall(b"PUB orders _INBOX.a.1 5\r\nhello\r\n" * 3)
                received = b""
                while received.count(b'"seq"') < 3:
                    received += publisher.recv(4096)

            publish()  # the route of a subject is looked up once
            calls = trace.during(publish)
    check_walk("A publish", calls)


async def test_a_replicated_append_takes_the_walk(cluster, trace):
    """From the leader to the followers and back."""
    await cluster.start(1, 2, 3)
    await cluster.create()
    await cluster.put("first")
    sys.setprofile(trace.note)
    trace.is_on = True
    await cluster.put("second")
    trace.is_on = False
    check_walk("A replicated append", trace.calls)


def test_a_client_read_takes_the_walk(trace, monkeypatch):
    """From the client to the broker's log and back."""
    for owner, name in ((FlightServer, "do_get"), (Cursor, "read")):
        monkeypatch.setattr(owner, name, traced(getattr(owner, name), trace))
    with Server(nats=False) as url, strandline.connect(url) as client:
        client.create_stream("orders", subject="orders")
        client.append("orders", b"hello")
        sys.setprofile(trace.note)
        calls = trace.during(lambda: client.read("orders").read_all())
    check_walk("A read", calls)

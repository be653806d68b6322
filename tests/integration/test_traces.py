"""The documented trace of a real cluster: processes share a file, and its clocks are right."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import strandline
from strandline.errors import StrandlineError, StreamExistsError
from strandline.testing.shiviz import check_clocks, read_trace

PAGE = Path(__file__).parents[2] / "docs" / "traces.md"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def ready(tmp_path):
    """The ready lines of three brokers that ``strandline dev`` runs, all tracing to one file."""
    words = ["dev", "--nodes", "3", "--port-base", "0", "--output", "json", "--data-dir", "data"]
    process = subprocess.Popen(
        [sys.executable, "-m", "strandline.cli", *words],
        cwd=tmp_path,
        env={**os.environ, "STRANDLINE_CLUSTER__TRACE": str(tmp_path / "dev.trace")},
        stdout=subprocess.PIPE,
        text=True,
    )
    giving_up = threading.Timer(90, process.terminate)
    giving_up.start()
    try:
        yield [json.loads(process.stdout.readline()) for _ in range(3)]
    finally:
        giving_up.cancel()
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


def persist(attempt):
    """Try until it works, as a client with retries does."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return attempt()
        except StrandlineError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def append(ready, value):
    """Append at whichever broker leads."""

    def attempt():
        for each in ready:
            try:
                with strandline.connect(f"127.0.0.1:{each['flight_port']}") as client:
                    return client.append("orders", value, timeout_s=3)
            except StrandlineError as error:
                last = error
        raise last

    return persist(attempt)


def documented():
    """Return the page's example of a real cluster, without its numbers."""
    _, _, text = PAGE.read_text().partition("## Real clusters")
    shown = re.search(r"```text\n(.*?)```", text, re.DOTALL).group(1)
    return {nameless(event.what) for event in read_trace(shown.splitlines())}


def nameless(what):
    """An event's words, which partition and which numbers it has left out."""
    return re.sub(r"\d+", "n", what)


def test_brokers_of_a_cluster_share_a_trace(ready, tmp_path):
    """The file has an election and the later writes, in causal order."""

    def create():
        with (
            strandline.connect(f"127.0.0.1:{ready[0]['flight_port']}") as client,
            contextlib.suppress(StreamExistsError),  # an attempt whose answer was lost
        ):
            client.create_stream(
                "orders", subject="orders", replicas=3, min_isr=2, acks="replicated"
            )

    persist(create)
    append(ready, "before")
    events = read_trace((tmp_path / "dev.trace").read_text().splitlines())
    first = next(event for event in events if ": leads" in event.what)
    number = int(first.host.removeprefix("broker-").partition(".")[0])
    victim = next(each for each in ready if each["broker_id"] == number)
    os.kill(victim["pid"], signal.SIGKILL)
    append([each for each in ready if each is not victim], "after")
    events = read_trace((tmp_path / "dev.trace").read_text().splitlines())
    check_clocks(events)
    elected = [event for event in events if ": leads" in event.what]
    assert {event.host for event in elected} > {first.host}
    written = next(e for e in events if e.host != first.host and ": appends" in e.what)
    assert written.knows(first)
    assert documented() <= {nameless(event.what) for event in events}

"""The parts of the demo that need neither Spark nor a broker."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from strandline.errors import DataLossError, InvalidRequestError, UnavailableError
from strandline.spark.demo import check, flights
from strandline.spark.demo.chart import text_chart
from strandline.spark.demo.processes import Child
from strandline.spark.demo.progress import DemoProgress
from strandline.spark.demo.publisher import FlightPublisher
from strandline.spark.demo.runner import DemoRunner, own_directory, run_demo

HPUB = re.compile(rb"HPUB (\S+) (\S+) (\d+) (\d+)\r\n")


class FakeNats(threading.Thread):
    """Answers publishes from a script: ``ack``, ``none`` (no responder) or ``drop``."""

    def __init__(self, script):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.script = script
        self.stored = {}
        self.received = 0

    @property
    def address(self):
        return self.listener.getsockname()

    def run(self):
        while True:
            try:
                link, _ = self.listener.accept()
            except OSError:
                return
            with link:
                self.serve(link)

    def serve(self, link):
        buffer = b""
        while data := link.recv(65536):
            buffer += data
            while found := HPUB.search(buffer):
                end = found.end() + int(found[4]) + 2
                if len(buffer) < end:
                    break
                body, buffer = buffer[found.end() : end - 2], buffer[end:]
                if not self.answer(link, found, body):
                    return

    def answer(self, link, found, body):
        """Answer one publish; False drops the connection."""
        self.received += 1
        verdict = self.script(self.received)
        message_id = re.search(rb"Nats-Msg-Id: (\S+)", body)[1]
        if verdict == "drop":
            return False
        if verdict == "none":
            status = b"NATS/1.0 503\r\n\r\n"
            link.sendall(
                b"HMSG %b 1 %d %d\r\n%b\r\n" % (found[2], len(status), len(status), status)
            )
            return True
        duplicate = message_id in self.stored
        self.stored[message_id] = body[int(found[3]) :]
        ack = json.dumps({"stream": "s", "seq": 1, "duplicate": duplicate}).encode()
        link.sendall(b"MSG %b 1 %d\r\n%b\r\n" % (found[2], len(ack), ack))
        return verdict != "ack and drop"


def published(script, count=3000):
    """Publish ``count`` messages to a fake; returns the publisher and the fake."""
    nats = FakeNats(script)
    nats.start()
    publisher = FlightPublisher(
        nats.address,
        (flights.FlightMessage("a.b", b"%d" % n, f"m{n}") for n in range(count)),
    )
    publisher.allow(count + 1)
    publisher.start()
    publisher.join(30)
    nats.listener.close()
    assert publisher.failure is None
    assert publisher.is_done
    assert nats.stored == {b"m%d" % n: b"%d" % n for n in range(count)}
    return publisher


def test_every_message_is_acknowledged():
    """Without trouble each message goes out once."""
    publisher = published(lambda number: "ack")
    assert (publisher.acked, publisher.resent) == (3000, 0)


def test_a_broken_connection_sends_the_unanswered_again():
    """Unacknowledged messages are sent again under their id, and repeats are counted."""
    publisher = published(lambda n: {700: "drop", 1500: "ack and drop"}.get(n, "ack"))
    assert publisher.acked == 3000
    assert publisher.reconnects == 2
    assert publisher.resent > 0


def test_messages_that_nobody_took_go_out_again():
    """Without a subscriber nothing counts and nothing is lost."""
    publisher = published(lambda n: "none" if n <= 500 else "ack", count=1000)
    assert publisher.acked == 1000
    assert publisher.resent >= 500


def test_nothing_goes_out_beyond_the_limit():
    """The publisher waits at the message that was allowed last."""
    nats = FakeNats(lambda number: "ack")
    nats.start()
    messages = [flights.FlightMessage("a", b"x", f"m{n}") for n in range(100)]
    publisher = FlightPublisher(nats.address, messages)
    publisher.allow(40)
    publisher.start()
    deadline = time.monotonic() + 60
    while publisher.acked < 40 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert publisher.acked == 40
    publisher.stop()
    publisher.join(60)
    assert not publisher.is_done


def test_the_data_set_is_the_whole_year():
    """All 336,776 flights are there, with missing values as nulls and row numbers as ids."""
    table = flights.load_flights()
    assert table.num_rows == 336_776
    assert table.column_names == list(flights.COLUMNS)
    assert table["dep_time"].null_count == 8255
    assert table["id"].to_pylist()[:3] == [0, 1, 2]


def test_messages_come_in_the_order_of_time():
    """Flights are published by scheduled hour, each on the subject of its origin and carrier."""
    sample = flights.load_flights(2000)
    rows = [json.loads(message.payload) for message in flights.messages(sample)]
    assert [row["time_hour"] for row in rows] == sorted(row["time_hour"] for row in rows)
    assert sorted(row["id"] for row in rows) == list(range(2000))
    first = next(flights.messages(sample))
    assert re.fullmatch(r"flights\.(EWR|JFK|LGA)\.\w\w", first.subject)


def test_the_comparison_finds_any_difference():
    """A changed value, a missing row and a repeated row are each found and named."""
    wanted = flights.load_flights(100)
    check.check_equal(wanted, wanted, what="flight", key="id")
    changed = wanted.set_column(0, "id", pa.array([*range(50), 999, *range(51, 100)], pa.int32()))
    with pytest.raises(DataLossError, match="column id differs at flight in row 50: 999"):
        check.check_equal(changed, wanted, what="flight", key="id")
    with pytest.raises(DataLossError, match="99 rows are there, 100 should be"):
        check.check_equal(wanted.slice(0, 99), wanted, what="flight", key="id")
    doubled = pa.concat_tables([wanted.slice(0, 10), wanted.slice(9)])
    with pytest.raises(DataLossError, match="in row 10: 9 instead of 10"):
        check.check_equal(doubled, wanted, what="flight", key="id")


def test_expected_delays_add_up():
    """The sums per hour and carrier are those of the source as a whole."""
    table = flights.load_flights(5000)
    sums = check.expected_delays(table)
    assert sum(sums["flights"].to_pylist()) == 5000
    delays = [d for d in table["dep_delay"].to_pylist() if d is not None]
    assert sum(filter(None, sums["dep_delay_sum"].to_pylist())) == sum(delays)
    assert sum(sums["departed"].to_pylist()) == len(delays)


def test_the_chart_shows_each_hour():
    """The terminal gets a bar for each hour, the longest for the largest mean."""
    delays = pa.table(
        {
            "carrier": ["AA", "UA", "AA"],
            "local_hour": [5, 5, 6],
            "departed_sum": [10, 10, 10],
            "dep_delay_sum_sum": [100, 300, 50],
        }
    )
    lines = text_chart(delays).splitlines()
    assert lines[1].split()[:2] == ["05:00", "20.0"]
    assert lines[1].count("█") == 40
    assert lines[2].count("█") == 10


def test_progress_is_shown_on_terminals_and_in_files():
    """A terminal gets one changing line, a file a line from time to time."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for out, sign in ((Terminal(), "\r"), (io.StringIO(), "published 5")):
        progress = DemoProgress(out)
        progress.show(published=5, landed=3, counted=2, total=10)
        progress.say("done")
        assert sign in out.getvalue()
        assert out.getvalue().endswith("done\n")


def test_only_its_own_directory_is_emptied(tmp_path):
    """A directory of an earlier run is emptied, one with other files is rejected."""
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(InvalidRequestError, match="not the demo's"):
        prepare(tmp_path)
    with own_directory(tmp_path / "new") as first:
        (first / "records").mkdir()
    with own_directory(tmp_path / "new") as second:
        assert not (second / "records").exists()


def test_the_directory_of_a_demo_that_runs_is_left_alone(tmp_path):
    """A second one says so, instead of removing the log under the first; then it is free again."""
    with own_directory(tmp_path / "d") as first:
        (first / "records").mkdir()
        with pytest.raises(InvalidRequestError, match=r"a demo runs in .*another directory"):
            prepare(tmp_path / "d")
        assert (first / "records").exists()
    prepare(tmp_path / "d")


def test_without_java_the_demo_ends_before_it_begins(tmp_path, monkeypatch):
    """It names what is missing, and has changed nothing."""
    monkeypatch.setattr("strandline.spark.java._candidates", lambda: iter(()))
    with pytest.raises(UnavailableError, match="Java 17"):
        run_demo(tmp_path / "d", flights_max=10, out=io.StringIO())
    assert not (tmp_path / "d").exists()


def prepare(directory):
    """Take a directory for a demo, and leave it."""
    with own_directory(directory):
        pass


def test_a_killed_child_takes_its_group_along(tmp_path):
    """SIGKILL reaches the children of a child as well."""
    script = (
        "import json, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(json.dumps({'event': 'up', 'pid': child.pid}), flush=True)\n"
        "time.sleep(60)\n"
    )
    child = Child([sys.executable, "-c", script], log=tmp_path / "child.log")
    grandchild = child.wait_for("up", timeout_s=60)["pid"]
    child.kill()
    assert not child.is_running
    deadline = time.monotonic() + 60
    while is_alive(grandchild):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_child_dies_with_its_parent(tmp_path):
    """When the parent is killed, Linux kills the child, whatever it was doing."""
    script = (
        "import pathlib, sys, time\n"
        "from strandline.spark.demo.processes import Child\n"
        "child = Child([sys.executable, '-c', 'import time; time.sleep(60)'], "
        f"log=pathlib.Path({str(tmp_path / 'log')!r}))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as parent:
        pid = int(parent.stdout.readline())
        time.sleep(0.5)
        assert is_alive(pid)
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_child_that_ends_early_says_why(tmp_path):
    """Waiting for a line of a child that failed gives the end of its log."""
    child = Child(
        [sys.executable, "-c", "import sys; sys.exit('no such stream')"],
        log=tmp_path / "child.log",
    )
    with pytest.raises(UnavailableError, match="no such stream"):
        child.wait_for("ready", timeout_s=60)
    child.kill()


JAVA_TRACE = """java.lang.IllegalStateException: Illegal size 5 of collection
\tat org.apache.spark.Executor.run(Executor.scala:12)
Caused by: java.io.EOFException: the worker is gone
\tat java.base/java.lang.Thread.run(Thread.java:840)
\t... 7 more
"""


def test_a_job_that_dies_by_itself_shows_no_stack_trace(tmp_path, monkeypatch):
    """It is started again, and its log has the trace; given up, the causes are shown."""
    out = io.StringIO()
    runner = DemoRunner(tmp_path, flights.load_flights(1), progress=DemoProgress(out))
    log = tmp_path / "spark.log"
    dies = [sys.executable, "-c", f"import sys; sys.exit({JAVA_TRACE!r})"]
    starts = []

    def start(what):
        starts.append(what)
        runner._job = Child(dies, log=log)

    monkeypatch.setattr(runner, "_start_job", start)
    runner._start_job("the first time")
    with pytest.raises(UnavailableError, match=r"java\.io\.EOFException") as given_up:
        runner._wait(lambda: False, "it is given up")
    runner._job.kill()
    assert len(starts) > 2
    assert log.read_text().count(JAVA_TRACE) == len(starts)
    assert out.getvalue().count("the Spark job ended unexpectedly; see") == len(starts) - 1
    for shown in (out.getvalue(), given_up.value.message):
        assert not re.search(r"^\s+(at|\.\.\.) ", shown, re.MULTILINE)


def is_alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False

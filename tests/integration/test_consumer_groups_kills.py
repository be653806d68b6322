"""Consumer groups under kill -9: of members, of a broker alone, of the coordinator's broker.

Members are processes of their own that write down every record before they poll on. Judged: each
record is consumed by some member, committed positions never go back, and whoever keeps a partition
is never stopped.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

import strandline
from strandline.api.groups import GROUPS_STREAM
from strandline.errors import StrandlineError
from strandline.testing import ProcessServer
from strandline.types import PartitionName
from tests.kit.clusters import three_brokers
from tests.kit.waiting import until as wait_until

PATIENCE_S = 90
PARTITIONS = 6
IDS = (1, 2, 3)
KILLS = int(os.environ.get("KILLS", "1"))
"""How often the coordinator's broker is killed."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 60 * KILLS)]

MEMBER = """
import json, sys
import strandline

address, path, instance = sys.argv[1:]
events = open(path, "a", buffering=1)

def say(**event):
    events.write(json.dumps(event) + "\\n")

def changed(what):
    return lambda _, partitions: say(event=what, partitions=sorted(n for _, n in partitions))

with strandline.connect(address, timeout_s=30) as client:
    with client.consumer(
        "g",
        "s",
        instance=instance,
        session_timeout_s=6.0,
        commit_interval_s=0.1,
        on_assigned=changed("assigned"),
        on_revoked=changed("revoked"),
    ) as consumer:
        while True:
            for batch in consumer.poll(0.5):
                values = [int(value) for value in batch.records.column("value").to_pylist()]
                say(event="records", partition=batch.partition, values=values)
"""


class Member:
    """A consumer process, and its output."""

    def __init__(self, folder, name, address, *, instance=""):
        self.path = Path(folder) / f"{name}.jsonl"
        self.path.touch()
        self.errors = Path(folder) / f"{name}.err"
        with self.errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", MEMBER, address, str(self.path), instance], stderr=errors
            )

    def kill(self):
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def events(self):
        """Return the complete lines; a kill may tear the last one."""
        found = []
        for line in self.path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def consumed(self):
        return {value for each in self.events() for value in each.get("values", ())}

    def has(self):
        """Return its partitions, as it reported them."""
        found = set()
        for each in self.events():
            if each["event"] == "assigned":
                found |= set(each["partitions"])
            elif each["event"] == "revoked":
                found -= set(each["partitions"])
        return found


class Load:
    """Publishes numbers to all partitions, each until it is acked."""

    def __init__(self, address):
        self.acked = set()
        self._is_over = threading.Event()
        self._address = address
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        number = 0
        with strandline.connect(self._address, timeout_s=30) as client:
            while not self._is_over.is_set():
                with contextlib.suppress(StrandlineError):
                    client.append("s", str(number), partition=number % PARTITIONS)
                    self.acked.add(number)
                    number += 1

    def stop(self):
        self._is_over.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.acked


class Watch:
    """Looks at committed positions all the time: they must never go back."""

    def __init__(self, address):
        self.seen = {}
        self.went_back = []
        self.looks = 0
        self._is_over = threading.Event()
        self._address = address
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        with strandline.connect(self._address, timeout_s=30) as client:
            while not self._is_over.wait(0.05):
                with contextlib.suppress(StrandlineError):
                    self._look(client.groups.committed_offsets("g"))

    def _look(self, positions):
        for name, offset in positions.items():
            if offset < self.seen.get(name, 0):
                self.went_back.append((name, self.seen[name], offset))
            self.seen[name] = offset
        self.looks += 1

    def stop(self):
        self._is_over.set()
        self._thread.join(PATIENCE_S)
        assert self.looks > 3, "it saw something"
        assert self.went_back == []


until = partial(wait_until, seconds=PATIENCE_S)


def shared_by(*members):
    """Whether these have all partitions among them, each its share."""
    parts = [member.has() for member in members]
    sizes = [len(part) for part in parts]
    whole = set().union(*parts) == set(range(PARTITIONS)) and sum(sizes) == PARTITIONS
    return whole and max(sizes) - min(sizes) <= 1


def create(address, **settings):
    def attempt():
        try:
            with strandline.connect(address) as client:
                client.create_stream("s", partitions=PARTITIONS, **settings)
        except strandline.errors.StreamExistsError:
            return True
        except StrandlineError:
            return False
        return True

    until(attempt, "the stream is created")


@pytest.fixture
def members(tmp_path):
    made = []

    def start(name, address, **options):
        made.append(Member(tmp_path, name, address, **options))
        return made[-1]

    yield start
    for member in made:
        member.kill()
        print(member.path.name, member.errors.read_text())  # noqa: T201 - if it fails


def test_killed_members_lose_no_record_and_stop_nobody(tmp_path, members):
    """A member and then the broker are killed: all is consumed, and other shares stay."""
    server = ProcessServer(tmp_path / "broker", arguments=("--http-port", "-1"))
    with server:
        address = server.flight
        create(address)
        load, watch = Load(address), Watch(address)
        ann, bob, cat = (members(name, address) for name in ("ann", "bob", "cat"))
        until(lambda: shared_by(ann, bob, cat), "three share")
        kept = ann.has()
        bob.kill()
        until(lambda: shared_by(ann, cat), "two share what three had")
        assert kept <= ann.has()
        revoked = [each for each in ann.events() if each["event"] == "revoked"]
        count = len(revoked)
        before = len(ann.consumed())
        server.restart()
        until(lambda: len(ann.consumed()) > before, "it goes on after the restart")
        dan = members("dan", address)
        until(lambda: shared_by(ann, cat, dan), "three share again")
        gone = [set(e["partitions"]) for e in ann.events() if e["event"] == "revoked"][count:]
        assert sum(map(len, gone)) == 1, "one moved to the new member, the others were left alone"
        acked = load.stop()
        everybody = (ann, bob, cat, dan)
        until(
            lambda: acked <= set().union(*(m.consumed() for m in everybody)),
            "every acked record is consumed",
        )
        watch.stop()


@pytest.fixture
def cluster(tmp_path):
    """Three brokers without HTTP."""
    with three_brokers(tmp_path) as servers:
        yield servers


def coordinator_of(cluster):
    """Which broker coordinates."""
    for server in cluster.values():
        if server.is_running:
            with contextlib.suppress(StrandlineError), strandline.connect(server.flight) as client:
                leader = client.stream_info(GROUPS_STREAM).partitions[0].leader
                found = [n for n, s in cluster.items() if s.is_running and s.flight == leader]
                if found:
                    return found[0]
    return None


def test_the_coordinators_broker_is_killed(cluster, members):
    """No member's share moves, and no record is skipped."""
    address = ",".join(server.flight for server in cluster.values())
    create(address, replicas=3, min_isr=2, acks="replicated")
    load, watch = Load(address), Watch(address)
    ann, bob = members("ann", address), members("bob", address)
    until(lambda: shared_by(ann, bob), "two share")
    shares = ann.has(), bob.has()
    for _ in range(KILLS):
        until(lambda: coordinator_of(cluster) is not None, "somebody coordinates")
        victim = coordinator_of(cluster)
        cluster[victim].kill()
        seen = watch.looks
        before = len(ann.consumed()), len(bob.consumed())
        until(lambda: coordinator_of(cluster) not in (None, victim), "another coordinates")  # noqa: B023 - used at once
        until(lambda: watch.looks > seen, "positions are read there")  # noqa: B023 - used at once
        until(lambda: len(ann.consumed()) > before[0], "the first goes on")  # noqa: B023 - used at once
        until(lambda: len(bob.consumed()) > before[1], "the second goes on")  # noqa: B023 - used at once
        cluster[victim].start()
    acked = load.stop()
    until(lambda: acked <= ann.consumed() | bob.consumed(), "every acked record is consumed")
    assert (ann.has(), bob.has()) == shares, "no partition moved"
    assert not [e for e in [*ann.events(), *bob.events()] if e["event"] == "revoked"][1:]
    watch.stop()
    with strandline.connect(address) as client:
        assert set(client.groups.committed_offsets("g")) == {
            PartitionName("s", number) for number in range(PARTITIONS)
        }

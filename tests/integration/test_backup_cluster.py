"""Backups of three brokers, taken while they publish and fail, and three new ones made of them."""

import json
import subprocess
import sys
import threading

import pyarrow as pa
import pytest
import yaml

import strandline
from strandline.backup import take
from strandline.backup.directory import BackupDirectory
from strandline.errors import StrandlineError
from strandline.process.ports import free_ports
from strandline.testing import ProcessServer
from tests.kit.clusters import IDS, leader_of, partitions, three_brokers
from tests.kit.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CLI = (sys.executable, "-m", "strandline.cli")


@pytest.fixture
def cluster(tmp_path):
    """Three brokers."""
    with three_brokers(tmp_path / "old", ports=free_ports(3)) as servers:
        yield servers


def run(*arguments, code=0):
    """Run a command as a process; return its last document, or its error."""
    words = [*CLI, *map(str, arguments), "--output", "json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == code, (done.stdout, done.stderr)
    return json.loads((done.stderr if code else done.stdout).splitlines()[-1])


def addresses(servers):
    """All of their addresses, as a client takes them."""
    return ",".join(server.flight for server in servers.values() if server.is_running)


def records(servers, stream):
    """All records of a stream, whole and in order, read at the leaders."""
    columns = ["partition", "offset", "timestamp", "subject", "key", "value", "headers"]
    with strandline.connect(addresses(servers)) as client:
        rows = client.read(stream, columns=columns).read_all()
    rows = rows.set_column(3, "subject", rows["subject"].cast(pa.string()))
    return rows.sort_by([("partition", "ascending"), ("offset", "ascending")])


def settings_of(directory, number, ports):
    """Write the settings file of a new broker; return it."""
    peers = [f"{n}=127.0.0.1:{port}" for n, port in zip(IDS, ports, strict=True)]
    file = directory / f"broker-{number}.yaml"
    cluster = {"broker_id": number, "name": "new", "peers": peers}
    cluster["peer_port"] = ports[IDS.index(number)]
    data_dir = str(directory / f"broker-{number}")
    file.write_text(yaml.safe_dump({"data_dir": data_dir, "cluster": cluster}))
    return file


def start(directory, number):
    """Start a restored broker."""
    arguments = ("--config", str(directory / f"broker-{number}.yaml"), "--ingest-port", "-1")
    return ProcessServer(directory / f"broker-{number}", arguments=arguments).start()


def all_in_sync(servers, stream):
    """Whether every broker has every replica of a stream in sync."""
    found = run("cluster", "status", "--stream", stream, "-s", addresses(servers))
    return all(len(each["isr"]) == len(each["replicas"]) for each in found["partitions"])


def test_three_brokers_from_a_backup_of_three(cluster, tmp_path):
    """Taken while records are published and a leader is killed: nothing acknowledged is missing."""
    backup, new = tmp_path / "backup", tmp_path / "new"
    new.mkdir()
    with strandline.connect(addresses(cluster)) as client:
        client.create_stream("orders", subject="orders.>", partitions=4, replicas=3, min_isr=2)
        client.groups.reset("readers", "orders", "latest")
        schema = [client.schemas.set("orders", text) for text in ("n INT", "n BIGINT, m INT")]
        stop, acked = threading.Event(), [0]

        def publish():
            with client.producer("orders") as producer:
                while not stop.is_set():
                    acks = [producer.append(b"%d" % (acked[0] + n)) for n in range(200)]
                    for ack in acks:
                        ack.result()
                    acked[0] += 200

        publishing = threading.Thread(target=publish)
        publishing.start()
        try:
            until(lambda: acked[0] > 2000)
            run("backup", backup, "-s", addresses(cluster))
            first = acked[0]
            until(lambda: acked[0] > first + 2000)
            victim = leader_of(cluster)
            cluster[victim].kill()
            promised = acked[0]
            done = run("backup", backup, "-s", addresses(cluster))
        finally:
            stop.set()
            publishing.join()
        committed = client.groups.committed_offsets("readers")
    assert done["copied_bytes"] < done["size_bytes"]
    everything = records(cluster, "orders")
    cluster[victim].start()
    with strandline.connect(addresses(cluster)) as client:
        until(lambda: client.create_stream("alone", partitions=3), retried=(StrandlineError,))
        for number in range(100):
            client.append("alone", b"%d" % number, key=b"%d" % number)
    alone = records(cluster, "alone")
    done = run("backup", backup, "-s", addresses(cluster))
    for server in cluster.values():
        server.kill()
    ports = free_ports(len(IDS))
    for number in IDS:
        run("restore", backup, "--config", settings_of(new, number, ports))
    servers = {}
    try:
        for number in (1, 2):
            servers[number] = start(new, number)
        until(lambda: records(servers, "orders").num_rows >= promised, retried=(StrandlineError,))
        servers[3] = start(new, 3)
        found = until(lambda: records(servers, "orders"), retried=(StrandlineError,))
        assert found.equals(everything)
        assert until(lambda: records(servers, "alone"), retried=(StrandlineError,)).equals(alone)
        with strandline.connect(addresses(servers)) as client:
            info = client.stream_info("orders")
            assert (info.config.replicas, info.config.min_isr) == (3, 2)
            assert client.groups.committed_offsets("readers") == committed
            assert client.schemas.list("orders") == schema
            client.append("orders", b"after", timeout_s=30)
        until(lambda: all_in_sync(servers, "orders"))
        servers[1].kill()
        now = until(lambda: records(servers, "orders"), retried=(StrandlineError,))
        assert now.num_rows == everything.num_rows + 1
    finally:
        for server in servers.values():
            server.kill()


@pytest.mark.parametrize("is_recreated", [False, True])
def test_a_stream_that_is_deleted_meanwhile_is_left_out(
    cluster, tmp_path, monkeypatch, *, is_recreated
):
    """Leaders that do not know it, or another one, are asked again only until the timeout."""
    real, deleted = take._Copier.copy_stream, []
    place = BackupDirectory(tmp_path / "backup")
    with (
        strandline.connect(addresses(cluster)) as client,
        strandline.connect(addresses(cluster), timeout_s=5) as impatient,
    ):
        for name in ("kept", "orders"):
            client.create_stream(name, partitions=3, replicas=3)
            client.append(name, b"one", timeout_s=30)
            until(lambda name=name: all(partitions(each, name) for each in cluster.values()))

        def deleting(copier, stream, **options):
            if stream.config.name == "orders" and not deleted:
                deleted.append(client.delete_stream("orders"))
                # A leader that has not heard of it yet would still serve the whole stream.
                until(lambda: not any(partitions(each, "orders") for each in cluster.values()))
                if is_recreated:
                    client.create_stream("orders", partitions=3, replicas=3)
            return real(copier, stream, **options)

        monkeypatch.setattr("strandline.backup.take._Copier.copy_stream", deleting)
        with place.locked():
            done = take.take_backup(impatient.brokers, place, lambda _: None)
            assert done.left_out == ("orders",)
            assert {"kept", "orders"} & set(done.manifest.image.streams) == {"kept"}
            done = take.take_backup(impatient.brokers, place, lambda _: None)
    assert done.left_out == ()
    assert ("orders" in done.manifest.image.streams) is is_recreated


def test_a_broker_that_did_not_restore_is_rejected(tmp_path):
    """It has none of the records that the others count on it for."""
    backup, new = tmp_path / "backup", tmp_path / "new"
    new.mkdir()
    with ProcessServer(tmp_path / "single") as single:
        with strandline.connect(single.flight) as client:
            client.create_stream("orders")
            for number in range(10):
                client.append("orders", b"%d" % number)
        run("backup", backup, "-s", single.flight)
    ports = free_ports(len(IDS))
    files = {number: settings_of(new, number, ports) for number in IDS}
    for number in (1, 2):
        done = run("restore", backup, "--config", files[number], "--replicas", "3")
        assert done["changed_replicas"] == ["orders"]
    servers = {}
    try:
        for number in IDS:
            servers[number] = start(new, number)
        until(lambda: "has another data directory" in "".join(tuple(servers[3].errors)))
        able = {number: servers[number] for number in (1, 2)}
        found = until(lambda: records(able, "orders"), retried=(StrandlineError,))
        assert found["value"].to_pylist() == [b"%d" % number for number in range(10)]
        with strandline.connect(addresses(able)) as client:
            assert client.stream_info("orders").config.replicas == 3
            assert client.append("orders", b"more", timeout_s=30).offset == 10
    finally:
        for server in servers.values():
            server.kill()

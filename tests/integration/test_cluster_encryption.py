"""An encrypted stream on three real brokers: copied as it is, served by each, also after a kill."""

import pytest

import strandline
from strandline.api import admin
from strandline.api.cluster import CLUSTER_STATUS
from strandline.api.encryption import LIST_KEYS, ROTATE_KEYS, RotateKeys
from strandline.api.tickets import ReadRequest
from strandline.client.connection import BrokerConnection
from strandline.encryption.master_keys import new_key_text, parse_master_keys

IDS = (1, 2, 3)
SECRET = b"what nobody may read "
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def files(tmp_path):
    """A file of master keys for each broker, with the same key."""
    text, made = new_key_text(), {}
    for number in IDS:
        made[number] = tmp_path / f"keys-{number}"
        made[number].touch(mode=0o600)
        made[number].write_text(text)
    return made


@pytest.fixture
def environment_of(files):
    """Each finds its file."""
    return lambda number: {"STRANDLINE_ENCRYPTION__KEY_FILE": str(files[number])}


def act(server, command, request):
    connection = BrokerConnection(server.flight, timeout_s=10)
    try:
        return connection.action(command, request)
    finally:
        connection.close()


def leader_of(server):
    [status] = act(server, CLUSTER_STATUS, None)
    parts = [part for part in status.partitions if part.stream == "s"]
    assert parts, "not heard of yet"
    assert parts[0].leader is not None
    return parts[0]


def append(server, *values):
    """Append with one client, which waits through elections and stores retries once."""
    with strandline.connect(server.flight) as client:
        for value in values:
            client.append("s", value, key=SECRET)


def values_at(server, count, kit):
    """Return all values in one read at this broker only, once it knows that they are committed."""

    def read():
        [info] = act(server, admin.STREAM_INFO, admin.StreamInfoRequest(name="s"))
        assert info.partitions[0].high_watermark >= count
        connection = BrokerConnection(server.flight, timeout_s=30)
        try:
            found = connection.read(ReadRequest(stream="s", partition=0, stop=count))
            return found.read_all()["value"].to_pylist()
        finally:
            connection.close()

    return kit.persist(read)


def stored(server):
    """The bytes of the segments."""
    files = sorted((server.data_dir / "logs").rglob("*.log"))
    return b"".join(path.read_bytes() for path in files)


def test_copies_are_encrypted_and_every_broker_serves_them(cluster, files, kit):
    """Through a failover and a rotation; nothing is readable on any disk."""

    def create():
        with strandline.connect(cluster[1].flight) as client:
            client.create_stream("s", replicas=3, min_isr=2, encryption=True)

    kit.persist(create)
    values = [SECRET + b"%d" % number for number in range(10)]
    append(cluster[1], *values)
    for server in cluster.values():
        assert values_at(server, 10, kit) == values

    old = files[1].read_text()
    new = new_key_text()
    for file in files.values():
        file.write_text(f"{new}\n{old}\n")
    order = RotateKeys(stream="s", has_new_key=True)
    found = kit.persist(lambda: act(cluster[2], ROTATE_KEYS, order))
    new_id = parse_master_keys(new, "it")[0].id
    assert {(key.data_key, key.master_key) for key in found} == {(1, new_id), (2, new_id)}
    for file in files.values():
        file.write_text(new)

    led = kit.persist(lambda: leader_of(cluster[1]))
    victim = cluster[led.leader]
    others = [server for server in cluster.values() if server is not victim]
    victim.kill()
    values += [SECRET + b"after the kill"]
    append(others[0], values[-1])
    victim.start()
    for server in cluster.values():
        assert values_at(server, 11, kit) == values
        assert {key.master_key for key in act(server, LIST_KEYS, None)} == {new_id}

    for server in cluster.values():
        assert server.stop() == 0
    assert len({stored(server) for server in cluster.values()}) == 1
    for server in cluster.values():
        for path in server.data_dir.rglob("*"):
            assert not path.is_file() or SECRET not in path.read_bytes(), path

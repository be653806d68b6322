"""Encrypted streams of real brokers: the disk's contents, crashes, and readers."""

import asyncio

import grpc
import nats
import pytest

import strandline
from strandline.encryption.master_keys import new_key_text, parse_master_keys
from strandline.errors import StrandlineError
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.testing import ProcessServer

SECRETS = {
    "value": b"value-nobody-may-read",
    "key": b"key-nobody-may-read",
    "subject": b"subject-nobody-may-read",
    "header": b"header-nobody-may-read",
    "id": b"id-nobody-may-read",
}
TIMEOUT_S = 30.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "keys"
    path.touch(mode=0o600)
    path.write_text(new_key_text())
    return path


def process(tmp_path, file=None, *arguments):
    environment = {"STRANDLINE_ENCRYPTION__KEY_FILE": str(file)} if file else {}
    return ProcessServer(tmp_path / "data", arguments=arguments, environment=environment)


def plaintext_in(folder):
    """Return which secrets are in which files of any kind."""
    found = set()
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            found |= {(name, path.name) for name, text in SECRETS.items() if text in data}
    return found


async def publish(url, subject, count):
    """Through NATS, with an id and a header."""
    connection = await nats.connect(url)
    for number in range(count):
        headers = {"Nats-Msg-Id": SECRETS["id"].decode() + str(number)}
        headers["Other"] = SECRETS["header"].decode()
        value = SECRETS["value"] + b"%d" % number
        await connection.request(subject, value, timeout=TIMEOUT_S, headers=headers)
    await connection.close()


def column(server, name):
    """Return the records of the stream that a client reads."""
    with strandline.connect(server.flight) as client:
        end = client.stream_info("s").partitions[0].high_watermark
        batches = client.read("s", stop=end, columns=[name])
        return [value for batch in batches for value in batch.column(name).to_pylist()]


def test_nothing_is_readable_on_disk_and_all_of_it_after_kills(tmp_path, file):
    """Through NATS, the listener and Flight; kill -9 leaves records in the journal alone."""
    subject = f"s.{SECRETS['subject'].decode()}"
    with process(tmp_path, file) as server:
        with strandline.connect(server.flight) as client:
            client.create_stream("s", subject="s.*", encryption=True)
            client.create_stream("plain", subject="plain")
            client.append("s", SECRETS["value"] + b"first", key=SECRETS["key"], subject=subject)
            client.append("plain", b"as ever")
        asyncio.run(publish(server.nats_url, subject, 3))
        server.restart()
        asyncio.run(publish(server.ingest_url, subject, 5))  # three of them again
        server.kill()
        assert plaintext_in(server.data_dir) == set()
        files = [path for path in server.data_dir.rglob("*") if path.is_file()]
        assert any(b"as ever" in path.read_bytes() for path in files)
        server.start()
        wanted = [SECRETS["value"] + end for end in (b"first", *(b"%d" % n for n in range(5)))]
        assert column(server, "value") == wanted
        assert column(server, "key")[0] == SECRETS["key"]
        assert set(column(server, "subject")) == {subject}
        assert (("Other", SECRETS["header"])) in column(server, "headers")[1]
        assert server.stop() == 0
        assert plaintext_in(server.data_dir) == set()


def test_another_key_is_told_by_name(tmp_path, file):
    """A broker with a wrong key starts, serves unencrypted streams, and names the missing key."""
    right = file.read_text()
    with process(tmp_path, file) as server:
        with strandline.connect(server.flight) as client:
            client.create_stream("s", encryption=True)
            client.create_stream("plain")
            client.append("s", b"one")
        file.write_text(new_key_text())
        server.restart()
        with strandline.connect(server.flight) as client:
            client.append("plain", b"two")
            with pytest.raises(StrandlineError, match=parse_master_keys(right, "it")[0].id):
                list(client.read("s", stop=1))
        file.write_text(right)
        assert column(server, "value") == [b"one"]


# Liftbridge's API

LIFTBRIDGE_KEY = {"LIFTBRIDGE_ENCRYPTION_KEY": "0123456789abcdef"}


@pytest.fixture
def liftbridge(tmp_path, grpc_stub):
    """A broker started as Liftbridge's server is, with a key or without."""
    opened = []

    def start(environment):
        server = ProcessServer(
            tmp_path / "data", arguments=("--grpc-port", "0"), environment=environment
        )
        server.start()
        channel = grpc.insecure_channel(f"127.0.0.1:{server.ready['grpc_port']}")
        opened.append((server, channel))
        return server, grpc_stub(channel, pb.DESCRIPTOR.services_by_name["API"])

    yield start
    for server, channel in opened:
        channel.close()
        server.stop()


def create(api, name):
    request = pb.CreateStreamRequest(name=name, subject=name)
    request.encryption.value = True
    return api.CreateStream(request, timeout=TIMEOUT_S)


def test_liftbridge_encrypts_with_its_own_variable(liftbridge):
    """Clients work as usual; the disk has no plaintext."""
    server, api = liftbridge(LIFTBRIDGE_KEY)
    create(api, "hidden")
    request = pb.PublishRequest(stream="hidden", value=SECRETS["value"], key=SECRETS["key"])
    for _ in range(3):
        api.Publish(request, timeout=TIMEOUT_S)
    subscription = api.Subscribe(
        pb.SubscribeRequest(
            stream="hidden", startPosition=pb.EARLIEST, stopPosition=pb.STOP_OFFSET, stopOffset=2
        ),
        timeout=TIMEOUT_S,
    )
    messages = [(m.value, m.key) for m in _until_stopped(subscription)]
    assert messages == [(SECRETS["value"], SECRETS["key"])] * 3
    server.kill()
    assert plaintext_in(server.data_dir) == set()


def _until_stopped(subscription):
    """Messages behind the handshake; a stop offset ends a subscription with an error of its own."""
    found = []
    with pytest.raises(grpc.RpcError, match="Stop offset reached"):
        found.extend(subscription)
    return found[1:]


def test_liftbridge_without_a_key_rejects_in_its_words(liftbridge):
    """New encrypted streams, as Go's client expects it, and publishes to the one there is."""
    server, api = liftbridge(LIFTBRIDGE_KEY)
    create(api, "hidden")
    api.Publish(pb.PublishRequest(stream="hidden", value=b"before"), timeout=TIMEOUT_S)
    server.stop()
    _, api = liftbridge({})
    request = pb.PublishRequest(stream="hidden", value=b"value", correlationId="it")
    with pytest.raises(grpc.RpcError, match="failed to encrypt the message"):
        api.Publish(request, timeout=TIMEOUT_S)
    [answer] = api.PublishAsync(iter([request]), timeout=TIMEOUT_S)
    assert answer.correlationId == "it"
    assert answer.asyncError.code == pb.PublishAsyncError.ENCRYPTION_FAILED
    to_subject = pb.PublishToSubjectRequest(subject="hidden", value=b"value")
    acked = api.PublishToSubject(to_subject, timeout=TIMEOUT_S).ack
    assert acked.ackError == pb.Ack.ENCRYPTION
    of_partition = pb.FetchPartitionMetadataRequest(stream="hidden", partition=0)
    assert api.FetchPartitionMetadata(of_partition, timeout=TIMEOUT_S).metadata.newestOffset == 0
    with pytest.raises(grpc.RpcError) as caught:
        create(api, "another")
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    for text in (
        "Failed on preconditions for stream's encryption handler",
        "invalid AES key size",
        "new-key",
    ):
        assert text in caught.value.details()

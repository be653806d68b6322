"""Publishers that are refused records which do not fit the stream's schema, on every way in."""

import asyncio
import json
import urllib.request

import grpc
import nats
import pyarrow as pa
import pytest
from nats.js.errors import APIError

import strandline
from strandline.encryption.master_keys import new_key_text
from strandline.errors import SchemaMismatchError, StrandlineError
from strandline.process.ports import free_ports
from strandline.servers.grpc._generated import liftbridge_pb2, logspec_pb2
from strandline.testing import ProcessServer, Server
from tests.kit.clusters import three_brokers
from tests.kit.proto import compiled, message_class
from tests.kit.waiting import until

COLUMNS = "id INT NOT NULL, customer STRING"
GOOD, BAD, WIDE = b'{"id":1,"customer":"ada"}', b'{"id":"1"}', b'{"id":4294967296}'
REASON = (
    """version 1 of the schema of stream 'orders': column 'id' is int, which cannot hold "1\""""
)
REASON += (
    "; publish what fits ('strandline stream schema show orders'), or set a version that has it"
)


@pytest.fixture
def url():
    """The addresses of a broker that has metrics."""
    with Server(http_port=0) as url:
        yield url


@pytest.fixture
def client(url):
    """A client of it, and a stream that checks its values."""
    with strandline.connect(url.flight) as found:
        found.create_stream("orders", subject="orders.>", schema_validation=True)
        found.schemas.set("orders", COLUMNS)
        yield found


def values(client, stream="orders"):
    return client.read(stream).read_all().column("value").to_pylist()


def rejects(url):
    """How many records were counted as misfits."""
    with urllib.request.urlopen(f"{url.http_url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    name = 'strandline_rejects_total{code="schema_mismatch"}'
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_a_record_that_does_not_fit_is_refused_with_the_reason(client, url):
    """The column, and what to do; a batch is refused as a whole, and names its first row."""
    client.append("orders", GOOD)
    with pytest.raises(SchemaMismatchError) as refused:
        client.append("orders", BAD)
    assert refused.value.message.endswith(REASON)
    rows = pa.table({"value": pa.array([GOOD, None, BAD, b"x"], pa.binary())})
    where = "row 2, counted from 0 within its partition, does not fit .*: column 'id'"
    with pytest.raises(SchemaMismatchError, match=where):
        client.append_batch("orders", rows)
    assert values(client) == [GOOD]
    assert rejects(url) == 5


def test_a_tombstone_fits_and_so_does_all_without_a_schema(client):
    """A record without a value deletes a key; an empty value is one that is no JSON."""
    client.append("orders", None, key=b"1")
    with pytest.raises(SchemaMismatchError, match="empty; a record that deletes its key"):
        client.append("orders", b"", key=b"1")
    client.schemas.delete("orders")
    client.append("orders", BAD)
    assert values(client) == [None, BAD]


def test_a_stream_without_the_setting_stores_everything(client):
    """Whatever its schema."""
    client.create_stream("free")
    client.schemas.set("free", COLUMNS)
    client.append("free", BAD)
    assert values(client, "free") == [BAD]


def test_the_check_is_switched_on_and_off(client, tmp_path):
    """What is stored stays; the next record is judged by the new setting, also after a restart."""
    with ProcessServer(tmp_path) as server, strandline.connect(server.flight) as mine:
        mine.create_stream("free", partitions=2)
        mine.schemas.set("free", COLUMNS)
        mine.append("free", BAD, partition=1)
        assert mine.update_stream("free", schema_validation=True).config.schema_validation
        for _ in range(2):
            with pytest.raises(SchemaMismatchError):
                mine.append("free", BAD, partition=1)
            mine.append("free", GOOD, partition=0)
            server.restart()
            until(mine.server_info, retried=StrandlineError)
        assert mine.stream_info("free").config.schema_validation
        assert not mine.update_stream("free", schema_validation=False).config.schema_validation
        mine.append("free", BAD, partition=0)
        assert sorted(values(mine, "free")) == sorted([BAD, GOOD, GOOD, BAD])


def test_a_pipelined_producer_meets_the_switch(client):
    """Each record is judged by one setting or the other: none is lost, and none is stored twice."""
    client.create_stream("free")
    client.schemas.set("free", COLUMNS)
    acks = []
    with client.producer("free", linger_ms=0) as producer:
        for number in range(300):
            acks.append(producer.append(BAD if number % 2 else b'{"id":%d}' % number))
            if number in (100, 200):
                client.update_stream("free", schema_validation=number == 100)
            if number in (150, 250):
                acks[-1].exception(30)
        refused = [number for number, ack in enumerate(acks) if ack.exception(30) is not None]
    assert {*range(101, 151, 2)} <= {*refused} <= {*range(201)}
    found = values(client, "free")
    assert len(found) == 300 - len(refused)
    kept = [b'{"id":%d}' % n for n in range(0, 300, 2) if n not in refused]
    assert [value for value in found if value != BAD] == kept


def test_a_new_version_is_known_with_the_next_record(client):
    """What did not fit before fits then."""
    with pytest.raises(
        SchemaMismatchError, match="column 'id' is int, which cannot hold 4294967296"
    ):
        client.append("orders", WIDE)
    client.schemas.set("orders", "id BIGINT NOT NULL, customer STRING")
    client.append("orders", WIDE)
    with pytest.raises(SchemaMismatchError, match="version 2 of the schema"):
        client.append("orders", BAD)
    assert values(client) == [WIDE]


def test_an_idempotent_producer_goes_on_after_a_refusal(client):
    """Its sequence has no gap that would stop it, and nothing is stored twice."""
    refused = []
    with client.producer("orders", linger_ms=0) as producer:
        for number in range(60):
            value = BAD if number % 7 == 3 else b'{"id":%d}' % number
            try:
                producer.append(value).result(30)
            except SchemaMismatchError:
                refused.append(number)
    assert refused == [n for n in range(60) if n % 7 == 3]
    assert values(client) == [b'{"id":%d}' % n for n in range(60) if n % 7 != 3]


def test_pipelined_batches_of_a_producer_are_refused_alone(client):
    """Those after a refused one are stored, in order."""
    acks = []
    with client.producer("orders") as producer:
        for number in range(40):
            numbers = range(10 * number, 10 * number + 10)
            rows = [BAD if n == 105 else b'{"id":%d}' % n for n in numbers]
            acks.append(producer.append_batch(pa.table({"value": pa.array(rows, pa.binary())})))
        outcomes = [ack.exception(30) for ack in acks]
    assert [n for n, outcome in enumerate(outcomes) if outcome is not None] == [10]
    assert isinstance(outcomes[10], SchemaMismatchError)
    expected = [b'{"id":%d}' % n for n in range(400) if n // 10 != 10]
    assert values(client) == expected


def test_a_transaction_with_a_misfit_is_not_committed(client):
    """Its commit says why; the next one of the name commits."""
    with client.transaction("t") as transaction:
        transaction.append("orders", b'{"id":1}')
        transaction.append("orders", BAD)
        with pytest.raises(SchemaMismatchError, match="column 'id' is int"):
            transaction.commit()
    with client.transaction("t") as transaction:
        transaction.append("orders", b'{"id":2}')
        transaction.commit()
    assert values(client) == [b'{"id":2}']


def test_a_stream_with_a_json_schema_refuses_what_is_not_valid(client):
    """By limits that no column has; a frame of a registry with the version's id is none."""
    client.create_stream("paid", schema_validation=True)
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer", "minimum": 1}},
        "required": ["id"],
        "additionalProperties": False,
    }
    client.schemas.set("paid", json.dumps(schema), registry_id=7)
    for value in (b'{"id":1}', b'\0\0\0\0\7{"id":2}', None):
        client.append("paid", value)
    with pytest.raises(SchemaMismatchError, match="'id' is 0, but it is less than the minimum"):
        client.append("paid", b'{"id":0}')
    with pytest.raises(SchemaMismatchError, match="'more' was unexpected"):
        client.append("paid", b'{"id":1,"more":1}')
    with pytest.raises(SchemaMismatchError, match="the registry's id 8 of its frame"):
        client.append("paid", b'\0\0\0\0\x08{"id":2}')


def test_a_stream_of_messages_refuses_other_bytes(client):
    """Framed or not; a time that no reader has is none."""
    text = """syntax = "proto3"; import "google/protobuf/timestamp.proto";
    message Order { int64 id = 1; google.protobuf.Timestamp at = 2; }"""
    client.create_stream("paid", schema_validation=True)
    client.schemas.set("paid", compiled(text), format="protobuf", registry_id=7)
    order = message_class(text, "Order")
    good = order(id=1, at={"seconds": 5}).SerializeToString()
    for value in (good, b"\0\0\0\0\7\0" + good, b"", None):
        client.append("paid", value)
    with pytest.raises(SchemaMismatchError, match="Error parsing message"):
        client.append("paid", b"\xff")
    with pytest.raises(SchemaMismatchError, match="a date or time is not in the years 1 to 9999"):
        client.append("paid", order(at={"seconds": 1 << 60}).SerializeToString())
    with pytest.raises(SchemaMismatchError, match="its frame names another message"):
        client.append("paid", b"\0\0\0\0\7\2\2" + good)


def test_an_avro_stream_checks_every_version(client):
    """A frame is no misfit, and garbage is one."""
    client.create_stream("avro", schema_validation=True)
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    client.schemas.set("avro", json.dumps(schema), registry_id=7)
    for value in (b"\x02", b"\0\0\0\0\7\x02"):
        client.append("avro", value)
    with pytest.raises(SchemaMismatchError, match="it fits no version of the schema"):
        client.append("avro", b"\x02\x02\x02")


async def test_nats_publishers_are_told_in_the_ack():
    """Through the nats-server and at the listener, one by one, in floods and in atomic batches."""
    with Server(nats=True, http_port=0) as url, strandline.connect(url.flight) as client:
        client.create_stream("orders", subject="orders.>", schema_validation=True)
        client.schemas.set("orders", COLUMNS)
        for address in (url.nats_url, url.ingest_url):
            before = len(values(client))
            nc = await nats.connect(address)
            js = nc.jetstream()
            await js.publish("orders.a", GOOD)
            with pytest.raises(APIError) as refused:
                await js.publish("orders.a", BAD)
            error = refused.value
            assert (error.code, error.err_code) == (400, 10003)
            assert error.description.endswith(REASON)
            with pytest.raises(APIError, match="column 'id'"):
                await js.publish("orders.a", BAD, headers={"Nats-Msg-Id": address})
            # The id of what was refused is free.
            await js.publish("orders.a", GOOD, headers={"Nats-Msg-Id": address})
            await js.publish("orders.a", b"", headers={"Strandline-Tombstone": "true"})
            flood = [BAD if n % 5 == 0 else b'{"id":%d}' % n for n in range(300)]
            asked = (nc.request("orders.a", value, timeout=30) for value in flood)
            answers = [json.loads(each.data) for each in await asyncio.gather(*asked)]
            assert ["error" in each for each in answers] == [n % 5 == 0 for n in range(300)]
            batch = {"Nats-Batch-Id": f"b{before}"}
            await nc.request("orders.a", GOOD, headers=batch | {"Nats-Batch-Sequence": "1"})
            last = {"Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"}
            answer = await nc.request("orders.a", BAD, headers=batch | last)
            assert "row 1, counted from 0 within its partition, does not" in answer.data.decode()
            await nc.publish("orders.a", BAD)
            await nc.flush()
            await nc.close()
            assert len(values(client)) == before + 3 + 240
        until(lambda: rejects(url) == 2 * (2 + 60 + 2 + 1))


def test_the_leaders_of_a_cluster_check(tmp_path):
    """Whichever broker is asked, and after another one leads."""
    with three_brokers(tmp_path) as servers:
        addresses = ",".join(server.flight for server in servers.values())
        with strandline.connect(addresses) as client:
            client.create_stream("orders", partitions=3, replicas=3, schema_validation=True)
            client.schemas.set("orders", COLUMNS)
            for is_killed in (False, True):
                if is_killed:
                    servers[1].kill()
                for partition in range(3):
                    client.append("orders", GOOD, partition=partition)
                    # A leader knows the schema some milliseconds after it is set.
                    until(lambda number=partition: is_refused(client, number))
            assert values(client).count(GOOD) == 6
            client.update_stream("orders", schema_validation=False)
            for partition in range(3):
                until(lambda number=partition: not is_refused(client, number))
            client.update_stream("orders", schema_validation=True)
            for partition in range(3):
                until(lambda number=partition: is_refused(client, number))


def is_refused(client, partition):
    try:
        client.append("orders", BAD, partition=partition)
    except SchemaMismatchError:
        return True
    return False


def test_clients_of_grpc_are_refused(tmp_path, grpc_stub):
    """Liftbridge's API and Beam's log, of an encrypted stream."""
    liftbridge_port, beam_port = free_ports(2)
    keys = tmp_path / "master"
    keys.touch(mode=0o600)
    keys.write_text(new_key_text())
    environment = {
        "STRANDLINE_GRPC__PORT": str(liftbridge_port),
        "STRANDLINE_GRPC__BEAM_PORT": str(beam_port),
        "STRANDLINE_GRPC__BEAM_STREAM": "orders",
        "STRANDLINE_ENCRYPTION__KEY_FILE": str(keys),
    }
    with (
        ProcessServer(tmp_path / "data", environment=environment) as server,
        strandline.connect(server.flight) as client,
    ):
        client.delete_stream("orders")  # which Beam's listener has made
        client.create_stream("orders", schema_validation=True, encryption=True)
        client.schemas.set("orders", COLUMNS)
        api = liftbridge_pb2.DESCRIPTOR.services_by_name["API"]
        with grpc.insecure_channel(f"127.0.0.1:{liftbridge_port}") as channel:
            publish = grpc_stub(channel, api).Publish
            publish(liftbridge_pb2.PublishRequest(stream="orders", value=GOOD), timeout=30)
            with pytest.raises(grpc.RpcError) as refused:
                publish(liftbridge_pb2.PublishRequest(stream="orders", value=BAD), timeout=30)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert refused.value.details().endswith(REASON)
        log = logspec_pb2.DESCRIPTOR.services_by_name["Log"]
        with grpc.insecure_channel(f"127.0.0.1:{beam_port}") as channel:
            requests = [
                logspec_pb2.AppendRequest(sequence=number, proposals=proposals)
                for number, proposals in enumerate([[GOOD], [GOOD, BAD]], 1)
            ]
            replies = grpc_stub(channel, log).Append(iter(requests), timeout=30)
            assert next(replies).WhichOneof("reply") == "ok"
            with pytest.raises(grpc.RpcError) as refused:
                next(replies)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert refused.value.details().endswith(REASON)
        assert set(values(client)) == {GOOD}

"""NATS in, Arrow out: published records are read, and both ways agree on partitions."""

import asyncio

import nats
import pytest

import strandline
from strandline.testing import Server


@pytest.fixture(scope="module")
def server():
    """A broker with its nats-server."""
    with Server(nats=True) as url:
        yield url


def publish(url: str, *messages: tuple[str, bytes, dict]) -> list[int]:
    """Publish with JetStream's call; returns the sequences."""

    async def run():
        connection = await nats.connect(url)
        acks = [
            await connection.jetstream().publish(subject, data, headers=headers or None)
            for subject, data, headers in messages
        ]
        await connection.close()
        await asyncio.sleep(0.05)  # lets its transport close
        return [ack.seq for ack in acks]

    return asyncio.run(run())


@pytest.mark.parametrize("listener", ["nats_url", "ingest_url"])
def test_what_is_published_is_read(server, listener):
    """Through nats-server or straight into the broker: subject, headers and value arrive."""
    name = listener.replace("_", "-")
    with strandline.connect(server) as client:
        client.create_stream(name, subject=f"{name}.>")
        sequences = publish(
            getattr(server, listener),
            (f"{name}.a", b"1", {"h": "x"}),
            (f"{name}.b.c", b"2", {}),
        )
        assert sequences == [1, 2]
        rows = client.read(name).read_all().to_pylist()
    assert [(row["offset"], row["subject"], row["value"]) for row in rows] == [
        (0, f"{name}.a", b"1"),
        (1, f"{name}.b.c", b"2"),
    ]
    assert rows[0]["headers"] == [("h", b"x")]


@pytest.mark.parametrize("rule", ["subject", "suffix"])
def test_both_ways_in_choose_the_same_partition(server, rule):
    """A subject's records stay together, whether published or appended."""
    name = f"p-{rule}"
    subject = name if rule == "suffix" else f"{name}.*"
    with strandline.connect(server) as client:
        client.create_stream(name, subject=subject, partitions=4, partition_by=rule)
        subjects = [f"{name}.{number}" for number in range(1, 4)]
        subjects.append(name if rule == "suffix" else f"{name}.0")
        publish(server.ingest_url, *[(each, b"published", {}) for each in subjects])
        for each in subjects:
            client.append(name, b"appended", subject=each)
        rows = client.read(name, columns=["partition", "subject", "value"]).read_all().to_pylist()
    by_subject: dict[str, set[int]] = {}
    for row in rows:
        by_subject.setdefault(row["subject"], set()).add(row["partition"])
    assert len(rows) == 8
    assert all(len(partitions) == 1 for partitions in by_subject.values())


def test_message_ids_are_one_namespace(server):
    """A record published and appended under one id is stored once."""
    with strandline.connect(server) as client:
        client.create_stream("ids")
        publish(server.nats_url, ("ids", b"v", {"Nats-Msg-Id": "one"}))
        ack = client.append("ids", b"v", message_id="one")
        assert (ack, ack.duplicate) == (0, True)
        assert client.read("ids").read_all().num_rows == 1

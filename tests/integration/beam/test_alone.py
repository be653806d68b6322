"""Beam's log on one broker that stops, starts again and runs out of disk."""

import asyncio
from contextlib import contextmanager

import grpc
import msgspec
import pytest

from strandline.broker.write_path.replica_writes import ReplicaWrite
from strandline.errors import DiskFullError
from strandline.record.codec import encode_filler
from strandline.servers.grpc._generated import logspec_pb2 as pb
from strandline.servers.grpc.beam import entries as entries_module
from strandline.servers.grpc.beam import service as service_module
from strandline.storage.log import Log
from strandline.testing import Server

TIMEOUT_S = 120
pytestmark = pytest.mark.timeout(400)


@contextmanager
def running(directory):
    """A broker in this process, and the port of its log."""
    server = Server(data_dir=directory, grpc={"beam_port": 0})
    server.start()
    try:
        yield server.app.broker, server.app.ready_line()["beam_port"]
    finally:
        server.stop()


def test_what_was_answered_survives(tmp_path, connected):
    """Entries, the first index and the place after a jump are there after a restart."""
    with running(tmp_path) as (_, port), connected(port) as log:
        assert (log.info().firstIndex, log.info().lastIndex) == (1, 0)
        log.append([b"old"])
        log.discard(500)
        log.append([b"new"])
    with running(tmp_path) as (_, port), connected(port) as log:
        assert (log.info().firstIndex, log.info().lastIndex) == (500, 500)
        assert log.entries(500, 1)[0].data == b"new"


def test_a_full_disk_is_said_once(tmp_path, connected, monkeypatch):
    """The reply is ``full``, and nothing comes after it."""

    def refuse(*_):
        raise DiskFullError("no space left")

    with running(tmp_path) as (_, port), connected(port) as log:
        monkeypatch.setattr(Log, "append", refuse)
        replies = log.append([b"a"], [b"b"], [b"c"])
        assert [reply.WhichOneof("reply") for reply in replies] == ["full"]
        monkeypatch.undo()
        [reply] = log.append([b"a"])
        assert list(reply.ok.indexes) == [1]


def test_millions_of_compacted_offsets_are_sent_bit_by_bit(tmp_path, connected, monkeypatch):
    """One placeholder covers them, and all their skip entries at once would fill the memory."""
    made, skipped = [], 3_000_000

    def framed_replies(entries):
        made.append(entries_module.framed_replies(entries))
        return made[-1]

    monkeypatch.setattr(service_module, "framed_replies", framed_replies)
    with running(tmp_path) as (broker, port), connected(port) as log:
        log.append([b"first"])
        partition = broker.stream("beam").partition(0)

        async def compact():
            partition.config = msgspec.structs.replace(partition.config, compact=True)
            partition.committed._config = partition.config
            filler = encode_filler(1, 1 + skipped, leader_epoch=partition.leader_epoch)
            written = asyncio.get_running_loop().create_future()
            write = ReplicaWrite(partition.log_id, partition.log, [filler], written.set_result)
            broker.committer.catch_up.submit(write)
            assert await written is None
            partition.commit(1 + skipped)

        broker.run_coroutine(compact()).result(TIMEOUT_S)
        found = log.entries(1, 200_000)
        assert [entry.index for entry in found] == list(range(1, 200_001))
        assert [entry.data for entry in found if not entry.skip] == [b"first"]
        last = log.entries(skipped, 2)
        assert [(entry.index, entry.skip) for entry in last] == [
            (skipped, True),
            (skipped + 1, True),
        ]
    assert max(map(len, made)) < 1 << 20
    assert sum(map(len, made)) < 16 << 20, "what nobody took was made"


def test_a_discard_waits_until_a_new_leader_knows_the_end(tmp_path, connected):
    """Or an index that was answered before it led would be taken for one beyond the end."""
    with running(tmp_path) as (broker, port), connected(port) as log:
        log.append([b"1", b"2", b"3"])
        partition = broker.stream("beam").partition(0)

        async def lead_anew():
            partition.committed.high_watermark = 1
            partition.lead(partition.leader_epoch + 1)

        async def learn():
            partition.commit(3)

        broker.run_coroutine(lead_anew()).result(TIMEOUT_S)
        discarding = log.Discard.future(pb.DiscardRequest(firstIndex=3), timeout=TIMEOUT_S)
        with pytest.raises(grpc.FutureTimeoutError):
            discarding.result(timeout=0.2)
        broker.run_coroutine(learn()).result(TIMEOUT_S)
        assert discarding.result().WhichOneof("reply") == "ok"
        assert log.info().lastIndex == 3

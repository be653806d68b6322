"""A coordinator with a corrupt log waits for the operator's permission, then continues."""

import pytest

from strandline.api.groups import GROUPS_STREAM
from strandline.errors import CorruptBatchError
from strandline.storage.scan import header_at
from strandline.types import PartitionName

pytestmark = pytest.mark.usefixtures("without_spares")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """On a machine that is busy even a short log may take a while to read."""
    monkeypatch.setattr("strandline.broker.coordinators.runtime.LOAD_WAIT_S", 30)


def corrupt(broker, stream, number):
    """Change a byte of one batch of a stream's segment file."""
    path = broker.stream(stream).partition(0).log.segments[0].path
    data, position = bytearray(path.read_bytes()), 0
    for _ in range(number):
        position += header_at(memoryview(data), position).length
    data[position + header_at(memoryview(data), position).length - 1] ^= 1
    path.write_bytes(data)


async def test_corrupt_positions_are_done_without_only_if_the_operator_says_so(open_broker):
    """Then the last intact ones count: records are given again rather than left out."""
    first = await open_broker()
    for number in range(3):
        await first.groups.commit("g", {"s": {0: number}}, number=number)
    await first.stop()
    corrupt(first, GROUPS_STREAM, 2)
    second = await open_broker()
    with pytest.raises(CorruptBatchError, match="allow_corrupt_coordinator_log"):
        await second.groups.committed_offsets("g")
    await second.stop()
    third = await open_broker(allow_corrupt_coordinator_log=True)
    assert await third.groups.committed_offsets("g") == {"s": {0: 1}}
    assert third.telemetry.corrupt_batches == 1
    await third.groups.commit("g", {"s": {0: 7}}, number=3)
    await third.stop()
    fourth = await open_broker(allow_corrupt_coordinator_log=True)
    assert await fourth.groups.committed_offsets("g") == {"s": {0: 7}}


async def test_entries_that_are_gone_are_corruption_too(open_broker):
    """A file that was removed leaves no checksum behind that could be wrong."""
    first = await open_broker()
    await first.groups.commit("g", {"s": {0: 5}}, number=1)
    await first.stop()
    first.stream(GROUPS_STREAM).partition(0).log.segments[0].path.unlink()
    second = await open_broker()
    with pytest.raises(CorruptBatchError, match="allow_corrupt_coordinator_log"):
        await second.groups.committed_offsets("g")
    await second.stop()
    third = await open_broker(allow_corrupt_coordinator_log=True)
    assert await third.groups.committed_offsets("g") == {}
    await third.groups.commit("g", {"s": {0: 7}}, number=2)
    assert await third.groups.committed_offsets("g") == {"s": {0: 7}}


async def test_a_transaction_whose_beginning_is_corrupt_is_not_known(
    open_broker, make_stream, tx, kit
):
    """Its end has no effect; other transactions are not affected."""
    first = await open_broker()
    partition, ask = await make_stream(first), tx.Asker(first)
    for id_ in ("lost", "kept"):
        who, answers = await ask.begin(id_), kit.Answers()
        await ask.add(id_, who, PartitionName("s", 0))
        ask.write(who, partition, answers, id_)
        await answers.wait(1)
        await ask.end(id_, who, is_commit=True)
    await first.stop()
    corrupt(first, "__transactions", 0)
    corrupt(first, "__transactions", 1)
    second = await open_broker(allow_corrupt_coordinator_log=True)
    ask = tx.Asker(second)
    partition = second.stream("s").partition(0)
    assert tx.seen(partition) == ["lost", "kept"]
    who = await ask.begin("kept")
    assert who.epoch > 0, "it is known"
    assert (await ask.begin("lost")).epoch == 0, "it is not"

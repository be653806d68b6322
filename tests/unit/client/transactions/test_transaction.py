"""The ends of a transaction and of a staged part: what is called, in which order, and what not."""

from unittest.mock import MagicMock, call

import pyarrow as pa
import pytest

from strandline.client.consumer.offset_store import Owner
from strandline.client.transactions.staged_write import StagedPart, StagedWrite
from strandline.client.transactions.transaction import Transaction
from strandline.errors import DisconnectedError, InvalidRequestError
from strandline.types import PartitionName

OFFSETS = {PartitionName("orders", 0): 7}


@pytest.fixture
def writer():
    """One whose calls are noted in order, as is the calls' own use."""
    writer = MagicMock(id="load", producer=MagicMock(producer_id=3, epoch=4), has_ended=False)

    def end(_):
        writer.has_ended = True

    writer.end.side_effect = writer.abort.side_effect = lambda *_: end(_)
    return writer


def ends(writer):
    """The calls that end something, or wait before it."""
    named = ("flush", "end", "abort", "calls.end", "calls.prepare", "commit_offsets")
    return [each for each in writer.mock_calls if each[0] in named]


def test_a_commit_is_of_what_is_stored(writer):
    """Records are stored first, then the offsets are added, then the coordinator is asked."""
    transaction = Transaction(writer)
    transaction.commit_offsets("billing", OFFSETS)
    transaction.commit()
    assert ends(writer) == [
        call.flush(),
        call.commit_offsets("billing", OFFSETS, Owner()),
        call.end("committed"),
        call.calls.end("load", writer.producer, commit=True),
    ]


def test_a_prepared_one_is_ended_by_its_id(writer):
    """The id names the producer, so that a later transaction is not taken for it."""
    assert Transaction(writer).prepare() == "3.4"
    assert ends(writer) == [
        call.flush(),
        call.end("prepared"),
        call.calls.prepare("load", writer.producer),
    ]


@pytest.mark.parametrize("way", ["commit", "prepare"])
@pytest.mark.parametrize("step", ["flush", "commit_offsets"])
def test_what_is_not_stored_aborts_it(writer, way, step):
    """The coordinator is never asked to commit half of it."""
    getattr(writer, step).side_effect = DisconnectedError("gone")
    transaction = Transaction(writer)
    transaction.commit_offsets("billing", OFFSETS)
    with pytest.raises(DisconnectedError):
        getattr(transaction, way)()
    assert ends(writer)[-1] == call.abort()
    assert not writer.calls.mock_calls


def test_its_context_commits_and_an_exception_aborts(writer):
    """What was ended inside is left as it is."""
    with Transaction(writer):
        pass
    assert ends(writer)[-1] == call.calls.end("load", writer.producer, commit=True)
    writer.reset_mock()
    with Transaction(writer):
        pass
    assert ends(writer) == []
    writer.has_ended = False
    with pytest.raises(KeyError), Transaction(writer):
        raise KeyError
    assert ends(writer) == [call.abort()]


def test_a_member_commits_its_own_offsets(writer):
    """Its positions, or those given; the call is the member's, on whichever thread it needs."""
    member = MagicMock(group="billing")
    member.positions.return_value = OFFSETS
    transaction = Transaction(writer)
    transaction.commit_offsets(member)
    transaction.commit()
    assert member.commit_in_transaction.mock_calls == [call(writer.commit_offsets, OFFSETS)]
    for wrong in (7, None):
        with pytest.raises(InvalidRequestError, match="consumer or a group's name"):
            transaction.commit_offsets(wrong)
    with pytest.raises(InvalidRequestError, match="offsets of group 'billing' are missing"):
        transaction.commit_offsets("billing")


def test_a_part_is_finished_once(writer):
    """Repeated, it says the same; its context then discards nothing."""
    with StagedWrite(writer) as part:
        part.append("orders", b"a")
        assert part.finish() == part.finish() == StagedPart("load", 1)
    assert ends(writer) == [
        call.flush(),
        call.end("finished"),
        call.calls.prepare("load", writer.producer),
    ]


def test_a_part_that_is_not_finished_is_discarded(writer):
    """With or without an exception."""
    with StagedWrite(writer):
        pass
    with pytest.raises(KeyError), StagedWrite(writer):
        raise KeyError
    assert ends(writer) == [call.abort(), call.abort()]


def test_a_part_of_a_committed_batch_stores_nothing():
    """It counts its rows as the others do."""
    with StagedWrite(None) as part:
        assert part.is_published
        part.append("orders", b"a")
        part.append_batch("orders", pa.table({"value": [b"b", b"c"]}))
        part.commit_offsets("billing", OFFSETS)
        assert part.finish() == StagedPart("", 3)

"""A partition's transaction index beside a real log: truncated, corrupt, reopened."""

import pytest

from strandline.broker.read_path.transaction_visibility import (
    PartitionTransactions,
    marker_attributes,
)
from strandline.core.transactions.effects import MarkerKind
from strandline.core.transactions.state import TransactionalProducer
from strandline.errors import ProducerFencedError
from strandline.record.batch import Attributes, header_of, iter_headers
from strandline.record.codec import Stamp, encode_records
from strandline.storage.disk import Disk
from strandline.storage.log import Log
from strandline.types import ProducerStamp

BEGIN, COMMIT, ABORT = MarkerKind.BEGIN, MarkerKind.COMMIT, MarkerKind.ABORT
ONE, TWO = TransactionalProducer(1, 0), TransactionalProducer(2, 0)


@pytest.fixture
def log(tmp_path):
    made = Log.open(tmp_path / "log", disk=Disk(), segment_bytes=64 << 10, segment_age_ms=1 << 40)
    yield made
    made.close()


def add(log, transaction_index, producer=None, kind=None):
    """A batch of one record: plain, of a transaction, or a marker."""
    attributes = 0
    if producer is not None:
        attributes = int(Attributes.TRANSACTIONAL) if kind is None else marker_attributes(kind)
    who = producer or TransactionalProducer(-1, -1)
    stamp = Stamp(
        log.log_end_offset,
        0,
        1,
        producer=ProducerStamp(who.producer_id, who.epoch, -1),
        attributes=attributes,
    )
    batch = encode_records([b"value"], ["s"], stamp)
    log.append(batch, header_of(batch))
    if transaction_index is not None:
        transaction_index.written(batch)


def shown(transaction_index, start=0, bytes_max=1 << 20):
    """Offsets that readers see."""
    found, offset = [], start
    while offset < transaction_index.last_stable_offset:
        batches = transaction_index.readable(
            offset, bytes_max, below=transaction_index.last_stable_offset
        )
        bases = [header.base_offset for _, header in iter_headers(batches)]
        if not bases:
            break
        found += bases
        offset = bases[-1] + 1
    return found


def test_markers_and_aborted_records_are_counted_as_hidden(log):
    """Exactly, between any two offsets, also after a reopening; records in doubt are not hidden."""
    transaction_index = PartitionTransactions.loaded(log, start=0, high_watermark=0)
    steps = [(ONE, BEGIN), (ONE, None), (TWO, BEGIN), (None, None), (TWO, None), (ONE, None)]
    steps += [(ONE, ABORT), (TWO, None), (TWO, COMMIT), (ONE, None), (None, None)]
    for producer, kind in steps:
        add(log, transaction_index, producer, kind)
    transaction_index.commit(6)
    assert transaction_index.hidden_between(0, 6) == 2, "the ends are not committed"
    transaction_index.commit(log.log_end_offset)
    hidden = {0, 1, 2, 5, 6, 8}
    for known in (
        transaction_index,
        PartitionTransactions.loaded(log, start=0, high_watermark=log.log_end_offset),
    ):
        for start in range(12):
            for stop in range(start, 12):
                assert known.hidden_between(start, stop) == len(hidden & {*range(start, stop)})


def test_a_newer_epoch_hides_what_it_aborts(log):
    """Records of an epoch that never ended are hidden by the next one's beginning."""
    transaction_index = PartitionTransactions.loaded(log, start=0, high_watermark=0)
    newer = TransactionalProducer(1, 1)
    for producer, kind in ((ONE, BEGIN), (ONE, None), (newer, BEGIN), (newer, None)):
        add(log, transaction_index, producer, kind)
    transaction_index.commit(4)
    assert transaction_index.hidden_between(0, 4) == 3
    add(log, transaction_index, ONE, ABORT)  # late, of the old epoch: the new one stays open
    add(log, transaction_index, newer, ABORT)
    transaction_index.commit(6)
    assert transaction_index.hidden_between(0, 6) == 6


def test_what_is_cut_off_is_forgotten(log):
    """A truncated marker has no effect; its replacement counts."""
    transaction_index = PartitionTransactions.loaded(log, start=0, high_watermark=0)
    add(log, transaction_index, ONE, BEGIN)
    add(log, transaction_index, ONE)
    transaction_index.commit(2)
    add(log, transaction_index, ONE, ABORT)
    log.truncate_to(2)
    transaction_index.forget_from(2)
    add(log, transaction_index, ONE, COMMIT)
    transaction_index.commit(3)
    assert shown(transaction_index) == [1]


def test_nothing_counts_before_it_is_committed(log):
    """Readers and writers go by committed markers only."""
    transaction_index = PartitionTransactions.loaded(log, start=0, high_watermark=0)
    add(log, transaction_index, ONE, BEGIN)
    with pytest.raises(ProducerFencedError):
        transaction_index.check(ONE)
    transaction_index.commit(1)
    transaction_index.check(ONE)
    add(log, transaction_index, ONE)
    add(log, transaction_index, ONE, COMMIT)
    transaction_index.commit(2)
    assert transaction_index.last_stable_offset == 0
    transaction_index.commit(3)
    assert transaction_index.last_stable_offset == 3


def test_no_record_gets_behind_an_end(log):
    """From the moment it is accepted, however long it takes to be stored."""
    transaction_index = PartitionTransactions.loaded(log, start=0, high_watermark=0)
    add(log, transaction_index, ONE, BEGIN)
    transaction_index.commit(1)
    assert transaction_index.needs(COMMIT, ONE)
    with pytest.raises(ProducerFencedError):
        transaction_index.check(ONE)
    assert not transaction_index.needs(BEGIN, ONE)
    assert transaction_index.needs(COMMIT, ONE), "it may have been lost"
    add(log, transaction_index, ONE, COMMIT)
    transaction_index.commit(2)
    assert not transaction_index.needs(COMMIT, ONE)


def test_a_reopened_log_tells_the_same(log):
    """Markers, aborted batches and open transactions are found in the headers again."""
    transaction_index = PartitionTransactions.loaded(log, start=0, high_watermark=0)
    for producer, kind in (
        (None, None),
        (ONE, BEGIN),
        (ONE, None),
        (TWO, BEGIN),
        (TWO, None),
        (ONE, ABORT),
        (None, None),
        (TWO, COMMIT),
        (TransactionalProducer(1, 1), BEGIN),
        (TransactionalProducer(1, 1), None),
        (None, None),
    ):
        add(log, transaction_index, producer, kind)
    transaction_index.commit(log.log_end_offset)
    again = PartitionTransactions.loaded(log, start=0, high_watermark=log.log_end_offset)
    for each in (transaction_index, again):
        assert each.last_stable_offset == 8
        for bytes_max in (1, 300, 1 << 20):
            assert [shown(each, start, bytes_max) for start in (0, 1, 5, 7)] == [
                [0, 4, 6],
                [4, 6],
                [6],
                [],
            ]
        assert each.open_count == 1


def test_batches_that_were_read_back_are_not_noted_twice(log):
    """A batch that was in the log before the index is noted once more, without effect."""
    batches = []
    for producer, kind in ((ONE, BEGIN), (ONE, None), (ONE, ABORT)):
        add(log, None, producer, kind)
        batches.append(bytes(log.read(log.log_end_offset - 1, 1).buffer))
    transaction_index = PartitionTransactions.loaded(log, start=0, high_watermark=1)
    for batch in batches[1:]:
        transaction_index.written(batch)
    log.truncate_to(2)
    transaction_index.forget_from(2)
    add(log, transaction_index, ONE, COMMIT)
    transaction_index.commit(3)
    assert shown(transaction_index) == [1]


def test_plain_logs_are_served_without_a_copy(log):
    """If nothing is hidden, readers get the log's own memory."""
    transaction_index = PartitionTransactions.loaded(log, start=0, high_watermark=0)
    for _ in range(3):
        add(log, transaction_index)
    transaction_index.commit(3)
    assert isinstance(transaction_index.readable(0, 1 << 20, below=3), memoryview)


def test_a_log_that_was_restarted_elsewhere_makes_it_stale(log):
    """Its batches are gone, perhaps with an end marker that it never indexed."""
    transaction_index = PartitionTransactions.loaded(log, start=0, high_watermark=0)
    add(log, transaction_index, ONE, BEGIN)
    transaction_index.commit(1)
    assert not transaction_index.is_stale(1)
    assert transaction_index.is_stale(0)
    log.restart_at(9)
    assert transaction_index.is_stale(9)
    assert PartitionTransactions.loaded(log, start=0, high_watermark=9).last_stable_offset == 9


def test_a_new_leader_lets_nothing_behind_an_end_that_is_not_committed(log):
    """It has the end marker in its log, and commits it with later batches."""
    transaction_index = PartitionTransactions.loaded(log, start=0, high_watermark=0)
    add(log, transaction_index, ONE, BEGIN)
    transaction_index.commit(1)
    add(log, transaction_index, ONE, ABORT)
    for each in (transaction_index, PartitionTransactions.loaded(log, start=0, high_watermark=1)):
        with pytest.raises(ProducerFencedError):
            each.check(ONE)
        each.commit(2)
        assert not each.needs(ABORT, ONE)

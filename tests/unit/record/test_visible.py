"""The filter for what readers may see, against one that looks at each batch by itself."""

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from strandline.record.batch import Attributes
from strandline.record.codec import Stamp, encode_records
from strandline.record.visible import always_committed, visible_stretches
from strandline.types import ProducerStamp

KINDS = {
    "plain": Attributes(0),
    "ids": Attributes.MESSAGE_IDS,
    "marker": Attributes.MARKER,
    "filler": Attributes.REMOVED,
    "purge": Attributes.PURGE,
    "hidden part": Attributes.MARKER | Attributes.TRANSACTIONAL,
    "committed": Attributes.TRANSACTIONAL,
    "aborted": Attributes.TRANSACTIONAL,
}
VISIBLE = {"plain", "ids", "committed"}


@given(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(1, 3)), max_size=12))
def test_stretches_are_whole_runs_of_visible_batches(shapes):
    """Neighbours are one stretch; only batches of transactions are asked about."""
    batches, asked, aborted, offset = [], [], set(), 0
    for kind, count in shapes:
        producer = ProducerStamp(100 + offset, 0, 0)
        stamp = Stamp(offset, 0, 1, "none", producer, int(KINDS[kind]))
        data = encode_records([b"v"] * count, ["s"] * count, stamp)
        batches.append((kind in VISIBLE, bytes(data)))
        if kind == "aborted":
            aborted.add((100 + offset, offset))
        offset += count

    def counts(producer_id, base_offset):
        asked.append((producer_id, base_offset))
        return asked[-1] not in aborted

    whole = memoryview(b"".join(data for _, data in batches))
    wanted = [
        b"".join(data for _, data in run)
        for is_visible, run in groupby(batches, key=lambda each: each[0])
        if is_visible
    ]
    assert [bytes(each) for each in visible_stretches(whole, counts)] == wanted
    bases = [sum(count for _, count in shapes[:n]) for n in range(len(shapes))]
    ends = [kind in ("committed", "aborted") for kind, _ in shapes]
    assert asked == [(100 + b, b) for b, is_end in zip(bases, ends, strict=True) if is_end]


def test_without_transactions_every_record_counts():
    """It is asked of none but those."""
    assert always_committed(1, 2) is True

"""The rules by which a table commits: once, without overlap, without gaps."""

import json

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import DataLossError, InvalidRecordError, InvalidRequestError
from strandline.spark.tables.log import (
    DataFile,
    Manifest,
    Proposal,
    RangeSummary,
    TableState,
    decide,
    decode_manifest,
    encode_manifest,
    encode_schema,
    manifest_of,
    merge_ranges,
    numbered,
    unexplained,
)

SCHEMA = encode_schema(pa.schema([("partition", pa.int32()), ("offset", pa.int64())]))


def span(start, stop, rows=None):
    """The summary of dense offsets, or of the first ``rows`` of them."""
    offsets = list(range(start, stop))[:rows]
    return RangeSummary(start, stop, len(offsets), sum(offsets))


def file(**ranges):
    """A file and the ranges of its rows."""
    named = {int(name[1:]): summary for name, summary in ranges.items()}
    rows = sum(summary.rows for summary in named.values())
    return DataFile(name="", staged="s.parquet", rows=rows, size_bytes=1), named


def proposal(*files, txn="q", batch=0, dense=True, schema=SCHEMA, stream=None):
    return Proposal(
        txn_id=txn,
        batch=batch,
        files=[file for file, _ in files],
        ranges=merge_ranges(ranges for _, ranges in files),
        arrow_schema=schema,
        tracks_offsets=True,
        dense=dense,
        stream=stream,
    )


def accepted(last, wanted) -> Manifest:
    decision = decide(last, wanted)
    assert isinstance(decision, TableState)
    named = [numbered(each, decision.sequence, i) for i, each in enumerate(wanted.files)]
    return manifest_of(decision, wanted, files=named, base=0, now_ms=7)


def test_the_first_commit_may_start_anywhere():
    """A table begins where its first query began, and numbers its manifests from 0."""
    manifest = accepted(None, proposal(file(p0=span(40, 50), p2=span(0, 3))))
    assert manifest.sequence == 0
    assert manifest.offsets == {0: 50, 2: 3}
    assert manifest.files[0].name == "part-00000000000000000000-00000.parquet"


def test_commits_follow_each_other_without_gap_or_overlap():
    """The next batch starts where the last one ended; other partitions do not change."""
    first = accepted(None, proposal(file(p0=span(0, 10), p1=span(0, 5))))
    second = accepted(first, proposal(file(p0=span(10, 12)), batch=1))
    assert second.sequence == 1
    assert second.offsets == {0: 12, 1: 5}


def test_a_table_that_was_deleted_is_not_continued_by_a_load():
    """A load creates its table with its first batch; without a stream any start is allowed."""
    later = file(p0=span(10, 12))
    with pytest.raises(InvalidRequestError, match=r"batch 3 of x@1.*deleted.*new checkpoint"):
        decide(None, proposal(later, batch=3, stream="x@1"))
    accepted(None, proposal(later, stream="x@1"))
    accepted(None, proposal(later, batch=3))


def test_records_of_another_stream_are_rejected():
    """A stream created anew is another one; who does not say which it is goes on, and a table that
    nobody told takes the first that it is told.
    """
    untold = accepted(None, proposal(file(p0=span(0, 10))))
    first = accepted(untold, proposal(file(p0=span(10, 12)), batch=1, stream="x@1"))
    second = accepted(first, proposal(file(p0=span(12, 20)), batch=2))
    assert decode_manifest(encode_manifest(second), name="m").stream == "x@1"
    for batch, more in ((2, span(12, 20)), (3, span(20, 22))):
        with pytest.raises(InvalidRequestError, match=r"x@1, not of x@2.*another table"):
            decide(second, proposal(file(p0=more), batch=batch, stream="x@2"))
    accepted(second, proposal(file(p0=span(20, 22)), batch=3, stream="x@1"))


def test_a_state_of_an_earlier_version_is_read():
    """Manifests without a stream belong to tables without one."""
    old = json.loads(encode_manifest(accepted(None, proposal(file(p0=span(0, 10))))))
    del old["stream"]
    assert decode_manifest(json.dumps(old).encode(), name="m").stream is None


def test_a_gap_is_rejected():
    """Records between the table's end and the batch are missing, and the error counts them."""
    first = accepted(None, proposal(file(p0=span(0, 10))))
    with pytest.raises(DataLossError, match="2 offsets are missing"):
        decide(first, proposal(file(p0=span(12, 20)), batch=1))


@pytest.mark.parametrize("dense", [True, False])
def test_an_overlap_is_rejected_even_in_a_sparse_table(dense):
    """Records that the table has are never committed again, by whichever query."""
    first = accepted(None, proposal(file(p0=span(0, 10))))
    with pytest.raises(InvalidRequestError, match="committed already"):
        decide(first, proposal(file(p0=span(9, 12)), txn="other", dense=dense))


def test_a_hole_or_a_repeat_within_a_batch_is_rejected():
    """Each offset of the range must be there once, even if the count is right."""
    with pytest.raises(DataLossError, match="not each offset once"):
        decide(None, proposal(file(p0=span(0, 10, rows=9))))
    twice_two_never_three = RangeSummary(0, 5, 5, 0 + 1 + 2 + 2 + 4)
    with pytest.raises(DataLossError, match="not each offset once"):
        decide(None, proposal(file(p0=twice_two_never_three)))


def explained(last, wanted, *, missing):
    """Return a proposal, and a stream that lacks the offsets in ``missing``."""
    stored = {}
    for partition, (start, stop) in unexplained(last, wanted).items():
        offsets = [offset for offset in range(start, stop) if offset not in missing]
        stored[partition] = RangeSummary(start, stop, len(offsets), sum(offsets))
    return msgspec.structs.replace(wanted, stored=stored)


def test_offsets_that_are_no_records_may_be_missing():
    """A transaction's markers within a batch and between two; a record among them may not."""
    first = explained(None, proposal(file(p0=span(0, 10, rows=9))), missing={9})
    last = accepted(None, first)
    beyond = proposal(file(p0=span(12, 20)), batch=1)
    assert accepted(last, explained(last, beyond, missing={10, 11})).offsets == {0: 20}
    with pytest.raises(DataLossError, match="the stream has 9 records there, the batch 8"):
        decide(last, explained(last, beyond, missing={10}))
    with pytest.raises(DataLossError, match=r"not known: .*options server and stream"):
        decide(last, beyond)


def test_an_answer_about_other_offsets_explains_nothing():
    """Another writer was quicker, and the table ends elsewhere than when the stream was asked."""
    wanted = explained(None, proposal(file(p0=span(12, 20))), missing={})
    last = accepted(None, proposal(file(p0=span(0, 10)), txn="other"))
    stale = msgspec.structs.replace(wanted, stored={0: RangeSummary(11, 20, 8, 124)})
    with pytest.raises(DataLossError, match="2 offsets are missing"):
        decide(last, stale)


def test_dense_batches_ask_nobody():
    """The stream is asked only where offsets are missing."""
    last = accepted(None, proposal(file(p0=span(0, 10))))
    assert unexplained(None, proposal(file(p0=span(5, 10)))) == {}
    assert unexplained(last, proposal(file(p0=span(10, 12), p1=span(3, 4)), batch=1)) == {}


def test_a_sparse_table_takes_filtered_batches():
    """With denseOffsets off, gaps are allowed; going back is still rejected."""
    first = accepted(None, proposal(file(p0=span(0, 10, rows=4)), dense=False))
    second = accepted(first, proposal(file(p0=span(15, 20, rows=1)), batch=1, dense=False))
    assert second.offsets == {0: 20}


def test_a_replay_of_the_last_batch_is_acknowledged():
    """The same records again, in other files and another number of tasks, are committed already."""
    first = accepted(None, proposal(file(p0=span(0, 10), p1=span(0, 2))))
    replay = proposal(file(p1=span(0, 2)), file(p0=span(0, 4)), file(p0=span(4, 10)))
    assert decide(first, replay) == "already committed"


def test_a_replay_with_other_content_is_rejected():
    """One batch number with other records is an old checkpoint, or one that two loads share."""
    first = accepted(None, proposal(file(p0=span(0, 10))))
    reasons = "restored from an old copy, or the query changed, or another load runs with it"
    with pytest.raises(InvalidRequestError, match=reasons):
        decide(first, proposal(file(p0=span(0, 11))))


def test_an_older_batch_is_rejected():
    """A batch number below the last is an old driver or an old checkpoint."""
    first = accepted(None, proposal(file(p0=span(0, 10)), batch=5))
    with pytest.raises(InvalidRequestError, match="old driver or another load runs with it"):
        decide(first, proposal(file(p0=span(10, 11)), batch=4))


def test_batch_numbers_may_be_skipped():
    """Empty batches commit nothing, so numbers need not be dense."""
    first = accepted(None, proposal(file(p0=span(0, 10)), batch=5))
    assert accepted(first, proposal(file(p0=span(10, 11)), batch=9)).sequence == 1


def test_a_new_query_continues_the_table():
    """Another transaction id may continue at the table's end, and both are remembered."""
    first = accepted(None, proposal(file(p0=span(0, 10)), txn="a", batch=3))
    second = accepted(first, proposal(file(p0=span(10, 20)), txn="b", batch=0))
    assert decide(second, proposal(file(p0=span(0, 10)), txn="a", batch=3)) == ("already committed")


def test_other_columns_are_rejected_by_name():
    """A table has one schema; the error lists both."""
    first = accepted(None, proposal(file(p0=span(0, 1))))
    other = encode_schema(pa.schema([("partition", pa.int32()), ("offset", pa.int32())]))
    with pytest.raises(InvalidRequestError, match="offset int32"):
        decide(first, proposal(file(p0=span(1, 2)), batch=1, schema=other))


def test_manifests_survive_their_file_and_reject_others():
    """A manifest reads back as written; corruption and later versions are typed errors."""
    manifest = accepted(None, proposal(file(p0=span(0, 3))))
    data = encode_manifest(manifest)
    assert decode_manifest(data, name="m") == manifest
    for cut in range(0, len(data), 7):
        with pytest.raises(InvalidRecordError, match="m "):
            decode_manifest(data[:cut], name="m")
    later = encode_manifest(msgspec.structs.replace(manifest, version=2))
    with pytest.raises(InvalidRecordError, match="upgrade"):
        decode_manifest(later, name="m")


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**6)), max_size=20), max_size=6)
)
def test_merged_ranges_are_those_of_all_rows(files):
    """Merging summaries of files equals summarizing their rows together."""

    def summary(rows):
        found = {}
        for partition, offset in rows:
            one = RangeSummary(offset, offset + 1, 1, offset)
            found = merge_ranges([found, {partition: one}])
        return found

    together = summary([row for rows in files for row in rows])
    assert merge_ranges(summary(rows) for rows in files) == together

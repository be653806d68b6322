"""Per-subject retention against a list of records: what is kept, and what readers get."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import CorruptBatchError
from strandline.record.batch import Attributes
from strandline.record.codec import Stamp, decode_batches, encode_records
from strandline.record.subjects import subject_matches
from strandline.storage.subject_history import SubjectHistory, format_purge, parse_purge

SUBJECT = st.sampled_from(["k.a", "k.b", "k.c", "other"])
PUT = st.tuples(st.just("put"), SUBJECT, st.sampled_from([None, None, None, b"sub", b"all", b"x"]))
PURGE = st.tuples(
    st.just("purge"), st.sampled_from(["k.a", "k.*", ">", "none"]), st.integers(0, 40)
)
STEPS = st.lists(st.lists(PUT, min_size=1, max_size=4) | PURGE, max_size=12)


def played(steps, limit):
    """The log of some steps as bytes, and by a model what is kept: offsets and subjects."""
    log, kept, offset = b"", [], 0
    for step in steps:
        if step[0] == "purge":
            _, pattern, below = step
            stamp = Stamp(offset, 0, 1, attributes=int(Attributes.PURGE))
            log += encode_records([format_purge(below)], [pattern], stamp)
            kept = [(o, s) for o, s in kept if o >= below or not subject_matches(pattern, s)]
            offset += 1
            continue
        headers = [None if rollup is None else [("Nats-Rollup", rollup)] for *_, rollup in step]
        subjects, values = [subject for _, subject, _ in step], [b"v"] * len(step)
        has_headers = any(headers)
        stamp = Stamp(offset, 0, 1)
        log += encode_records(values, subjects, stamp, headers=headers if has_headers else None)
        for _, subject, rollup in step:
            if rollup == b"all":
                kept = []
            same = [] if rollup == b"sub" else [o for o, s in kept if s == subject]
            same = [*same, offset][-limit:]
            kept = [(o, s) for o, s in kept if s != subject] + [(o, subject) for o in same]
            offset += 1
    return log, sorted(kept), offset


@given(STEPS, st.integers(1, 3), st.integers(0, 30))
def test_what_is_kept_is_what_the_model_keeps(steps, limit, start):
    """However the log is cut into portions; filtering gives exactly these records."""
    log, kept, _ = played(steps, limit)
    history = SubjectHistory(limit)
    history.apply(memoryview(log))
    assert sorted((offset, subject) for subject, offset in history.kept(())) == kept
    for subject in ("k.a", "other"):
        assert history.last(subject) == max((o for o, s in kept if s == subject), default=-1)
    some = sorted(offset for _, offset in history.kept(("k.*", "k.a")))
    assert some == [offset for offset, subject in kept if subject.startswith("k.")]
    visible = b"".join(
        bytes(batch)
        for batch in _batches(log)
        if not int.from_bytes(batch[14:16], "little") & Attributes.PURGE
    )
    shown = [
        (offset, subject)
        for piece in history.filtered(memoryview(visible), start)
        for rows in decode_batches(bytes(piece), columns=["offset", "subject"])
        for offset, subject in zip(*(column.to_pylist() for column in rows.columns), strict=True)
    ]
    assert shown == [(offset, subject) for offset, subject in kept if offset >= start]
    history.forget_below(start)
    assert sorted(o for _, o in history.kept(())) == [o for o, _ in kept if o >= start]


def _batches(log):
    """The single batches of a log."""
    at = 0
    while at < len(log):
        length = int.from_bytes(log[at + 8 : at + 12], "little")
        yield log[at : at + length]
        at += length


@given(STEPS, st.integers(1, 3), st.integers(0, 12))
def test_a_compacted_log_keeps_the_same(steps, limit, cut):
    """Also if only its beginning was compacted: what is gone never comes back."""
    log, kept, _ = played(steps, limit)
    history = SubjectHistory(limit)
    history.apply(memoryview(log))
    smaller = b""
    for number, batch in enumerate(_batches(log)):
        is_purge = int.from_bytes(batch[14:16], "little") & Attributes.PURGE
        if number >= cut or is_purge:
            smaller += batch
            continue
        for rows in decode_batches(batch):
            stays = history.stays(rows)
            names = [n for n, each in zip(rows.to_pylist(), stays, strict=True) if each]
            for row in names:
                headers = [list(row["headers"])] if row["headers"] else None
                stamp = Stamp(row["offset"], 0, 1)
                smaller += encode_records([b"v"], [row["subject"]], stamp, headers=headers)
    again = SubjectHistory(limit)
    again.apply(memoryview(smaller))
    assert sorted((offset, subject) for subject, offset in again.kept(())) == kept


@pytest.mark.parametrize("value", [None, b"", b"1234567", b"123456789"])
def test_a_purge_without_an_offset_is_corrupt(value):
    """Its value has eight bytes."""
    with pytest.raises(CorruptBatchError):
        parse_purge(value)

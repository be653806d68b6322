"""The subject index tells of any records what looking at each of them would."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.record.subjects import subject_matches
from strandline.storage.subject_index import (
    DamagedIndexError,
    IndexedLog,
    SubjectRows,
    check_subjects,
    decode_subjects,
    encode_subjects,
)

TOKEN = st.sampled_from(
    ["a", "b", "ab", "ä", "$KV", "_INBOX", "_INBOXES", "_INBOX_PRIVATE", "a-b", "(", "x" * 40]
)
SUBJECT = st.lists(TOKEN, min_size=1, max_size=3).map(".".join)
PATTERN = st.lists(TOKEN | st.just("*"), min_size=1, max_size=3).flatmap(
    lambda tokens: st.sampled_from([".".join(tokens), ".".join([*tokens, ">"]), ">"])
)
RECORDS = st.lists(st.tuples(st.integers(1, 5), SUBJECT), max_size=40)


def rows_of(records: list[tuple[int, str]]) -> SubjectRows:
    subjects = pa.array([subject for _, subject in records], pa.string()).dictionary_encode()
    return SubjectRows(np.array([offset for offset, _ in records], np.int64), subjects)


def placed(gaps: list[tuple[int, str]], base: int) -> list[tuple[int, str]]:
    """Records with ascending offsets."""
    found, offset = [], base - 1
    for gap, subject in gaps:
        offset += gap
        found.append((offset, subject))
    return found


@given(RECORDS, st.integers(0, 1 << 40), PATTERN, st.integers(0, 40), st.integers(-3, 90))
@example([(1, "a")] * 9, 5, "a", 3, 4)  # one subject has every offset
def test_lookups_agree_with_the_records(gaps, base, pattern, split, shift):
    """What a pattern finds, its counts and offsets, however the index was merged."""
    records = placed(gaps, base)
    end = records[-1][0] + 1 if records else base
    about = IndexedLog(1000, 900, 7, base, end)
    split = min(split, len(records))
    one, other = rows_of(records[:split]), rows_of(records[split:])
    merged = encode_subjects(about, [other, one])
    assert merged == encode_subjects(about, [rows_of(records)])
    index = check_subjects(merged)
    assert index is not None
    assert index.about == about
    assert encode_subjects(about, [index.rows()]) == merged
    names = sorted({subject for _, subject in records}, key=str.encode)
    matching = [name for name in names if subject_matches(pattern, name)]
    numbers = index.find([pattern])
    assert index.names(numbers) == matching
    offsets = [offset for offset, subject in records if subject in matching]
    assert index.offsets(numbers).tolist() == offsets
    counts = [sum(subject == name for _, subject in records) for name in matching]
    assert index.counts(numbers).tolist() == counts
    start = base + shift
    assert index.count(numbers, start, end) == sum(offset >= start for offset in offsets)
    assert index.count(numbers, base, start) == sum(offset < start for offset in offsets)
    assert index.names(index.find([])) == names


@given(st.lists(PATTERN, min_size=1, max_size=3), st.lists(SUBJECT, min_size=1, max_size=20))
def test_several_patterns_find_each_subject_once(patterns, subjects):
    """A subject that matches two of them counts once."""
    records = list(enumerate(subjects))
    about = IndexedLog(1, 0, 0, 0, len(records))
    index = decode_subjects(encode_subjects(about, [rows_of(records)]))
    assert index is not None
    found = index.names(index.find(patterns))
    wanted = {each for each in subjects if any(subject_matches(p, each) for p in patterns)}
    assert found == sorted(wanted, key=str.encode)


@pytest.mark.parametrize("count", [3, 3000], ids=["one block", "several blocks"])
def test_every_flip_is_met(count):
    """Whichever byte is damaged: no lookup gives another answer than the intact index."""
    records = [(offset, f"s.{offset % (count - 1):05d}") for offset in range(count)]
    about = IndexedLog(1, 0, 0, 0, count)
    data = encode_subjects(about, [rows_of(records)])
    assert (len(data) > 40_000) == (count == 3000)
    for byte in range(0, len(data), max(1, len(data) // 300)):
        flipped = bytearray(data)
        flipped[byte] ^= 4
        assert check_subjects(flipped) is None
        index = decode_subjects(flipped)
        if index is None:
            continue
        for offset, subject in records[:: count // 3]:
            try:
                assert offset in index.offsets(index.find([subject]))
            except DamagedIndexError:
                continue
    assert decode_subjects(data[:-1]) is None
    assert decode_subjects(b"") is None


def test_a_subject_takes_few_bytes():
    """Many distinct subjects of 20 bytes take less than 40 bytes each."""
    count = 100_000
    records = [(offset, f"$KV.profiles.{offset:07d}") for offset in range(count)]
    data = encode_subjects(IndexedLog(1, 0, 0, 0, count), [rows_of(records)])
    assert len(data) / count < 33

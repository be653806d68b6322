"""Which partition a record goes to: one by one and by batch, always the same."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.api.put import normalise
from strandline.api.routing import Router, default_subject
from strandline.config import StreamConfig
from strandline.record.partitioner import partition_of

RULES = ("suffix", "subject", "key", "message_id")


def router(rule: str, partitions: int = 5) -> Router:
    """The router of a stream bound to ``s``."""
    return Router(StreamConfig(name="s", subject="s", partitions=partitions, partition_by=rule))


@pytest.mark.parametrize(
    ("pattern", "subject"), [("a.b", "a.b"), ("a.*.c", "a._.c"), ("a.>", "a._"), (">", "_")]
)
def test_a_wildcard_stream_has_a_plain_default_subject(pattern, subject):
    """Records appended without a subject get one that the stream's own pattern matches."""
    assert default_subject(pattern) == subject


def test_the_hash_of_a_key_stays_the_same():
    """CRC-32, by its published check value: another hash would split the records of each key."""
    assert partition_of(b"123456789", 10_000) == 0xCBF43926 % 10_000


def test_subject_rule_goes_by_subject():
    """The partition is the same as for publishes through NATS, for any key."""
    assert router("subject").of_record(b"k", "s.x", None) == partition_of(b"s.x", 5)
    assert router("subject").of_record(b"k", None, None) == partition_of(b"k", 5)


def test_key_rule_goes_by_key():
    """A record without a key goes by its subject."""
    assert router("key").of_record(b"k", "s.x", None) == partition_of(b"k", 5)
    assert router("key").of_record(None, "s.x", None) == partition_of(b"s.x", 5)


@pytest.mark.parametrize(
    ("subject", "partition"),
    [
        ("s", 0),
        ("s.1", 1),
        ("s.4", 4),
        ("s.5", 0),
        ("s.01", 0),
        ("s.x", 0),
        ("t.1", 0),
        ("s.1.2", 0),
    ],
)
def test_suffix_rule_goes_by_number(subject, partition):
    """Subject ``s.N`` is partition N, as Liftbridge has it; others are partition 0."""
    assert router("suffix").of_record(None, subject, None) == partition


def test_a_retry_with_its_message_id_goes_where_the_first_try_went():
    """Else it could not be recognised as a duplicate."""
    assert router("suffix").of_record(None, None, "id") == partition_of(b"id", 5)


def test_message_id_rule_goes_by_message_id():
    """Whatever subject and key; a record without an id goes by its subject."""
    made = router("message_id")
    assert made.of_record(b"k", "s.x", "id") == partition_of(b"id", 5)
    assert made.of_record(b"k", "s.x", None) == partition_of(b"s.x", 5)
    assert made.of_record(b"k", None, "\udce8") == partition_of(b"\xe8", 5)


def test_a_record_without_anything_may_go_anywhere():
    """The producer then fills one batch after another."""
    assert router("key").of_record(None, None, None) is None
    assert router("key", partitions=1).of_record(None, None, None) == 0


ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=2),
        st.none() | st.sampled_from(["s", "s.1", "s.3", "s.9", "x.y"]),
        st.none() | st.text(max_size=2),
    ),
    min_size=1,
    max_size=40,
)


@given(rows=ROWS, rule=st.sampled_from(RULES), partitions=st.integers(1, 7), spread=st.integers(0))
def test_a_batch_is_split_as_its_rows_would_be(rows, rule, partitions, spread):
    """The vectorised split agrees with the single record, keeps rows whole and in order."""
    columns = {
        "value": [str(place).encode() for place in range(len(rows))],
        "key": pa.array([row[0] for row in rows], pa.binary()),
        "subject": pa.array([row[1] for row in rows], pa.string()),
        "message_id": pa.array([row[2] for row in rows], pa.string()),
    }
    batch = normalise(pa.RecordBatch.from_pydict(columns))
    by_record = router(rule, partitions)
    found = {}
    for number, piece, places in by_record.of_batch(batch, spread=spread):
        values = [int(value) for value in piece.column("value").to_pylist()]
        assert values == sorted(values)
        assert values == (list(range(len(rows))) if places is None else places.to_pylist())
        found.update(dict.fromkeys(values, number))
    expected = {}
    for place, (key, subject, message_id) in enumerate(rows):
        number = by_record.of_record(key, subject, message_id)
        expected[place] = spread % partitions if number is None else number
    assert found == expected

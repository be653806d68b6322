"""Sessions, entries and snapshots: applied once, answered the same, read back the same."""

import msgspec
import pytest

from strandline.config import StreamConfig
from strandline.core.metadata.apply import SESSIONS_MAX, apply_entry
from strandline.core.metadata.check import SESSIONS_CAP, check_image
from strandline.core.metadata.commands import (
    AllocateProducerIds,
    CreateStream,
    DeleteStream,
    Drain,
    OpenSession,
    Proposed,
    decode_entry,
    encode_entry,
)
from strandline.core.metadata.image import IMAGE_VERSION, MetadataImage
from strandline.core.metadata.snapshot import decode_image, decode_json, encode_image, encode_json
from strandline.errors import InvalidRecordError, InvalidRequestError, StreamExistsError
from strandline.security.producer_ids import NUMBER_BITS, OWNERS_MAX, owner_of


@pytest.fixture
def session():
    """An image with one session."""
    image, outcome = apply_entry(MetadataImage(), OpenSession())
    return image, outcome.value


def test_a_retry_is_answered_and_not_applied(session):
    """The second of two equal proposals gets the first one's ids and takes none."""
    image, client = session
    entry = Proposed(client, 1, AllocateProducerIds(5))
    once, first = apply_entry(image, entry)
    twice, second = apply_entry(once, entry)
    assert first.value == 1
    assert second == first
    assert twice is once


def test_a_rejection_is_recorded_too(session):
    """A retry of a rejected command is rejected, even if it would apply now."""
    image, client = session
    entry = Proposed(client, 1, DeleteStream("s"))
    image, first = apply_entry(image, entry)
    create = CreateStream(StreamConfig(name="s", subject="s"), 1)
    image, _ = apply_entry(image, create)
    after, second = apply_entry(image, entry)
    assert first.code == "unknown_stream"
    assert second == first
    assert "s" in after.streams


def test_an_earlier_sequence_is_not_applied(session):
    """An entry that was overtaken by a later one of its session comes too late."""
    image, client = session
    image, _ = apply_entry(image, Proposed(client, 3, AllocateProducerIds(1)))
    after, outcome = apply_entry(image, Proposed(client, 2, AllocateProducerIds(1)))
    assert outcome.reason == "sequence_passed"
    assert after is image
    for later in (image, session[0]):
        after, outcome = apply_entry(later, Proposed(client, 0, AllocateProducerIds(1)))
        assert outcome.reason == "sequence_passed"
        assert after is later


def test_the_session_not_used_for_longest_is_forgotten(session):
    """Used sessions stay, and a retry in a forgotten one is rejected."""
    image, client = session
    image, other = apply_entry(image, OpenSession())
    for sequence in range(1, SESSIONS_MAX):
        image, _ = apply_entry(image, OpenSession())
        image, outcome = apply_entry(image, Proposed(client, sequence, AllocateProducerIds(1)))
        assert outcome.is_applied
    assert len(image.sessions) == SESSIONS_MAX == SESSIONS_CAP
    after, outcome = apply_entry(image, Proposed(other.value, 1, AllocateProducerIds(1)))
    assert outcome.reason == "session_expired"
    assert after is image


def test_a_session_is_not_opened_within_one(session):
    """It could be forgotten in favour of the one it opens."""
    image, client = session
    after, outcome = apply_entry(image, Proposed(client, 1, OpenSession()))
    assert outcome.reason == "limit"
    assert after is image


def test_an_outcome_becomes_the_error_it_stands_for(session):
    """The proposer raises the state machine's error, on any broker."""
    image, _ = session
    create = CreateStream(StreamConfig(name="s", subject="s"), 1)
    image, outcome = apply_entry(image, create)
    outcome.raise_if_rejected()
    _, outcome = apply_entry(image, create)
    with pytest.raises(StreamExistsError, match="exists"):
        outcome.raise_if_rejected()
    _, outcome = apply_entry(image, Drain(1))
    with pytest.raises(InvalidRequestError, match="no broker 1"):
        outcome.raise_if_rejected()


def test_a_producer_id_says_to_whom_it_was_given():
    """Every principal keeps its number, nobody's is 0, and no number is used twice."""
    image, found = MetadataImage(), []
    for owner in ("", "ann", "bob", "ann", ""):
        image, outcome = apply_entry(image, AllocateProducerIds(10, owner))
        found.append(outcome.value)
    assert [owner_of(first) for first in found] == [0, 1, 2, 1, 0]
    assert [first & (1 << NUMBER_BITS) - 1 for first in found] == [1, 11, 21, 31, 41]
    assert check_image(image) == []
    assert decode_image(encode_image(image)) == image
    full = msgspec.structs.replace(
        image, producer_owners={str(n): n for n in range(1, OWNERS_MAX + 1)}
    )
    assert apply_entry(full, AllocateProducerIds(1, "one more"))[1].reason == "limit"
    last = apply_entry(full, AllocateProducerIds(1, str(OWNERS_MAX)))[1].value
    assert 0 < last < 1 << 63, "it fits into a batch header"


@pytest.mark.parametrize("count", [0, -1, 10**9])
def test_producer_ids_come_in_blocks_of_reason(session, count):
    """No block is empty or uses the numbers up."""
    _, outcome = apply_entry(session[0], AllocateProducerIds(count))
    assert outcome.reason == "limit"


def test_an_entry_survives_the_log(cluster):
    """Decoding returns the encoded entry."""
    made = cluster()
    entry = Proposed(7, 8, CreateStream(StreamConfig(name="s", subject="s"), 1, ((1, 2), (2, 1))))
    assert decode_entry(encode_entry(entry)) == entry
    assert made.do(decode_entry(encode_entry(OpenSession()))).value == 1


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x81\xa4type\xa1x", b"\xff" * 9, b"\xa1\xff"])
def test_bytes_that_are_no_entry_are_rejected(data):
    """A typed error, whatever the bytes."""
    with pytest.raises(InvalidRecordError):
        decode_entry(data)


def test_a_snapshot_is_the_image(cluster):
    """Both encodings decode to the original image."""
    made = cluster(4)
    made.create("s", (1, 2, 3), (2, 3, 4), min_isr=2)
    made.fence(2)
    made.do(OpenSession())
    made.do(Proposed(1, 1, Drain(9)))
    assert decode_image(encode_image(made.image)) == made.image
    assert decode_json(encode_json(made.image)) == made.image


@pytest.mark.parametrize("version", [0, IMAGE_VERSION + 1])
def test_a_snapshot_of_another_version_is_rejected(version):
    """By its version, before anything else of it is looked at."""
    import msgspec

    later = {"version": version, "streams": "somewhere else"}
    with pytest.raises(InvalidRecordError, match=f"version {version}"):
        decode_image(msgspec.msgpack.encode(later))
    with pytest.raises(InvalidRecordError, match=f"version {version}"):
        decode_json(msgspec.json.encode(later))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\x00", b"[]", b'{"version":3,"streams":3}'])
def test_bytes_that_are_no_snapshot_are_rejected(data):
    """A typed error, whatever the bytes."""
    for decode in (decode_image, decode_json):
        with pytest.raises(InvalidRecordError):
            decode(data)


def test_sessions_have_consecutive_ids(session):
    """No id is used twice, and none is left out."""
    image, client = session
    for number in range(1, 4):
        image, opened = apply_entry(image, OpenSession())
        assert opened.value == client + number
    assert image.next_client_id == client + 4

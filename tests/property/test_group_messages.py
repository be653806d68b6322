"""Messages and log entries of consumer groups: any bytes, and every value."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.api import groups as wire
from strandline.api.wire import decode, encode
from strandline.core.groups.state import GroupEntry, GroupMember, decode_entry, encode_entry
from strandline.errors import InvalidRecordError, InvalidRequestError
from strandline.types import PartitionName

names = st.text(min_size=1, max_size=20)
numbers = st.integers(0, 1 << 40)
partitions = st.frozensets(st.builds(PartitionName, names, st.integers(0, 9999)), max_size=5)
positions = st.dictionaries(names, st.dictionaries(st.integers(0, 9999), numbers), max_size=3)
members = st.builds(
    GroupMember,
    id=names,
    instance=st.text(max_size=5),
    streams=st.lists(names, max_size=3).map(tuple),
    session_ms=numbers,
    epoch=numbers,
    assigned=partitions,
    revoking=partitions,
)
entries = st.builds(
    GroupEntry,
    group=names,
    epoch=numbers,
    members=st.lists(members, max_size=3).map(tuple),
    gone=st.lists(names, max_size=3).map(tuple),
    positions=positions,
    commit_numbers=st.dictionaries(names, numbers, max_size=3),
    is_deleted=st.booleans(),
)
MESSAGES = (
    wire.JoinGroupRequest,
    wire.GroupHeartbeat,
    wire.LeaveGroupRequest,
    wire.CommitOffsets,
    wire.GroupRef,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(entries)
def test_an_entry_is_read_as_it_was_written(entry):
    """Every entry survives the log."""
    assert decode_entry(encode_entry(entry)) == entry


@given(st.binary(max_size=200) | json_values.map(msgspec.json.encode))
def test_any_bytes_are_an_entry_or_an_error_of_ours(data):
    """Nothing else comes out of it."""
    with contextlib.suppress(InvalidRecordError):
        assert isinstance(decode_entry(data), GroupEntry)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.binary(max_size=200) | json_values.map(msgspec.json.encode))
def test_any_bytes_are_a_request_or_an_error_of_ours(kind, data):
    """Any client bytes decode to a request or raise one of our errors."""
    with contextlib.suppress(InvalidRequestError):
        assert isinstance(decode(data, kind, what="request"), kind)


@pytest.mark.parametrize(
    "message",
    [
        wire.JoinGroupRequest(group="g" * 401, member="m", streams=("s",), session_ms=1),
        wire.JoinGroupRequest(group="g", member="m", streams=(), session_ms=1),
        wire.JoinGroupRequest(group="g", member="m", streams=("s",) * 1001, session_ms=1),
        wire.CommitOffsets(group="g", positions={}, metadata="x" * 4097),
        wire.CommitOffsets(group="g", positions={"s": {0: -1}}),
        wire.GroupHeartbeat(group="g", member="", epoch=1),
    ],
    ids=["long-name", "no-stream", "many-streams", "long-metadata", "negative", "nobody"],
)
def test_requests_beyond_their_limits_are_rejected(message):
    """Lengths and ranges are checked before anything is done."""
    with pytest.raises(InvalidRequestError):
        decode(encode(message), type(message), what="request")

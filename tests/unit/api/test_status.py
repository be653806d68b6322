"""Errors across the wire: every class, with its code, message and fields, both ways."""

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from strandline.api.status import (
    MESSAGE_CHARACTERS_MAX,
    ErrorBody,
    from_body,
    from_flight,
    to_body,
    to_flight,
)
from strandline.api.wire import encode
from strandline.errors import (
    CorruptBatchError,
    DisconnectedError,
    InvalidRecordError,
    RequestTimeoutError,
    StrandlineError,
    UnavailableError,
    all_error_classes,
)


@pytest.mark.parametrize("cls", all_error_classes(), ids=lambda cls: cls.code)
def test_every_error_arrives_as_itself(cls):
    """Class, code and message of each error cross the wire whole."""
    sent = cls("what to do: é")
    arrived = from_flight(to_flight(sent), address="h:1")
    assert type(arrived) is cls
    assert arrived.message == "what to do: é"
    assert arrived.code == cls.code


def test_a_corrupt_batch_says_where_it_is():
    """File, position and the hole's extent travel, and the message is not built twice."""
    sent = CorruptBatchError("checksum mismatch", file="0.log", position=4096)
    sent.first_offset, sent.next_offset = 10, 20
    arrived = from_flight(to_flight(sent), address="h:1")
    assert isinstance(arrived, CorruptBatchError)
    assert (arrived.file, arrived.position) == ("0.log", 4096)
    assert (arrived.first_offset, arrived.next_offset) == (10, 20)
    assert arrived.message == sent.message


def test_long_messages_are_cut_to_what_grpc_carries():
    """Metadata is limited, in bytes: a message of any length or script still arrives."""
    for text in ("x" * 100_000, "é" * 100_000, "\U0001f30a" * 100_000, "\ud800"):
        body = to_body(StrandlineError(text))
        assert len(body.message) <= MESSAGE_CHARACTERS_MAX
        assert len(encode(body)) < 2048


def test_an_error_of_a_newer_broker_keeps_its_nature():
    """An unknown code becomes the nearest known parent: retriable or not."""
    assert type(from_body(ErrorBody(code="new", message="m"))) is StrandlineError
    assert type(from_body(ErrorBody(code="new", message="m", retriable=True))) is UnavailableError


@pytest.mark.parametrize(
    ("raised", "cls", "part"),
    [
        (fl.FlightUnavailableError("connection refused"), DisconnectedError, "strandline serve"),
        (fl.FlightCancelledError("gone"), DisconnectedError, "h:1"),
        (fl.FlightTimedOutError("late"), RequestTimeoutError, "unknown"),
        (fl.FlightInternalError("odd"), StrandlineError, "odd"),
        (fl.FlightServerError("odd", b"\xff not ours"), StrandlineError, "odd"),
        (pa.ArrowInvalid("bad offsets"), InvalidRecordError, "bad offsets"),
        (RuntimeError("?"), StrandlineError, "h:1"),
    ],
)
def test_errors_no_broker_wrote_are_judged_by_their_kind(raised, cls, part):
    """Network and Arrow failures become our errors with a remedy."""
    arrived = from_flight(raised, address="h:1")
    assert type(arrived) is cls
    assert part in arrived.message

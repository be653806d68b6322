"""Subjects of the JetStream API: which operation, on which stream."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.servers.nats.jetstream.ack_bodies import PLAIN_ACKS
from strandline.servers.nats.jetstream.subjects import (
    OPERATIONS,
    PREFIX,
    ApiCall,
    parse_ack,
    parse_ack_names,
    parse_subject,
)
from strandline.speedups import plain_acks


@pytest.mark.parametrize(
    ("subject", "call"),
    [
        ("INFO", ApiCall("INFO")),
        ("STREAM.NAMES", ApiCall("STREAM.NAMES")),
        ("STREAM.INFO.S", ApiCall("STREAM.INFO", "S")),
        ("STREAM.MSG.GET.S", ApiCall("STREAM.MSG.GET", "S")),
        ("DIRECT.GET.S", ApiCall("DIRECT.GET", "S")),
        ("DIRECT.GET.S.a.b", ApiCall("DIRECT.GET", "S", "", "a.b")),
        ("STREAM.INFO.NAMES", ApiCall("STREAM.INFO", "NAMES")),
        ("STREAM.DELETE.MSG", ApiCall("STREAM.DELETE", "MSG")),
        ("STREAM.MSG.GET.GET", ApiCall("STREAM.MSG.GET", "GET")),
        ("STREAM.INFO", ApiCall("")),
        ("STREAM.INFO.S.more", ApiCall("")),
        ("STREAM", ApiCall("")),
        ("", ApiCall("")),
    ],
)
def test_operations_are_told_apart(subject, call):
    """Also where a stream has the name of an operation, or too few or many names follow."""
    assert parse_subject(PREFIX + subject) == call


NAMES = {
    **dict.fromkeys(("INFO", "STREAM.NAMES", "STREAM.LIST"), (0, 0)),
    **{f"STREAM.{each}": (1, 1) for each in ("CREATE", "UPDATE", "INFO", "DELETE", "PURGE")},
    **dict.fromkeys(("STREAM.MSG.GET", "STREAM.MSG.DELETE", "STRANDLINE.READ"), (1, 1)),
    **dict.fromkeys(("CONSUMER.NAMES", "CONSUMER.LIST"), (1, 1)),
    **{f"CONSUMER.{each}": (2, 2) for each in ("INFO", "DELETE", "PAUSE", "MSG.NEXT")},
    "CONSUMER.DURABLE.CREATE": (2, 2),
    "CONSUMER.CREATE": (1, 9),
    "DIRECT.GET": (1, 9),
}


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_an_operation_has_as_many_names_as_jetstreams(operation):
    """One less or more is another operation, or none."""
    least, most = NAMES[operation]
    for count in range(5):
        call = parse_subject(f"{PREFIX}{operation}{'.x' * count}")
        assert (call.operation == operation) == (least <= count <= most), count


def test_answers_are_named_after_operations():
    """Clients check the type of an answer."""
    assert ApiCall("INFO").answer_type == "io.nats.jetstream.api.v1.account_info_response"
    assert ApiCall("STREAM.MSG.GET").answer_type.endswith(".stream_msg_get_response")


@given(st.text(), st.sampled_from(sorted(OPERATIONS)))
def test_any_subject_is_some_call(text, operation):
    """Any text is taken apart, and what is behind an operation is in the call."""
    for subject in (text, f"{operation}.{text}"):
        call = parse_subject(PREFIX + subject)
        assert call.operation in {"", *OPERATIONS}
        names = [part for part in (call.stream, call.consumer, call.subject) if part]
        assert call.operation == "" or ".".join([call.operation, *names]).rstrip(".") in subject


NUMBERS = st.sampled_from(["0", "1", "17", "9" * 20, "9" * 21, "", "x", "1_0", "²"])
SOME_ACKS = st.builds(
    lambda *tokens: ".".join(("$JS.ACK", *tokens)).encode(),
    st.sampled_from(["S", "T", "ü"]),
    st.sampled_from(["c", "d.e", ""]),
    *[NUMBERS] * 5,
)


@given(st.lists(SOME_ACKS | st.binary(max_size=9), max_size=6))
def test_acknowledgements_parsed_together_are_those_parsed_alone(subjects):
    """By consumer, in order; one that is no acknowledgement lets all be parsed alone."""
    messages = [(subject, b"", None, None, b"+ACK") for subject in subjects]
    alone = [parse_ack(subject.decode(errors="replace")) for subject in subjects]
    together = plain_acks(messages, PLAIN_ACKS)
    names = [parse_ack_names(each.decode(errors="replace")) for each in together or ()]
    if together is None or None in names:
        assert not all(ack is not None and ack.stream and ack.consumer for ack in alone)
        return
    expected = {}
    for ack in alone:
        numbers = ack.sequence, ack.consumer_sequence
        expected.setdefault((ack.stream, ack.consumer), []).append(numbers)
    assert dict(zip(names, together.values(), strict=True)) == expected

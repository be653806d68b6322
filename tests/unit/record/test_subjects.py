"""Subjects: validity, matching and targets."""

import pytest

from strandline.errors import InvalidSubjectError
from strandline.record.subjects import (
    SUBJECT_BYTES_MAX,
    SubjectRouter,
    is_reserved,
    subject_matches,
    subjects_overlap,
    validate_subject,
)


@pytest.mark.parametrize("subject", ["a", "a.b.c", "flights.JFK.AA", "größe.1", "a-b_c.$x", "_x"])
def test_plain_subjects_are_valid(subject):
    """A plain subject passes with and without wildcards allowed."""
    validate_subject(subject)
    validate_subject(subject, wildcards=True)


@pytest.mark.parametrize("pattern", ["*", ">", "a.*", "a.>", "*.b.*", "*.>"])
def test_wildcards_are_valid_only_where_allowed(pattern):
    """A pattern may be bound but not published to."""
    validate_subject(pattern, wildcards=True)
    with pytest.raises(InvalidSubjectError, match="wildcard"):
        validate_subject(pattern)


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        ("", "empty"),
        (".", "empty token"),
        ("a..b", "empty token"),
        (".a", "empty token"),
        ("a.", "empty token"),
        ("a b", "white space"),
        ("a\tb", "white space"),
        ("a\r\nPUB b 0", "white space"),
        ("a\x00", "control"),
        ("a.>.b", "last token"),
        ("a.b*", "whole token"),
        ("a.>>", "whole token"),
        ("a" * (SUBJECT_BYTES_MAX + 1), str(SUBJECT_BYTES_MAX)),
        ("ß" * (SUBJECT_BYTES_MAX // 2 + 1), str(SUBJECT_BYTES_MAX)),
        ("a\ud800", "half of a character"),
    ],
)
def test_invalid_subjects_say_why(subject, why):
    """The error has the fault, or the limit."""
    with pytest.raises(InvalidSubjectError, match=why):
        validate_subject(subject, wildcards=True)


MATCHES = [
    ("a", "a", True),
    ("a", "b", False),
    ("a", "a.b", False),
    ("a.*", "a.b", True),
    ("a.*", "a", False),
    ("a.*", "a.b.c", False),
    ("*.b", "a.b", True),
    ("a.>", "a.b", True),
    ("a.>", "a.b.c", True),
    ("a.>", "a", False),
    ("a.>", "ab.c", False),
    ("a.b.>", "a.bc.d", False),
    ("a.*.>", "a.b", False),
    ("a*.>", "a*.b", True),
    ("a*.>", "ab.b", False),
    (">", "a", True),
    (">", "a.b.c", True),
    ("*", "a", True),
    ("*.*.>", "a.b", False),
    ("*.*.>", "a.b.c", True),
    ("a.*.c", "a.b.c", True),
    ("a.*.c", "a.b.d", False),
    (">", "_INBOX.x.1", False),
    ("*.x", "_INBOX.x", False),
    (">", "$SYS.account", False),
    ("_INBOX.>", "_INBOX.x", True),
    ("$app.*", "$app.x", True),
    ("a.>", "a._INBOX.x", True),
    (">", "_INBOXES.x", True),
    (">", "_INBOX_PRIVATE.x.1", False),
    (">", "_INBOX_PRIVATES.x", True),
]


@pytest.mark.parametrize(("pattern", "subject", "expected"), MATCHES)
def test_matching(pattern, subject, expected):
    """Patterns match as in NATS, except that leading wildcards leave reserved subjects alone."""
    assert subject_matches(pattern, subject) is expected


@pytest.mark.parametrize(("pattern", "subject", "expected"), MATCHES)
def test_router_agrees_with_matching(pattern, subject, expected):
    """The router finds a target exactly when its pattern matches."""
    router = SubjectRouter([(pattern, "target"), ("unrelated.z", "other")])
    assert router.match(subject) == (["target"] if expected else [])


def test_router_finds_all_in_order():
    """All matching targets are found, in the order in which they were given."""
    patterns = [">", "a.b", "a.*", "*.b", "a.>", "a.b", "b.>"]
    router = SubjectRouter(list(zip(patterns, range(len(patterns)), strict=True)))
    assert router.match("a.b") == [0, 1, 2, 3, 4, 5]
    assert router.match("b") == [0]
    assert router.match("b.b") == [0, 3, 6]


def test_router_without_bindings_matches_nothing():
    """An empty router has no targets for anything."""
    assert SubjectRouter([]).match("a.b.c") == []


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("_INBOX.a", True),
        ("_INBOX_PRIVATE.a.b", True),
        ("_INBOX_OTHER.a", False),
        ("$JS.API", True),
        ("_INBOX", True),
        ("INBOX.a", False),
        ("a.$b", False),
    ],
)
def test_reserved_subjects(subject, expected):
    """NATS' own subjects are recognized by their first token."""
    assert is_reserved(subject) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a", "a", True), ("a", "b", False), ("a.*", "a.b", True), ("a.*", "*.b", True),
        ("a.*", "b.*", False), ("a.>", "a", False), ("a.>", "a.b.c", True), ("a.>", "*.b.>", True),
        ("a.*", "a.b.c", False), (">", "a.b", True), (">", "$JS.API", False),
        ("*.x", "_INBOX.x", False), ("$JS.>", "$JS.*", True), (">", "*", True),
    ],
)  # fmt: skip
def test_overlapping_patterns(one, other, expected):
    """Two patterns overlap if some subject matches both, in either order."""
    assert subjects_overlap(one, other) is subjects_overlap(other, one) is expected

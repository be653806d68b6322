"""Tokens: their form, and which are accepted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidRequestError
from strandline.security.principal import BROKERS
from strandline.security.tokens import (
    ID_BYTES,
    SECRET_BYTES,
    Token,
    bearer_token,
    check_token,
    fingerprint,
    is_text_of,
    token_id,
    token_text,
)

RANDOM = st.binary(min_size=ID_BYTES + SECRET_BYTES, max_size=ID_BYTES + SECRET_BYTES)


def token(**fields) -> Token:
    """A valid token, with the given changes."""
    values = {"id": "0123abcd", "principal": "app", "sha256": bytes(32), "created_ns": 5}
    return Token(**{**values, **fields})


@given(RANDOM)
def test_a_token_is_known_by_its_id_and_its_whole_text(random):
    """The id is found again, the hash fits, and the text is fit for a header."""
    text = token_text(random)
    assert token_id(text) == random[:ID_BYTES].hex()
    assert is_text_of(text, fingerprint(text))
    assert text.isascii()
    assert " " not in text


@given(RANDOM, RANDOM)
def test_another_token_is_another_token(one, other):
    """Two tokens have one text only if they have one secret."""
    assert is_text_of(token_text(one), fingerprint(token_text(other))) is (one == other)


@given(st.text())
def test_what_is_not_exactly_a_token_has_no_id(text):
    """Whatever is shown, there is an answer; it hashes to something else than nothing."""
    found = token_id(text)
    assert found is None or text.startswith(f"slt_{found}_")
    assert not is_text_of(text, b"")
    assert not is_text_of(text, bytes(32))


@pytest.mark.parametrize("cut", [0, 1, 4, 12, 13, -1])
def test_a_part_of_a_token_is_worth_nothing(cut):
    """The id alone, or all but a character, opens nothing."""
    text = token_text(bytes(range(36)))
    assert not is_text_of(text[:cut], fingerprint(text))


def test_nothing_shown_fits_no_hash():
    """The empty text is never right, not even where its own hash is kept."""
    assert not is_text_of("", fingerprint(""))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
        ("abc", ""),
        ("Basic abc", ""),
        ("Bearer", ""),
        ("", ""),
    ],
)
def test_a_header_carries_a_bearer_token_or_none(header, expected):
    """Another authorization header is an empty token, which is rejected, not a missing one."""
    assert bearer_token(header) == expected


def test_brokers_may_have_tokens_and_nobody_else_of_that_name():
    """Names of the broker's own are for brokers; which of them is not for a token to say."""
    check_token(token())
    check_token(token(principal=BROKERS.name))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"principal": "__admin"}, "no name"),
        ({"principal": ""}, "no name"),
        ({"id": "0123ABCD"}, "hexadecimal"),
        ({"id": ""}, "hexadecimal"),
        ({"sha256": b""}, "32 bytes"),
        ({"expires_ns": 5}, "expire before"),
    ],
)
def test_a_token_that_could_not_be_shown_is_rejected(fields, message):
    """The metadata stores no token that no client could present."""
    with pytest.raises(InvalidRequestError, match=message):
        check_token(token(**fields))

"""Tokens that authenticate clients, and the little that the broker stores of each.

A token is ``slt_ID_SECRET``: an id of eight hexadecimal digits, by which it is found and revoked,
and 256 random bits. Only the SHA-256 of the whole text is stored. A slow salted hash would protect
secrets that people choose; 256 random bits cannot be guessed.

Rules: the caller passes the random bytes. Hashes are compared in constant time. A text that
deviates from the format is no valid token.
"""

import base64
import hashlib
import hmac
import re
from typing import Final

import msgspec

from strandline.errors import InvalidRequestError
from strandline.security.principal import BROKERS, check_user_name

PREFIX: Final = "slt"
ID_BYTES: Final = 4
SECRET_BYTES: Final = 32
SHA256_BYTES: Final = 32
TEXT_BYTES_MAX: Final = 512
"""Longer texts are rejected without hashing them."""
BOOTSTRAP_CHARACTERS_MIN: Final = 32
_ID = re.compile(r"[0-9a-f]{8}")
_TEXT = re.compile(rf"{PREFIX}_([0-9a-f]{{8}})_[A-Za-z0-9_-]{{43}}")


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is stored."""

    id: str
    principal: str
    sha256: bytes
    created_ns: int
    expires_ns: int = 0
    """The time from which the token is invalid; 0: never."""


def token_text(random: bytes) -> str:
    """Return the text of a new token.

    Args:
        random: ``ID_BYTES + SECRET_BYTES`` bytes from a cryptographic source.
    """
    assert len(random) == ID_BYTES + SECRET_BYTES, "the id, then the secret"
    secret = base64.urlsafe_b64encode(random[ID_BYTES:]).rstrip(b"=").decode()
    return f"{PREFIX}_{random[:ID_BYTES].hex()}_{secret}"


def token_id(text: str) -> str | None:
    """Return the id of a token; None if the text is not a token."""
    found = _TEXT.fullmatch(text)
    return found[1] if found is not None else None


def check_token_id(text: str) -> None:
    """Reject what cannot be the id of a token.

    Raises:
        InvalidRequestError: it is none; the message has no token's text.
    """
    if _ID.fullmatch(text):
        return
    if (own := token_id(text)) is not None:
        raise InvalidRequestError(f"give the id of the token, {own!r}, and not its text")
    raise InvalidRequestError(
        f"{text[:80]!r} is not the id of a token; 'strandline token list' shows those there are"
    )


def fingerprint(text: str) -> bytes:
    """Return the hash of a token's text, as it is stored."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def is_text_of(text: str, sha256: bytes) -> bool:
    """Return whether a text has this hash; always False for an empty hash."""
    if len(sha256) != SHA256_BYTES or not 0 < len(text) <= TEXT_BYTES_MAX:
        return False
    return hmac.compare_digest(fingerprint(text), sha256)


def bearer_token(header: str) -> str:
    """Return the token in an ``authorization`` header; empty, and so invalid, if there is none."""
    scheme, _, text = header.strip().partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def check_token(token: Token) -> None:
    """Reject a token that no client could present, or whose principal is invalid.

    Raises:
        InvalidRequestError: the token is invalid; the message says why.
    """
    if token.principal != BROKERS.name:  # a name that only a broker's own token may have
        check_user_name(token.principal)
    if not _ID.fullmatch(token.id):
        raise InvalidRequestError("a token's id must be eight hexadecimal digits")
    if len(token.sha256) != SHA256_BYTES:
        raise InvalidRequestError("a token's SHA-256 must have 32 bytes")
    if token.expires_ns and token.expires_ns <= token.created_ns:
        raise InvalidRequestError(
            "the token would expire before its creation; choose a later expiry"
        )

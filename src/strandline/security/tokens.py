"""Tokens: what a client shows to say who it is, and the little that is kept of one.

A token is ``slt_ID_SECRET``: eight hexadecimal digits by which it is found and revoked, and 256
random bits. Only the SHA-256 of the text is kept. A slow hash with a salt, as for passwords, would
protect what people choose; nobody can guess 256 bits, nor find a text to a SHA-256.

Rules: whoever makes a token hands in the randomness; the whole text is compared, in a time that
does not depend on where it differs; what is not exactly a token is no token.
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
"""Longer texts are not even hashed."""
BOOTSTRAP_CHARACTERS_MIN: Final = 32
_ID = re.compile(r"[0-9a-f]{8}")
_TEXT = re.compile(rf"{PREFIX}_([0-9a-f]{{8}})_[A-Za-z0-9_-]{{43}}")


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """The stored form of a token."""

    id: str
    principal: str
    sha256: bytes
    created_ns: int
    expires_ns: int = 0
    """From when on it is worth nothing; 0: never."""


def token_text(random: bytes) -> str:
    """A new token.

    Args:
        random: ``ID_BYTES + SECRET_BYTES`` bytes that nobody can guess.
    """
    assert len(random) == ID_BYTES + SECRET_BYTES, "the id, then the secret"
    secret = base64.urlsafe_b64encode(random[ID_BYTES:]).rstrip(b"=").decode()
    return f"{PREFIX}_{random[:ID_BYTES].hex()}_{secret}"


def token_id(text: str) -> str | None:
    """The id of a token; None if the text is none."""
    found = _TEXT.fullmatch(text)
    return found[1] if found is not None else None


def fingerprint(text: str) -> bytes:
    """Return the stored hash of a token's text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def is_text_of(text: str, sha256: bytes) -> bool:
    """Whether a text is the one that was hashed; never, for no hash."""
    if len(sha256) != SHA256_BYTES or not 0 < len(text) <= TEXT_BYTES_MAX:
        return False
    return hmac.compare_digest(fingerprint(text), sha256)


def bearer_token(header: str) -> str:
    """The token in an ``authorization`` header; empty, which is no token, if it carries another."""
    scheme, _, text = header.strip().partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def check_token(token: Token) -> None:
    """Refuse what could never be shown, or stand for nobody.

    Raises:
        InvalidRequestError: naming what is wrong with it.
    """
    if token.principal != BROKERS.name:  # which only brokers can ask for
        check_user_name(token.principal)
    if not _ID.fullmatch(token.id):
        raise InvalidRequestError("a token's id is eight hexadecimal digits")
    if len(token.sha256) != SHA256_BYTES:
        raise InvalidRequestError("of a token its SHA-256 is kept, which has 32 bytes")
    if token.expires_ns and token.expires_ns <= token.created_ns:
        raise InvalidRequestError("the token would expire before it is made; give it a later end")

"""Keys in NATS' encoding (nkeys), and the signed tokens (JWT) that nats-server exchanges.

A public key is base32 of a prefix byte for its kind, the 32 bytes of an Ed25519 key and a CRC-16 of
both. A token is header, claims and signature in base64url, joined by dots.

Rules: private keys are created here, at every start, and never leave the process. A malformed token
raises an error. Pure, except for the randomness of a new key.
"""

import base64
import binascii
from typing import Any, Final, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from strandline.errors import UNDECODABLE, InvalidRecordError

ACCOUNT: Final = 0
SERVER: Final = 13 << 3
USER: Final = 20 << 3
HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}
TOKEN_BYTES_MAX: Final = 1 << 20
KEY_BYTES: Final = 32
T = TypeVar("T")


class _Header(msgspec.Struct, frozen=True):
    typ: str
    alg: str


class KeyPair:
    """A new key pair.

    Args:
        kind: ``ACCOUNT`` or ``USER``.
    """

    def __init__(self, kind: int) -> None:
        self._private = Ed25519PrivateKey.generate()
        self.public = encode_public(kind, self._private.public_key().public_bytes_raw())
        """The public key in NATS' encoding."""

    def sign(self, data: bytes) -> str:
        """Return a signature in the encoding that NATS clients send."""
        return _base64(self._private.sign(data)).decode()

    def token(self, claims: dict[str, Any]) -> str:
        """Return claims as a token that this key has signed."""
        body = b".".join(_base64(msgspec.json.encode(each)) for each in (HEADER, claims))
        return f"{body.decode()}.{self.sign(body)}"


def encode_public(kind: int, raw: bytes) -> str:
    """Return a public key in NATS' encoding."""
    data = bytes([kind]) + raw
    crc = binascii.crc_hqx(data, 0).to_bytes(2, "little")
    return base64.b32encode(data + crc).decode().rstrip("=")


def decode_public(kind: int, text: str) -> bytes:
    """Return the 32 bytes of a public key.

    Raises:
        InvalidRecordError: the text is not a key of this kind.
    """
    try:
        data = base64.b32decode(text + "=" * (-len(text) % 8))
    except ValueError as error:
        raise InvalidRecordError("not a NATS key") from error
    body, crc = data[:-2], data[-2:]
    is_whole = len(body) == 1 + KEY_BYTES and body[0] == kind
    if not is_whole or crc != binascii.crc_hqx(body, 0).to_bytes(2, "little"):
        raise InvalidRecordError("not a NATS key of the required kind")
    return body[1:]


def verified_claims(token: bytes, signer: str, kind: type[T]) -> T:
    """Return the claims of a token after verifying a server's signature.

    Args:
        token: the received bytes.
        signer: the server's public key.
        kind: the type of the claims.

    Raises:
        InvalidRecordError: the token is malformed, or another key has signed it.
    """
    if len(token) > TOKEN_BYTES_MAX:
        raise InvalidRecordError(f"a token of {len(token)} bytes")
    body, _, signature = token.rpartition(b".")
    header, _, claims = body.partition(b".")
    try:
        found = msgspec.json.decode(_unbase64(header), type=_Header)
        if msgspec.structs.asdict(found) != HEADER:
            raise InvalidRecordError(f"a token of algorithm {found.alg[:20]!r}")
        public = Ed25519PublicKey.from_public_bytes(decode_public(SERVER, signer))
        public.verify(_unbase64(signature), body)
        return msgspec.json.decode(_unbase64(claims), type=kind)
    except InvalidSignature as error:
        raise InvalidRecordError(
            "the token's signature is not valid for the server's key"
        ) from error
    except UNDECODABLE as error:
        raise InvalidRecordError(f"not a token: {error}") from error


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _unbase64(data: bytes) -> bytes:
    return base64.urlsafe_b64decode(data + b"=" * (-len(data) % 4))

"""Keys and tokens of NATS: the format of nats-server's own, and hostile ones."""

import base64

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.errors import InvalidRecordError
from strandline.servers.nats.nkeys import (
    ACCOUNT,
    SERVER,
    USER,
    KeyPair,
    decode_public,
    encode_public,
    verified_claims,
)


class Claims(msgspec.Struct):
    """Some claims."""

    name: str


@pytest.fixture
def server():
    """A pair as nats-server makes one for itself."""
    return KeyPair(SERVER)


@settings(max_examples=30)
@given(raw=st.binary(min_size=32, max_size=32), kind=st.sampled_from([ACCOUNT, SERVER, USER]))
def test_a_public_key_is_read_back(raw, kind):
    """Its first letter gives the kind, as in NATS, and its bytes are decoded."""
    text = encode_public(kind, raw)
    assert text[0] == {ACCOUNT: "A", SERVER: "N", USER: "U"}[kind]
    assert len(text) == 56
    assert decode_public(kind, text) == raw


def test_a_key_of_theirs_is_read():
    """The user key that NATS' documentation shows has our form and our checksum."""
    theirs = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
    assert encode_public(USER, decode_public(USER, theirs)) == theirs


@settings(max_examples=50)
@given(text=st.text(max_size=80))
def test_what_is_no_key_is_rejected(text):
    """Any other text is an error of its sender's."""
    with pytest.raises(InvalidRecordError):
        decode_public(SERVER, text)


def test_a_key_of_another_kind_is_rejected():
    """A user's key does not pass for a server's."""
    with pytest.raises(InvalidRecordError):
        decode_public(SERVER, KeyPair(USER).public)


def test_a_signature_verifies():
    """A public key verifies the signature of its private key."""
    pair = KeyPair(USER)
    signature = base64.urlsafe_b64decode(pair.sign(b"nonce") + "==")
    public = Ed25519PublicKey.from_public_bytes(decode_public(USER, pair.public))
    public.verify(signature, b"nonce")


def test_claims_are_those_that_were_signed(server):
    """A token's claims come back from its signer's key."""
    token = server.token({"name": "x"}).encode()
    assert verified_claims(token, server.public, Claims) == Claims("x")


def test_claims_of_somebody_else_are_rejected(server):
    """Another server's signature, or a changed claim, is worth nothing."""
    token = server.token({"name": "x"}).encode()
    with pytest.raises(InvalidRecordError, match="signature is not valid for the server's key"):
        verified_claims(token, KeyPair(SERVER).public, Claims)
    header, _, signature = token.split(b".")
    changed = base64.urlsafe_b64encode(b'{"name":"y"}').rstrip(b"=")
    with pytest.raises(InvalidRecordError, match="signature is not valid for the server's key"):
        verified_claims(b".".join((header, changed, signature)), server.public, Claims)


@pytest.mark.parametrize("alg", ["none", "HS256", "ed25519"])
def test_only_one_algorithm_is_believed(server, alg):
    """A token with another algorithm is rejected before its signature is checked."""
    _, claims, _ = server.token({"name": "x"}).split(".")
    header = base64.urlsafe_b64encode(msgspec.json.encode({"typ": "JWT", "alg": alg}))
    body = f"{header.decode().rstrip('=')}.{claims}"
    token = f"{body}.{server.sign(body.encode())}".encode()
    with pytest.raises(InvalidRecordError, match="algorithm"):
        verified_claims(token, server.public, Claims)


@settings(max_examples=50)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_no_token(data):
    """Bytes from anywhere cost their sender an error."""
    with pytest.raises(InvalidRecordError):
        verified_claims(data, encode_public(SERVER, bytes(32)), Claims)


def test_an_enormous_token_is_not_even_read(server):
    """A length beyond any valid token's is rejected first."""
    with pytest.raises(InvalidRecordError, match="bytes"):
        verified_claims(b"." * (2 << 20), server.public, Claims)

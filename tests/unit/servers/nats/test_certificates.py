"""The names in certificates, as our nats-server hands them on after verifying them."""

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtensionOID, NameOID

from strandline.errors import InvalidRecordError
from strandline.servers.nats.certificates import certificate_name


def pem(alternatives):
    """A certificate of the common name shop, with these bytes as its alternative names."""
    key = generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shop")])
    began = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    builder = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=key.public_key(),
        serial_number=1,
        not_valid_before=began,
        not_valid_after=began + dt.timedelta(days=1),
    )
    if alternatives is not None:
        raw = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, alternatives)
        builder = builder.add_extension(raw, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


@pytest.mark.parametrize(
    ("alternatives", "name"), [(None, "shop"), (b"0\x00", "shop"), (b"0\x06\x82\x04till", "till")]
)
def test_the_first_alternative_name_counts_or_else_the_common_one(alternatives, name):
    """As for the other listeners."""
    assert certificate_name(pem(alternatives)) == name


@pytest.mark.parametrize(
    "alternatives",
    [
        b"\xff",
        b"0\x03\x82\x01\xff",  # a DNS name that is no text
        b"0\x04\x87\x02\x01\x02",  # an IP address of two bytes
        b"0\x04\xa3\x020\x00",  # an X.400 address, which the library does not know
        b"0\x04\xa5\x020\x00",  # an EDI party, which it does not either
    ],
)
def test_names_that_cannot_be_read_are_rejected(alternatives):
    """By the error that keeps one client out; any other would end the link that asks about all."""
    with pytest.raises(InvalidRecordError):
        certificate_name(pem(alternatives))

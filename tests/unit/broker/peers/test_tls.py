"""TLS files and the names in certificates; real connections are in the integration tests."""

import ssl

import pytest
import trustme

from strandline.broker.peers.tls import (
    TlsFiles,
    calling_context,
    certified_brokers,
    listening_context,
    named_brokers,
)
from strandline.errors import InvalidConfigError


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A certificate of broker 1."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("broker-1")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "certificate.pem")
    authority.cert_pem.write_to_path(folder / "authority.pem")
    return TlsFiles(
        certificate=folder / "certificate.pem",
        key=folder / "key.pem",
        authority=folder / "authority.pem",
    )


def test_both_sides_ask_for_a_certificate_over_tls_1_3(files):
    """Neither context lets anybody through without a certificate, or with an older protocol."""
    for context in (listening_context(files), calling_context(files)):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize("broken", ["certificate", "key", "authority"])
@pytest.mark.parametrize("how", ["missing", "garbage", "empty"])
def test_files_that_cannot_be_used_are_named(files, tmp_path, broken, how):
    """A missing, empty or foreign file is a wrong setting that names the file."""
    bad = tmp_path / "bad.pem"
    if how != "missing":
        bad.write_text("garbage" if how == "garbage" else "")
    paths = {"certificate": files.certificate, "key": files.key, "authority": files.authority}
    with pytest.raises(InvalidConfigError, match=r"bad\.pem"):
        calling_context(TlsFiles(**(paths | {broken: bad})))


@pytest.mark.parametrize(
    ("names", "brokers"),
    [
        ([("DNS", "broker-1")], {1}),
        ([("URI", "broker-2"), ("URI", "strandline://broker-3")], {2, 3}),
        ([("DNS", "broker-01"), ("DNS", "broker--1"), ("DNS", "broker-1.evil")], set()),
        ([("DNS", "*"), ("DNS", "broker-*"), ("DNS", "xbroker-1")], set()),
        ([("email", "broker-1"), ("IP Address", "1.2.3.4")], set()),
        ([("URI", "https://a/broker-1"), ("DNS", "strandline://broker-1")], set()),
        ([("DNS", "broker-1\n"), ("DNS", "broker-\u0661")], set()),
        ([], set()),
    ],
)
def test_only_exact_names_count(names, brokers):
    """A certificate speaks for the broker ids it names, and for nothing that looks like one."""
    assert named_brokers(names) == brokers


def test_without_tls_nothing_is_certified():
    """A plain connection has no certificate to compare with."""
    assert certified_brokers(None) is None

"""A client's certificates: their sources, and what is rejected before anything is sent."""

import pytest

from strandline.client.connection import BrokerConnection
from strandline.client.tls import Credentials
from strandline.errors import InvalidConfigError, InvalidRequestError

VARIABLES = {
    "STRANDLINE_CA": "a",
    "STRANDLINE_CERTIFICATE": "b",
    "STRANDLINE_KEY": "c",
    "STRANDLINE_TOKEN": "t",
}


def test_what_is_not_given_comes_from_the_environment():
    """Each of authority and own certificate, by itself; the certificate only with its key."""
    assert Credentials.resolve(environ={}) == ("", "", "", "")
    assert Credentials.resolve(environ=VARIABLES) == ("a", "b", "c", "t")
    assert Credentials.resolve("x", environ=VARIABLES) == ("x", "b", "c", "t")
    assert Credentials.resolve(None, "y", "z", environ=VARIABLES) == ("a", "y", "z", "t")
    assert Credentials.resolve(token="mine", environ=VARIABLES) == ("a", "b", "c", "mine")
    with pytest.raises(InvalidConfigError, match="needs its key"):
        Credentials.resolve(None, "y", None, environ=VARIABLES)


def test_certificates_without_tls_are_rejected():
    """Certificates given for an address without TLS are an error, to avoid clear text."""
    with pytest.raises(InvalidRequestError, match=r"tls://127\.0\.0\.1:9293"):
        BrokerConnection("127.0.0.1:9293", timeout_s=1, credentials=Credentials(ca="ca.pem"))


def test_files_that_are_no_certificates_are_named(tmp_path):
    """Missing, and not PEM."""
    with pytest.raises(InvalidConfigError, match="No such file"):
        BrokerConnection("tls://h", timeout_s=1, credentials=Credentials(ca=str(tmp_path / "none")))
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InvalidConfigError, match="not a PEM file"):
        BrokerConnection("tls://h", timeout_s=1, credentials=Credentials(ca=str(tmp_path / "text")))


def test_siblings_are_reached_in_the_same_way():
    """Brokers name each other without a scheme; with TLS they are all reached with it."""
    first = BrokerConnection("tls://h:1", timeout_s=1, credentials=Credentials())
    assert first.sibling("other:2")._uri == "grpc+tls://other:2"
    plain = BrokerConnection("h:1", timeout_s=1)
    assert plain.sibling("other:2")._uri == "grpc+tcp://other:2"


def test_a_token_needs_no_tls_and_is_shown_with_every_call(monkeypatch):
    """The caller's before the environment's, whose certificates are left alone without TLS."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    given = BrokerConnection("h:1", timeout_s=1, credentials=Credentials(token="mine"))
    assert given._credentials == ("", "", "", "mine")
    assert given._credentials.headers == [(b"authorization", b"Bearer mine")]
    assert given.sibling("other:2")._credentials.token == "mine"
    assert BrokerConnection("h:1", timeout_s=1)._credentials == ("", "", "", "t")


def test_a_token_is_never_printed():
    """Neither by a traceback that shows the credentials, nor by the error for a wrong one."""
    assert "secret" not in repr(Credentials(token="secret"))
    with pytest.raises(InvalidConfigError) as caught:
        Credentials.resolve(token="secret secret", environ={})
    assert "secret" not in str(caught.value)

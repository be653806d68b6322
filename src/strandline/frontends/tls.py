"""TLS towards clients: one certificate for all listeners, and whom those that hold records let in.

Rules: TLS 1.2 at least. With an authority, who publishes or reads must show a certificate that it
has signed; the web page, which changes nothing and holds no records, asks for none, so that
probes and scrapers work. Files are read once, when a listener starts. What cannot be used is an
error then: nothing falls back to clear text.
"""

import ssl
from pathlib import Path
from typing import NamedTuple

from strandline.config import TlsConfig
from strandline.errors import InvalidConfigError

PEM_END = "-----END CERTIFICATE-----"


class ServerTls(NamedTuple):
    """What listeners show and whom they trust; PEM, as Flight takes it."""

    certificate: bytes
    key: bytes
    authority: bytes
    """Empty: clients need no certificate."""


def load_tls(config: TlsConfig) -> ServerTls | None:
    """The files of the settings, tried out; None: no TLS.

    Raises:
        InvalidConfigError: a file is missing or is not what it should be.
    """
    if not config.is_on:
        return None
    listening_context(config, ask_clients=bool(config.authority))
    found = (Path(name).read_bytes() if name else b"" for name in _names(config))
    return ServerTls(*found)


def _names(config: TlsConfig) -> tuple[str, str, str]:
    return config.certificate, config.key, config.authority


def listening_context(config: TlsConfig, *, ask_clients: bool) -> ssl.SSLContext:
    """For connections that clients make.

    Args:
        config: with TLS on.
        ask_clients: let in only who shows a certificate of the authority, if there is one.

    Raises:
        InvalidConfigError: a file is missing or is not what it should be.
    """
    context = _with_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), config)
    if ask_clients and config.authority:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(config.authority)
        except OSError as error:
            raise InvalidConfigError(f"tls.authority {config.authority}: {error}") from error
    return context


def _with_certificate(context: ssl.SSLContext, config: TlsConfig) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.certificate, config.key)
    except OSError as error:
        raise InvalidConfigError(
            f"tls: cannot use certificate {config.certificate} with key {config.key}: {error}"
        ) from error
    return context


def calling_own_context(config: TlsConfig) -> ssl.SSLContext:
    """For our own connection to the nats-server child, which shows our own certificate.

    Nothing else is trusted, and its name does not matter: it need not be that of this address.

    Raises:
        InvalidConfigError: a file is missing or is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _with_certificate(context, config)
    text = Path(config.certificate).read_text()
    first = text[: text.index(PEM_END) + len(PEM_END)]
    context.load_verify_locations(cadata=first)
    return context


def calling_context(config: TlsConfig, *, authority: str) -> ssl.SSLContext:
    """For our connections to NATS servers of the user's, whose names are checked.

    Args:
        config: ours; if TLS is on, servers that ask get our certificate.
        authority: PEM file of who signs theirs; empty: whom the system trusts.

    Raises:
        InvalidConfigError: a file is missing or is not what it should be.
    """
    try:
        context = ssl.create_default_context(cafile=authority or None)
    except OSError as error:
        raise InvalidConfigError(f"nats.authority {authority}: {error}") from error
    return _with_certificate(context, config) if config.is_on else context

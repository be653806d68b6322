"""TLS for clients: one certificate for all listeners, and the authority of client certificates.

Rules: TLS 1.2 at least. With an authority, clients that publish or read must present a certificate
that it signed. The HTTP listener asks for none, because probes and scrapers have none; users of the
console log in with a token. A file that cannot be used when a listener starts is an error: nothing
falls back to clear text. All contexts are remembered here and reloaded when their files change; new
connections get the new certificate. A trusted authority stays trusted until a restart, because
``ssl`` cannot remove one.
"""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from strandline.config import TlsConfig
from strandline.errors import InvalidConfigError

_ALTERNATIVES = frozenset({"DNS", "email", "URI", "IP Address"})
PEM_END = "-----END CERTIFICATE-----"
_Fill = Callable[[ssl.SSLContext], None]
_in_use: WeakKeyDictionary[ssl.SSLContext, tuple[TlsConfig, _Fill]] = WeakKeyDictionary()
"""Context in use → its settings, and the function that loads the files into it."""


class ServerTls(NamedTuple):
    """The listeners' certificate and trusted authority; PEM, as Flight expects it."""

    certificate: bytes
    key: bytes
    authority: bytes
    """Empty if clients need no certificate."""


def load_tls(config: TlsConfig) -> ServerTls | None:
    """Load and check the files of the settings; return None without TLS.

    Raises:
        InvalidConfigError: a file is missing or invalid.
    """
    if not config.is_on:
        return None
    listening_context(config, ask_clients=bool(config.authority))
    found = (Path(name).read_bytes() if name else b"" for name in _names(config))
    return ServerTls(*found)


def _names(config: TlsConfig) -> tuple[str, str, str]:
    return config.certificate, config.key, config.authority


def listening_context(config: TlsConfig, *, ask_clients: bool) -> ssl.SSLContext:
    """Return a context for a listener.

    Args:
        config: settings with TLS on.
        ask_clients: require a certificate of the authority, if there is one.

    Raises:
        InvalidConfigError: a file is missing or invalid.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if ask_clients and config.authority:
        context.verify_mode = ssl.CERT_REQUIRED

    def fill(context: ssl.SSLContext) -> None:
        _load_certificate(context, config)
        if ask_clients and config.authority:
            _trust(context, config.authority, key="tls.authority")

    return _kept_current(context, config, fill)


def keep_current(context: ssl.SSLContext, config: TlsConfig) -> None:
    """Renew the certificate of a context that a library has created.

    Raises:
        InvalidConfigError: a file is missing or invalid.
    """
    _kept_current(context, config, lambda each: _load_certificate(each, config))


def renew(config: TlsConfig) -> None:
    """Reload the contexts of these settings from their files.

    Raises:
        InvalidConfigError: a file is missing or invalid; nothing has changed.
    """
    in_use = [(each, fill) for each, (made_for, fill) in _in_use.items() if made_for is config]
    # Load into a separate context first: half a pair would break the real ones.
    listening_context(config, ask_clients=True)
    for context, fill in in_use:
        fill(context)


def _kept_current(context: ssl.SSLContext, config: TlsConfig, fill: _Fill) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    fill(context)
    _in_use[context] = config, fill
    return context


def _trust(context: ssl.SSLContext, authority: str, *, key: str) -> None:
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        raise InvalidConfigError(f"{key} {authority}: {error}") from error


def _load_certificate(context: ssl.SSLContext, config: TlsConfig) -> None:
    try:
        context.load_cert_chain(config.certificate, config.key)
    except OSError as error:
        raise InvalidConfigError(
            f"tls: cannot use certificate {config.certificate} with key {config.key}: {error}"
        ) from error


def certificate_name(transport: asyncio.BaseTransport) -> str | None:
    """Return the name in the peer's verified certificate; None if it presented none.

    That is its first subject alternative name, or else its common name, as in gRPC.
    """
    secured = transport.get_extra_info("ssl_object")
    if secured is None or secured.context.verify_mode != ssl.CERT_REQUIRED:
        return None
    return name_of(secured.getpeercert() or {})


def name_of(certificate: dict[str, Any]) -> str | None:
    """Return the name in a certificate in the form of ``ssl``; None if it has none."""
    alternatives = certificate.get("subjectAltName", ())
    found = [name for kind, name in alternatives if kind in _ALTERNATIVES]
    common = [
        value
        for part in certificate.get("subject", ())
        for key, value in part
        if key == "commonName"
    ]
    return next(iter(found or common), None)


def calling_own_context(config: TlsConfig) -> ssl.SSLContext:
    """Return a context for the broker's connection to its child nats-server.

    It trusts only the broker's own certificate and does not check the name in it, which need not
    match this address.

    Raises:
        InvalidConfigError: a file is missing or invalid.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN

    def fill(context: ssl.SSLContext) -> None:
        _load_certificate(context, config)
        text = Path(config.certificate).read_text()
        context.load_verify_locations(cadata=text[: text.index(PEM_END) + len(PEM_END)])

    return _kept_current(context, config, fill)


def calling_context(config: TlsConfig, *, authority: str) -> ssl.SSLContext:
    """Return a context for connections to external NATS servers, whose names are checked.

    Args:
        config: the broker's settings; with TLS on, servers that ask get its certificate.
        authority: the PEM file of the servers' authority; empty: the system's authorities.

    Raises:
        InvalidConfigError: a file is missing or invalid.
    """
    try:
        context = ssl.create_default_context(cafile=authority or None)
    except OSError as error:
        raise InvalidConfigError(f"nats.authority {authority}: {error}") from error
    if config.is_on:
        keep_current(context, config)
    return context

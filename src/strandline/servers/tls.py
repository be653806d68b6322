"""TLS towards clients: one certificate for all listeners, and whom those that hold records let in.

Rules: TLS 1.2 at least. With an authority, who publishes or reads must show a certificate that it
has signed; the web page, which changes nothing and holds no records, asks for none, so that
probes and scrapers work. What cannot be used when a listener starts is an error: nothing falls back
to clear text. Contexts are remembered here, all of them, and filled anew when their files have
changed; who connects from then on meets the new certificate. An authority that was trusted once is
trusted until the restart: ``ssl`` takes none away.
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
"""What fills each context that is in use, and for whose settings."""


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
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if ask_clients and config.authority:
        context.verify_mode = ssl.CERT_REQUIRED

    def fill(context: ssl.SSLContext) -> None:
        _load_certificate(context, config)
        if ask_clients and config.authority:
            _trust(context, config.authority, key="tls.authority")

    return _kept_current(context, config, fill)


def keep_current(context: ssl.SSLContext, config: TlsConfig) -> None:
    """Renew the certificate of a context that a library has made.

    Raises:
        InvalidConfigError: a file is missing or is not what it should be.
    """
    _kept_current(context, config, lambda each: _load_certificate(each, config))


def renew(config: TlsConfig) -> None:
    """Fill the contexts that were made for these settings with what the files hold now.

    Raises:
        InvalidConfigError: a file is missing or is not what it should be; nothing changed.
    """
    in_use = [(each, fill) for each, (made_for, fill) in _in_use.items() if made_for is config]
    listening_context(config, ask_clients=True)  # tried out apart: half a pair would spoil them
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
    """The name in the verified certificate of the other end; None: it has shown none.

    That is its first subject alternative name, or else its common name, as gRPC has it.
    """
    secured = transport.get_extra_info("ssl_object")
    if secured is None or secured.context.verify_mode != ssl.CERT_REQUIRED:
        return None
    return name_of(secured.getpeercert() or {})


def name_of(certificate: dict[str, Any]) -> str | None:
    """The name in a certificate as ``ssl`` describes it; None: it has none."""
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
    """For our own connection to the nats-server child, which shows our own certificate.

    Nothing else is trusted, and its name does not matter: it need not be that of this address.

    Raises:
        InvalidConfigError: a file is missing or is not what it should be.
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
    if config.is_on:
        keep_current(context, config)
    return context

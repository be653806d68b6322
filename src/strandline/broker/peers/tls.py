"""Mutual TLS between brokers: each shows a certificate that names its broker id.

Rules: TLS 1.3 only; both sides must present a certificate of the cluster's authority. Host names
are not checked, because brokers move between machines. Instead the subject alternative name
``broker-<id>`` (DNS, or URI with or without ``strandline://``) is compared with the id in the
handshake. Without files there is no TLS, and the link needs a private network.
"""

import re
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from strandline.errors import InvalidConfigError
from strandline.types import BrokerId

_DNS_NAME: Final = re.compile(r"broker-(0|[1-9][0-9]{0,9})")
_URI_NAME: Final = re.compile(r"(?:strandline://)?broker-(0|[1-9][0-9]{0,9})")
_PATTERNS: Final = {"DNS": _DNS_NAME, "URI": _URI_NAME}


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files; read when the link starts, and again by ``PeerLinks.renew_tls``."""

    certificate: Path
    """This broker's certificate, followed by the chain to the authority."""
    key: Path
    authority: Path
    """The authority's certificates; it must sign the cluster's brokers and nobody else."""


def listening_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the context for connections that other brokers open to this one.

    Raises:
        InvalidConfigError: a file is missing or invalid.
    """
    return load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files)


def calling_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the context for connections that this broker opens.

    Raises:
        InvalidConfigError: a file is missing or invalid.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the handshake checks broker ids instead
    return load(context, files)


def load(context: ssl.SSLContext, files: TlsFiles) -> ssl.SSLContext:
    """Load the current files into a context; existing connections are not affected.

    An authority trusted before stays trusted: ``ssl`` cannot remove one from a context.

    Raises:
        InvalidConfigError: a file is missing or invalid.
    """
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(files.certificate, files.key)
    except OSError as error:
        raise InvalidConfigError(
            f"peer link: cannot use certificate {files.certificate} with key {files.key}: {error}"
        ) from error
    try:
        context.load_verify_locations(files.authority)
    except OSError as error:
        raise InvalidConfigError(
            f"peer link: cannot use authority {files.authority}: {error}"
        ) from error
    return context


def certified_brokers(connection: ssl.SSLObject | None) -> frozenset[BrokerId] | None:
    """Return the brokers named in the peer's certificate; None without TLS."""
    if connection is None:
        return None
    certificate = connection.getpeercert()
    assert certificate, "CERT_REQUIRED lets nobody through without"
    names: Iterable[tuple[str, str]] = certificate.get("subjectAltName", ())  # type: ignore[assignment]  # typeshed: any nesting of strings
    return named_brokers(names)


def named_brokers(names: Iterable[tuple[str, str]]) -> frozenset[BrokerId]:
    """Return the broker ids among subject alternative names in the form that ``ssl`` uses."""
    found = set()
    for kind, name in names:
        match = _PATTERNS[kind].fullmatch(name) if kind in _PATTERNS else None
        if match:
            found.add(BrokerId(int(match[1])))
    return frozenset(found)

"""The credentials of a client: a token, and certificates for TLS.

Rules: files are read when the client is created. Missing arguments are taken from the variables
``STRANDLINE_TOKEN``, ``STRANDLINE_CA``, ``STRANDLINE_CERTIFICATE`` and ``STRANDLINE_KEY``, so that
commands and Spark executors need no code for that. Without a CA the authorities that gRPC trusts
apply. Brokers are always verified, including their name. No message shows a token.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

from strandline.errors import InvalidConfigError

CA_VARIABLE = "STRANDLINE_CA"
CERTIFICATE_VARIABLE = "STRANDLINE_CERTIFICATE"
KEY_VARIABLE = "STRANDLINE_KEY"
TOKEN_VARIABLE = "STRANDLINE_TOKEN"  # noqa: S105  the name of a variable
_TOKEN = re.compile(r"[!-~]{1,512}")
PEM_BYTES_MAX = 1 << 20


class Credentials(NamedTuple):
    """The paths of a client's PEM files, and its token; empty: not given."""

    ca: str = ""
    """The certificates of the authorities that sign the brokers' certificates."""
    certificate: str = ""
    """The client's certificate, for brokers that require one."""
    key: str = ""
    """The key of the client's certificate."""
    token: str = ""
    """The token, for brokers with access control."""

    @classmethod
    def resolve(
        cls,
        ca: str | Path | None = None,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        *,
        token: str | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Return the given credentials, completed from the environment.

        Raises:
            InvalidConfigError: a certificate is given without its key, or a key without its
                certificate; or the token is not valid.
        """
        files = (str(ca or ""), str(certificate or ""), str(key or ""))
        found = cls(*files, resolve_token(token, environ))
        if not found.ca:
            found = found._replace(ca=environ.get(CA_VARIABLE, ""))
        if not (found.certificate or found.key):
            own = environ.get(CERTIFICATE_VARIABLE, ""), environ.get(KEY_VARIABLE, "")
            found = found._replace(certificate=own[0], key=own[1])
        if bool(found.certificate) != bool(found.key):
            raise InvalidConfigError(
                "a client certificate needs its key, and a key its certificate; give both"
            )
        return found

    @property
    def has_files(self) -> bool:
        """Return whether any file is given; all of them are for TLS."""
        return bool(self.ca or self.certificate or self.key)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of every call."""
        return [(b"authorization", b"Bearer " + self.token.encode())] if self.token else []

    def __repr__(self) -> str:
        """Return a text with the files, but without the token."""
        return f"Credentials(ca={self.ca!r}, certificate={self.certificate!r}, key={self.key!r})"

    def options(self) -> dict[str, bytes]:
        """Return the arguments for ``pyarrow.flight.FlightClient``.

        Raises:
            InvalidConfigError: a file cannot be read.
        """
        names = {"tls_root_certs": self.ca, "cert_chain": self.certificate, "private_key": self.key}
        return {name: _read(file) for name, file in names.items() if file}


def resolve_token(token: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the given token, or the one in the environment; empty: none.

    Raises:
        InvalidConfigError: the token is not valid.
    """
    token = token or environ.get(TOKEN_VARIABLE, "").strip()
    if token and not _TOKEN.fullmatch(token):
        raise InvalidConfigError(
            f"the token (argument or {TOKEN_VARIABLE}) has white space or over 512 characters; "
            "give it as 'strandline token create' printed it"
        )
    return token


def _read(file: str) -> bytes:
    try:
        with Path(file).open("rb") as pem:
            data = pem.read(PEM_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfigError(
            f"cannot read {file}: {error.strerror}; name a file that this user may read"
        ) from error
    if b"-----BEGIN " not in data or len(data) > PEM_BYTES_MAX:
        raise InvalidConfigError(f"{file} is not a PEM file; convert certificates and keys to PEM")
    return data

"""What a client shows and whom it trusts: a token, and certificates for TLS.

Rules: files are read when the client is made. What the caller does not give, the variables
``STRANDLINE_TOKEN``, ``STRANDLINE_CA``, ``STRANDLINE_CERTIFICATE`` and ``STRANDLINE_KEY`` may, so
that commands and Spark executors need no code of their own; without either, what gRPC trusts by
default counts. A broker is always verified, name included. A token is never shown in a message.
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
    """PEM files of a client, by path, and its token; empty: not given."""

    ca: str = ""
    """Certificates of who signs the brokers'."""
    certificate: str = ""
    """The client's own, for brokers that ask for one."""
    key: str = ""
    """Its key."""
    token: str = ""
    """For brokers that check who may do what."""

    @classmethod
    def given(
        cls,
        ca: str | Path | None = None,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        *,
        token: str | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """What the caller gives, and else the environment.

        Raises:
            InvalidConfigError: a certificate without its key, or the other way round; a token
                that cannot be one.
        """
        files = (str(ca or ""), str(certificate or ""), str(key or ""))
        found = cls(*files, token_given(token, environ))
        if not found.ca:
            found = found._replace(ca=environ.get(CA_VARIABLE, ""))
        if not (found.certificate or found.key):
            own = environ.get(CERTIFICATE_VARIABLE, ""), environ.get(KEY_VARIABLE, "")
            found = found._replace(certificate=own[0], key=own[1])
        if bool(found.certificate) != bool(found.key):
            raise InvalidConfigError("a client's certificate and its key go together; give both")
        return found

    @property
    def has_files(self) -> bool:
        """Whether any file is given, all of which are for TLS."""
        return bool(self.ca or self.certificate or self.key)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What every call carries."""
        return [(b"authorization", b"Bearer " + self.token.encode())] if self.token else []

    def __repr__(self) -> str:
        """Without the token."""
        return f"Credentials(ca={self.ca!r}, certificate={self.certificate!r}, key={self.key!r})"

    def options(self) -> dict[str, bytes]:
        """Arguments of ``pyarrow.flight.FlightClient``.

        Raises:
            InvalidConfigError: a file cannot be read.
        """
        names = {"tls_root_certs": self.ca, "cert_chain": self.certificate, "private_key": self.key}
        return {name: _read(file) for name, file in names.items() if file}


def token_given(token: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The token that the caller gives, and else the environment; empty: none.

    Raises:
        InvalidConfigError: it cannot be one.
    """
    token = token or environ.get(TOKEN_VARIABLE, "").strip()
    if token and not _TOKEN.fullmatch(token):
        raise InvalidConfigError(
            f"the token (of the call, or of {TOKEN_VARIABLE}) has white space in it, or is too long"
        )
    return token


def _read(file: str) -> bytes:
    try:
        with Path(file).open("rb") as pem:
            data = pem.read(PEM_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfigError(f"cannot read {file}: {error.strerror}") from error
    if b"-----BEGIN " not in data or len(data) > PEM_BYTES_MAX:
        raise InvalidConfigError(f"{file} is not a PEM file; give certificates and keys as PEM")
    return data

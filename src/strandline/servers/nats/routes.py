"""Routes between the nats-servers of a cluster, as lines of nats-server's configuration.

This module must not know the server's process.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from strandline.config import TlsConfig, bracketed

HANDSHAKE_TIMEOUT_S: Final = 10
ROUTE_USER: Final = "strandline"


class ServerRoutes(NamedTuple):
    """The routes between the nats-servers of a cluster, over which a message reaches every broker.

    Attributes:
        cluster: the cluster's name.
        host: the address to listen on.
        port: the port to listen on.
        others: the host and port of each other server.
        tls: the TLS settings; with an authority the servers verify each other's certificates.
        secret: the secret that the servers share; empty for none.
    """

    cluster: str
    host: str
    port: int
    others: tuple[tuple[str, int], ...]
    tls: TlsConfig = TlsConfig()
    secret: str = ""

    def configuration(self) -> Iterator[str]:
        """Yield the lines of nats-server's configuration."""
        yield "cluster {"
        yield f"  name: {quoted(self.cluster)}"
        yield f"  host: {quoted(self.host)}"
        yield f"  port: {self.port}"
        login = ""
        if self.secret:
            login = f"{ROUTE_USER}:{quote(self.secret, safe='')}@"
            yield f"  authorization {{ user: {ROUTE_USER}, password: {quoted(self.secret)} }}"
        urls = [f"nats-route://{login}{bracketed(host)}:{port}" for host, port in self.others]
        yield f"  routes: {quoted(urls)}"
        if self.tls.authority:
            yield from tls_lines(self.tls, indent="  ")
        yield "}"


def tls_lines(tls: TlsConfig, *, indent: str = "") -> Iterator[str]:
    """Yield the lines that turn TLS on for a listener of nats-server."""
    yield f"{indent}tls {{"
    yield f"{indent}  cert_file: {_quoted_path(tls.certificate)}"
    yield f"{indent}  key_file: {_quoted_path(tls.key)}"
    yield f"{indent}  timeout: {HANDSHAKE_TIMEOUT_S}"
    if tls.authority:
        yield f"{indent}  ca_file: {_quoted_path(tls.authority)}"
        yield f"{indent}  verify: true"
    yield f"{indent}}}"


def quoted(value: str | list[str]) -> str:
    """Return text, or a list of texts, in nats-server's format: JSON without escapes."""
    return json.dumps(value, ensure_ascii=False)


def _quoted_path(file: str) -> str:
    return quoted(str(Path(file).resolve()))

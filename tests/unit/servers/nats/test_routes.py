"""Routes between nats-servers, as their configuration has them."""

from strandline.config import TlsConfig
from strandline.servers.nats.routes import ServerRoutes, tls_lines


def test_names_the_others():
    """IPv6 addresses are in brackets; without a secret there is no login."""
    routes = ServerRoutes("c", "127.0.0.1", 6222, (("::1", 6223), ("b.example", 6224)))
    assert list(routes.configuration()) == [
        "cluster {",
        '  name: "c"',
        '  host: "127.0.0.1"',
        "  port: 6222",
        '  routes: ["nats-route://[::1]:6223", "nats-route://b.example:6224"]',
        "}",
    ]


def test_names_may_be_of_any_language():
    """They are written as they are: nats-server does not decode JSON's escapes."""
    lines = list(ServerRoutes("nørd", "h", 1, ()).configuration())
    assert '  name: "nørd"' in lines


def test_secret_is_quoted_twice():
    """In the address as part of a URL, in the login as a string."""
    routes = ServerRoutes("c", "h", 1, (("o", 2),), secret='a/"@')
    lines = list(routes.configuration())
    assert '  authorization { user: strandline, password: "a/\\"@" }' in lines
    assert '  routes: ["nats-route://strandline:a%2F%22%40@o:2"]' in lines


def test_certificates_are_asked_for_where_there_is_an_authority(tmp_path):
    """Paths are absolute: the process starts elsewhere."""
    files = {name: str(tmp_path / name) for name in ("certificate", "key", "authority")}
    tls = TlsConfig(**files)
    assert list(tls_lines(tls)) == [
        "tls {",
        f'  cert_file: "{files["certificate"]}"',
        f'  key_file: "{files["key"]}"',
        "  timeout: 10",
        f'  ca_file: "{files["authority"]}"',
        "  verify: true",
        "}",
    ]
    inside = list(ServerRoutes("c", "h", 1, (), tls).configuration())
    assert "    verify: true" in inside
    assert "    verify: true" not in list(ServerRoutes("c", "h", 1, ()).configuration())

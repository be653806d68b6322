"""External nats-servers for brokers to use: processes with routes between them.

Each has a monitoring page, which shows its routes.
"""

import json
import subprocess
import urllib.request
from contextlib import contextmanager

from strandline.process.ports import free_ports
from strandline.servers.nats.embedded_server import find_binary

CONFIGURATION = """\
listen: "127.0.0.1:{client}"
http: "127.0.0.1:{page}"
cluster {{ name: users, listen: "127.0.0.1:{route}", routes: {routes} }}
"""


class NatsServer:
    """One nats-server.

    Args:
        directory: the directory for its configuration.
        ports: the ports for clients, monitoring and routes.
        routes: the route addresses of all servers.
    """

    def __init__(self, directory, ports, routes):
        client, self._page, route = ports
        self.url = f"nats://127.0.0.1:{client}"
        self._file = directory / f"nats-{client}.conf"
        self._file.write_text(
            CONFIGURATION.format(
                client=client, page=self._page, route=route, routes=json.dumps(routes)
            )
        )
        self._process = None

    def start(self):
        self._process = subprocess.Popen(
            [find_binary(), "-c", self._file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self):
        self._process.kill()
        self._process.wait()

    def others(self):
        """Return the number of other servers that it is connected to."""
        page = f"http://127.0.0.1:{self._page}/routez"
        try:
            with urllib.request.urlopen(page, timeout=5) as answer:
                return len({route["remote_id"] for route in json.load(answer)["routes"]})
        except OSError:
            return 0


@contextmanager
def routed_nats_servers(directory, count, *, persist):
    """Start several nats-servers with routes between them; kill them at the end."""
    ports = free_ports(3 * count)
    triples = [ports[n : n + 3] for n in range(0, len(ports), 3)]
    routes = [f"nats-route://127.0.0.1:{route}" for *_, route in triples]
    servers = [NatsServer(directory, triple, routes) for triple in triples]

    def have_met():
        assert all(server.others() == count - 1 for server in servers)

    for server in servers:
        server.start()
    try:
        persist(have_met)
        yield servers
    finally:
        for server in servers:
            server.kill()

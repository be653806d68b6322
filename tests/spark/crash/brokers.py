"""The brokers of a crash run: one, or three of a cluster; leaders are found, killed and come back.

Rules: real processes, each with its directory and its ports for the whole run, ended by their ids.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import strandline
from strandline.errors import StrandlineError
from strandline.process.ports import free_ports
from strandline.testing import ProcessServer

HOST = "127.0.0.1"
PATIENCE_S = 300


class Brokers:
    """Broker processes; a context that starts them all.

    Args:
        directory: where they keep their data.
        count: 1, or as many as the cluster has.
    """

    def __init__(self, directory, count):
        self.count = count
        self._ports = free_ports(2 * count)
        self.servers = [
            ProcessServer(directory / f"broker-{number}", arguments=self._flags(number))
            for number in range(1, count + 1)
        ]

    def _flags(self, number):
        """Return the flags of a broker of a cluster; none for a broker alone."""
        if self.count == 1:
            return ()
        places = [f"{HOST}:{port}" for port in self._ports]
        peers, meeting = (
            ",".join(f"{n}={place}" for n, place in enumerate(each, 1))
            for each in (places[: self.count], places[self.count :])
        )
        flags = ("--broker-id", str(number), "--cluster-id", "crash", "--peers", peers)
        return (*flags, "--peer-port", str(self._ports[number - 1]), "--nats-peers", meeting)

    @property
    def addresses(self):
        """Of all of them, as clients take them."""
        return ",".join(server.flight for server in self.servers)

    @property
    def replication(self):
        """The settings of streams that survive any one broker."""
        return {"replicas": 3, "min_isr": 2} if self.count >= 3 else {}

    def leader(self, client, stream, partition):
        """The process that leads a partition."""

        def leader():
            info = client.stream_info(stream).partitions[partition]
            return info.leader if self.count > 1 else self.servers[0].flight

        found = until(leader, f"{stream}/{partition} has a leader")
        return next(server for server in self.servers if server.flight == found)

    def bring_back(self, server, client):
        """Start a broker that was killed, and wait until a client that knew it reaches it again."""
        server.start()
        # Its connection remembers for a while that nobody was there.
        until(client.server_info, "a broker answers again")

    def nats_server(self, server):
        """Process id of a broker's nats-server, once it has one."""

        def child():
            children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
            commands = {int(pid): Path(f"/proc/{pid}/cmdline") for pid in children.split()}
            found = [pid for pid, file in commands.items() if "nats-server" in file.read_text()]
            return found and found[0]

        return until(child, "a broker has a nats-server")

    def last_words(self):
        """Return the end of their standard error."""
        return "\n".join(
            f"broker {number}: {line.rstrip()}"
            for number, server in enumerate(self.servers, 1)
            for line in list(server.errors)[-20:]
        )

    def __enter__(self):
        try:
            with ThreadPoolExecutor() as starting:
                list(starting.map(ProcessServer.start, self.servers))
            if self.count > 1:
                until(self._have_met, "all brokers have met")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _have_met(self):
        with strandline.connect(self.addresses) as client:
            return len(client.server_info().brokers) == self.count

    def __exit__(self, *_):
        for server in self.servers:
            if server.is_running:
                server.kill()


def until(condition, what):
    """Wait for something to become true, and give it; errors on the way mean not yet."""
    deadline, said = time.monotonic() + PATIENCE_S, ""
    while time.monotonic() < deadline:
        try:
            if found := condition():
                return found
        # Of files and processes that are gone, and of nobody to choose from, too.
        except (StrandlineError, FileNotFoundError, ProcessLookupError, IndexError) as error:
            said = f": {error}"
        time.sleep(0.1)
    raise TimeoutError(f"not so after {PATIENCE_S} s: {what}{said}")

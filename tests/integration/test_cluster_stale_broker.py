"""A broker that only its clients still reach: they notice, and continue with the majority."""

import asyncio
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import strandline
from strandline.process.ports import free_ports
from strandline.testing import ProcessServer
from strandline.testing.proxy import TcpProxy
from tests.kit.workers import PATIENCE_S, workers

IDS = (1, 2, 3)
STANDSTILL_S_MAX = 10
"""No client stands still for longer while a majority can be reached."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Cluster:
    """Three brokers whose links can be partitioned, while clients reach all of them."""

    def __init__(self, directory):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        ports = dict(zip(IDS, free_ports(len(IDS)), strict=True))
        self._proxies = {
            pair: self._call(TcpProxy("127.0.0.1", ports[pair[1]]).start())
            for pair in itertools.permutations(IDS, 2)
        }
        self.servers = {number: self._server(directory, number, ports) for number in IDS}

    def _server(self, directory, number, ports):
        at = {to: self._proxies[number, to].port for to in IDS if to != number}
        peers = ",".join(f"{to}=127.0.0.1:{at.get(to, ports[to])}" for to in IDS)
        arguments = ("--broker-id", str(number), "--cluster-id", "test", "--peers", peers)
        arguments += ("--peer-port", str(ports[number]), "--ingest-port", "-1")
        return ProcessServer(directory / f"broker-{number}", arguments=arguments)

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def start(self):
        with ThreadPoolExecutor() as starting:
            list(starting.map(ProcessServer.start, self.servers.values()))

    def cut(self, number):
        for pair, proxy in self._proxies.items():
            if number in pair:
                self._loop.call_soon_threadsafe(proxy.cut)

    @property
    def addresses(self):
        return ",".join(server.flight for server in self.servers.values())

    def end(self):
        for number, server in self.servers.items():
            server.kill()
            print(f"broker {number} said:", *server.errors, sep="\n")  # noqa: T201  if it fails
        for proxy in self._proxies.values():
            self._call(proxy.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.end()


def test_clients_leave_a_broker_that_is_cut_off_from_the_majority(cluster):
    """Even the first address they have; a new client does not trust it either."""
    with strandline.connect(cluster.addresses) as client:
        deadline_s = time.monotonic() + PATIENCE_S
        while len(client.server_info().brokers) < len(IDS):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        client.create_stream("orders", partitions=3, replicas=3, min_isr=2)
        opened = []

        def stack(context):
            opened.append(context)
            return context.__enter__()

        working = workers(client, stack)
        while not all(worker.done > 20 for worker in working.values()):
            assert time.monotonic() < deadline_s, {n: w.done for n, w in working.items()}
            time.sleep(0.1)
        for worker in working.values():
            worker.begin()
        cluster.cut(1)
        time.sleep(2 * STANDSTILL_S_MAX)
        with strandline.connect(cluster.addresses, timeout_s=STANDSTILL_S_MAX) as fresh:
            leaders = {part.leader for part in fresh.stream_info("orders").partitions}
            assert cluster.servers[1].flight not in leaders
            assert fresh.append("orders", b"v", timeout_s=STANDSTILL_S_MAX) is not None
        pauses_s = {name: worker.end() for name, worker in working.items()}
        assert max(pauses_s.values()) < STANDSTILL_S_MAX, pauses_s
        for context in reversed(opened):
            context.__exit__(None, None, None)

"""Brokers' links over real sockets, on both event loops: order, loss, intruders, slow peers, TLS.

What is promised is judged by ``Recorder``: between back and lost, frames come in order and without
gaps; whenever one is missing, both ends hear of a loss.
"""

import asyncio
import random
import socket
import ssl
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest
import trustme
import uvloop

from strandline.broker.peers.errors import HandshakeError, HandshakeRejection
from strandline.broker.peers.frame import encode_frame
from strandline.broker.peers.handshake import PeerIdentity, encode_hello
from strandline.broker.peers.limits import LinkLimits
from strandline.broker.peers.link import PeerLinks
from strandline.broker.peers.peer import Address
from strandline.broker.peers.tls import TlsFiles
from strandline.errors import InvalidConfigError, UnavailableError
from strandline.testing.proxy import TcpProxy
from strandline.types import BrokerId

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
QUICK = {"backoff_min_s": 0.01, "backoff_max_s": 0.05, "patience_s": 0}
TIMEOUT_S = 60.0


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    """Runs a scenario on each kind of loop."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield lambda scenario: runner.run(asyncio.wait_for(scenario, 120))


class Recorder:
    """An owner of a link: keeps its notifications, and checks that back, frames and lost alternate.

    A frame sent by ``send_numbered`` carries the sender's session and a number; a session's frames
    must come in one session here, from 0 and without a gap.
    """

    def __init__(self, broker):
        self.broker = broker
        self.links = None
        self.up = {}
        self.sessions = {}
        self.told = []
        self.frames = []
        self.sent = {}
        self.expected = {}
        self.numbered = 0
        self._changed = asyncio.Event()

    def on_peer_back(self, peer):
        assert not self.up.get(peer), "back twice"
        assert self.links.is_up(peer)
        self.up[peer] = True
        self.sessions[peer] = self.sessions.get(peer, 0) + 1
        self.sent[peer] = 0
        self.expected[peer] = None
        self._note("back", peer)

    def on_peer_lost(self, peer):
        assert self.up.get(peer), "lost without back"
        assert not self.links.is_up(peer)
        assert not self.links.send(peer, 1, b"into the void")
        self.up[peer] = False
        self._note("lost", peer)

    def on_frame(self, peer, frame):
        assert self.up.get(peer), "a frame from a peer that is not there"
        if frame.channel == 9:
            session, number = msgspec.msgpack.decode(frame.header)
            expected = self.expected[peer] or (session, 0)
            assert (session, number) == expected, "a gap that nobody was told of"
            self.expected[peer] = (session, number + 1)
            self.numbered += 1
        else:
            self.frames.append(frame)
        self._changed.set()

    def send_numbered(self, peer, **rest):
        header = msgspec.msgpack.encode((self.sessions.get(peer, 0), self.sent.get(peer, 0)))
        if not self.links.send(peer, 9, header, **rest):
            return False
        self.sent[peer] += 1
        return True

    def _note(self, what, peer):
        self.told.append((what, peer))
        self._changed.set()

    async def until(self, condition):
        """Wait until ``condition`` holds; it is looked at after each callback."""
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_told(self, *told):
        """Wait for exactly these notifications."""
        await self.until(lambda: len(self.told) >= len(told))
        assert tuple(self.told) == told


def identity(broker, *, cluster="c", incarnation=None):
    return PeerIdentity(
        cluster_id=cluster, broker_id=broker, incarnation=incarnation or random.randbytes(8).hex()
    )


async def start(broker, *, cluster="c", port=0, tls=None, listen_host="127.0.0.1", **limits):
    """A started link and its owner."""
    owner = Recorder(broker)
    owner.links = PeerLinks(
        identity(broker, cluster=cluster),
        owner,
        listen=Address(listen_host, port),
        tls=tls,
        limits=LinkLimits(**{**QUICK, **limits}),
        rng=random.Random(broker),
    )
    await owner.links.start()
    return owner


def introduce(*owners):
    """Each learns where the others listen."""
    for owner in owners:
        for other in owners:
            if other is not owner:
                owner.links.add_peer(other.broker, Address("127.0.0.1", other.links.port))


@asynccontextmanager
async def cluster(*brokers, **settings):
    """Brokers that have found each other; stopped at the end."""
    async with AsyncExitStack() as stack:
        owners = []
        for broker in brokers:
            owner = await start(broker, **settings)
            stack.push_async_callback(owner.links.stop)
            owners.append(owner)
        introduce(*owners)
        for owner in owners:
            await owner.until(lambda owner=owner: sum(owner.up.values()) == len(brokers) - 1)
        yield owners


@asynccontextmanager
async def cluster_of_two_behind_proxies(**settings):
    """Two brokers, and the proxies through which each calls the other."""
    one, two = await start(ONE, **settings), await start(TWO, **settings)
    async with (
        TcpProxy("127.0.0.1", two.links.port) as to_two,
        TcpProxy("127.0.0.1", one.links.port) as to_one,
    ):
        one.links.add_peer(TWO, Address("127.0.0.1", to_two.port))
        two.links.add_peer(ONE, Address("127.0.0.1", to_one.port))
        await one.until(lambda: one.up.get(TWO))
        await two.until(lambda: two.up.get(ONE))
        try:
            yield one, two, to_two, to_one
        finally:
            await one.links.stop()
            await two.links.stop()


# Frames


def test_frames_flow_both_ways(run):
    """Channel, header and attachments arrive as they were sent, small and large."""

    async def scenario():
        async with cluster(ONE, TWO) as (one, two):
            large = random.randbytes(5 << 20)
            attachments = [b"", bytearray(b"abc"), memoryview(large)]
            assert one.links.send(TWO, 1, b"h1", attachments=attachments)
            assert two.links.send(ONE, 255, b"h2")
            await two.until(lambda: two.frames)
            await one.until(lambda: one.frames)
            assert two.frames == [(1, b"h1", (b"", b"abc", large))]
            assert one.frames == [(255, b"h2", ())]
            assert one.told == [("back", TWO)]

    run(scenario())


def test_order_holds_under_load(run):
    """Thousands of frames of mixed sizes, both ways at once, arrive in order and without a gap."""

    async def scenario():
        async with cluster(ONE, TWO) as (one, two):
            for number in range(6000):
                size = 300_000 if number % 100 == 0 else number % 2000
                attachments = [bytes(size)] * (number % 3)
                assert one.send_numbered(TWO, attachments=attachments)
                assert two.send_numbered(ONE)
                if number % 50 == 0:
                    await asyncio.sleep(0)
            await two.until(lambda: two.numbered == 6000)
            await one.until(lambda: one.numbered == 6000)
            assert two.told == [("back", ONE)]

    run(scenario())


def test_three_brokers_find_each_other(run):
    """Each has a link to each, in any order of starts."""

    async def scenario():
        async with cluster(ONE, TWO, THREE) as owners:
            for owner in owners:
                for other in owners:
                    if other is not owner:
                        assert owner.links.send(other.broker, 1, b"%d" % owner.broker)
            for owner in owners:
                await owner.until(lambda owner=owner: len(owner.frames) == 2)

    run(scenario())


def test_frames_to_who_is_not_there_are_dropped(run):
    """An unknown peer and one that is away: False at once, nothing is kept."""

    async def scenario():
        one = await start(ONE)
        try:
            one.links.add_peer(TWO, Address("127.0.0.1", 1))
            assert not one.links.send(TWO, 1, b"")
            assert not one.links.send(THREE, 1, b"")
            assert one.links.queued_bytes(TWO) == 0
        finally:
            await one.links.stop()

    run(scenario())


# Coming and going


def test_a_peer_is_lost_and_comes_back(run):
    """A stop is noticed, and the restarted broker, which is a new incarnation, is found again."""

    async def scenario():
        async with cluster(ONE, TWO) as (one, two):
            await two.links.stop()
            await one.until_told(("back", TWO), ("lost", TWO))
            again = await start(TWO, port=two.links.port)
            introduce(again, one)
            await one.until_told(("back", TWO), ("lost", TWO), ("back", TWO))
            await again.until_told(("back", ONE))
            assert one.links.send(TWO, 1, b"welcome")
            await again.until(lambda: again.frames)
            await again.links.stop()

    run(scenario())


def test_a_stop_sends_what_is_queued(run):
    """Everything accepted before a clean stop arrives before the loss is reported."""

    async def scenario():
        async with cluster(ONE, TWO) as (one, two):
            for _ in range(1000):
                assert one.send_numbered(TWO, attachments=[bytes(3000)])
            await one.links.stop()
            assert one.told == [("back", TWO)], "nothing is told to who stops"
            await two.until_told(("back", ONE), ("lost", ONE))
            assert two.numbered == 1000

    run(scenario())


def test_who_stopped_is_no_longer_there(run):
    """Its address is free for the broker that comes after it, in the same process, too."""

    async def scenario():
        async with cluster(ONE, TWO) as (one, _):
            port = one.links.port
            await one.links.stop()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            again = await start(ONE, port=port)
            await again.links.stop()

    run(scenario())


def test_broken_connections_are_told_to_both(run):
    """A reset of either connection is a loss at both ends, and both come back."""

    async def scenario():
        async with cluster_of_two_behind_proxies() as (one, two, to_two, to_one):
            for times, proxy in enumerate((to_two, to_one), 1):
                proxy.break_connections()
                told = ["back", *["lost", "back"] * times]
                for owner, other in ((one, TWO), (two, ONE)):
                    await owner.until(lambda o=owner, t=told: len(o.told) >= len(t))
                    assert owner.told == [(what, other) for what in told]

    run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_no_gap_stays_untold(run, seed):
    """Whenever and wherever connections break under load, no session has a gap in its frames."""

    async def scenario():
        rng = random.Random(seed)
        async with cluster_of_two_behind_proxies() as (one, two, to_two, to_one):
            for _ in range(15):
                for _ in range(rng.randrange(30)):
                    for owner, other in ((one, TWO), (two, ONE)):
                        sizes = [rng.choice((0, 100, 200_000))] * rng.randrange(3)
                        owner.send_numbered(other, attachments=[bytes(size) for size in sizes])
                    if rng.random() < 0.1:
                        await asyncio.sleep(rng.random() / 100)
                rng.choice((to_two, to_one)).break_connections()
                await asyncio.sleep(rng.random() / 20)
            for owner, other in ((one, TWO), (two, ONE)):
                await owner.until(lambda o=owner, peer=other: o.up[peer])
            # The link settles: what is sent now arrives, whatever was before.
            sent = set()
            while not sent or one.expected[TWO] is None or two.expected[ONE] is None:
                sent.add(one.send_numbered(TWO) and two.send_numbered(ONE))
                await asyncio.sleep(0.01)
            assert one.sessions[TWO] > 1

    run(scenario())


def test_a_peer_that_takes_nothing_is_lost(run):
    """While partitioned, the queue fills to its limit; afterwards the peer is back."""

    async def scenario():
        limits = {"queue_bytes_max": 1 << 20, "write_high_bytes": 64 << 10}
        async with cluster_of_two_behind_proxies(**limits) as (one, two, to_two, _):
            to_two.cut("to_target")
            while one.send_numbered(TWO, attachments=[bytes(100_000)]):
                assert one.links.queued_bytes(TWO) <= 1 << 20
                await asyncio.sleep(0)
            assert one.links.queued_bytes(TWO) == 0
            await one.until(lambda: ("lost", TWO) in one.told)
            await two.until(lambda: ("lost", ONE) in two.told)
            to_two.resume()
            await one.until(lambda: one.up[TWO])
            await two.until(lambda: two.up[ONE])
            assert one.send_numbered(TWO)
            await two.until(lambda: two.expected[ONE] == (one.sessions[TWO], 1))

    run(scenario())


@pytest.mark.parametrize("run", [uvloop.new_event_loop], ids=["uvloop"], indirect=True)
def test_a_slow_link_loses_nothing(run):
    """More than the transport holds, over a slow line: it waits in the queue and arrives.

    With the loop that brokers have: asyncio's own does not pause who uses ``writelines`` in Python
    3.12 and 3.13.
    """

    async def scenario():
        limits = {"write_high_bytes": 16 << 10}
        async with cluster_of_two_behind_proxies(**limits) as (one, two, to_two, _):
            to_two.delay(0.001, "to_target")
            for _ in range(300):
                assert one.send_numbered(TWO, attachments=[bytes(40_000)])
            await asyncio.sleep(0)
            assert one.links.queued_bytes(TWO) > 0
            await two.until(lambda: two.numbered == 300)
            assert one.links.queued_bytes(TWO) == 0
            assert one.told == [("back", TWO)]

    run(scenario())


def test_a_half_open_network_brings_nobody_up(run):
    """With one direction of calls blocked neither end is up; afterwards both are."""

    async def scenario():
        one, two = await start(ONE), await start(TWO)
        async with TcpProxy("127.0.0.1", two.links.port) as to_two:
            to_two.cut()
            one.links.add_peer(TWO, Address("127.0.0.1", to_two.port))
            two.links.add_peer(ONE, Address("127.0.0.1", one.links.port))
            while not to_two.connections_seen:  # noqa: ASYNC110  the proxy sets no event
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            assert one.told == two.told == []
            to_two.resume()
            await one.until(lambda: one.up.get(TWO))
            await two.until(lambda: two.up.get(ONE))
            await one.links.stop()
            await two.links.stop()

    run(scenario())


def test_a_removed_peer_is_forgotten(run):
    """Nothing more is reported of it and it is rejected; added again, it is back."""

    async def scenario():
        async with cluster(ONE, TWO) as (one, two):
            one.links.remove_peer(TWO)
            await two.until(lambda: not two.up[ONE])
            assert not one.links.send(TWO, 1, b"")
            assert one.told == [("back", TWO)]
            one.up[TWO] = False  # what we were told last is void: we gave it up
            one.links.add_peer(TWO, Address("127.0.0.1", two.links.port))
            await one.until(lambda: one.up[TWO])
            await two.until(lambda: two.up[ONE])

    run(scenario())


def test_a_peer_that_moved_is_found(run):
    """A new address ends the old connection and is called instead."""

    async def scenario():
        async with (
            cluster(ONE, TWO) as (one, two),
            TcpProxy("127.0.0.1", two.links.port) as proxy,
        ):
            one.links.add_peer(TWO, Address("127.0.0.1", proxy.port))
            await one.until(lambda: one.told[1:] == [("lost", TWO), ("back", TWO)])
            assert proxy.connections_seen == 1
            one.links.add_peer(TWO, Address("127.0.0.1", proxy.port))
            assert one.links.is_up(TWO)

    run(scenario())


def test_an_address_that_swallows_calls_is_given_up(run, caplog):
    """Without an answer to its connect the caller waits its time, says so once, and tries again."""

    async def scenario():
        with socket.socket() as deaf, socket.socket() as filler:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen(0)
            filler.connect(deaf.getsockname())  # the backlog is full: what follows is dropped
            one = await start(ONE, connect_timeout_s=0.1)
            one.links.add_peer(TWO, Address(*deaf.getsockname()))
            await until_logged(caplog, "no connection within 0.1 s")
            await asyncio.sleep(0.3)
            assert caplog.text.count("no connection within") == 1
            await one.links.stop()

    run(scenario())


def test_peers_may_be_known_before_the_start(run):
    """Peers added before it listens are dialled once it does."""

    async def scenario():
        two = await start(TWO)
        one = Recorder(ONE)
        one.links = PeerLinks(identity(ONE), one, limits=LinkLimits(**QUICK))
        one.links.add_peer(TWO, Address("127.0.0.1", two.links.port))
        await one.links.start()
        two.links.add_peer(ONE, Address("127.0.0.1", one.links.port))
        await one.until(lambda: one.up.get(TWO))
        await one.links.stop()
        await one.links.stop()
        await two.links.stop()

    run(scenario())


def test_a_port_that_is_taken_is_an_error(run):
    """The message names the address."""

    async def scenario():
        async with cluster(ONE, TWO) as (one, _):
            with pytest.raises(UnavailableError, match=f"127.0.0.1:{one.links.port}"):
                await start(THREE, port=one.links.port)

    run(scenario())


# Strangers


@pytest.mark.parametrize(
    ("cluster_id", "broker", "called", "words"),
    [
        ("other", TWO, TWO, "is of cluster"),
        ("c", THREE, TWO, "not broker 2"),
        ("c", ONE, TWO, "both ends are broker 1"),
        ("c", TWO, TWO, "not a member"),
    ],
    ids=["cluster", "wrong-broker", "own-id", "unknown"],
)
def test_who_does_not_belong_is_rejected(run, caplog, *, cluster_id, broker, called, words):
    """Another cluster, another broker at the address, our own id, an unknown broker."""

    async def scenario():
        async with AsyncExitStack() as stack:
            one, other = await start(ONE), await start(broker, cluster=cluster_id)
            for owner in (one, other):
                stack.push_async_callback(owner.links.stop)
            one.links.add_peer(called, Address("127.0.0.1", other.links.port))
            if words == "is of cluster":
                other.links.add_peer(ONE, Address("127.0.0.1", one.links.port))
            await until_logged(caplog, words)
            assert one.told == other.told == []

    run(scenario())


def test_who_is_rejected_again_and_again_is_told_of_once(run, caplog):
    """It calls each second, so repeated warnings would fill the log."""

    async def scenario():
        one, stranger = await start(ONE), await start(TWO)
        stranger.links.add_peer(ONE, Address("127.0.0.1", one.links.port))
        refused = 0

        def admits(*_):
            nonlocal refused
            refused += 1
            raise HandshakeError(HandshakeRejection.NOT_A_PEER, "it has another disk")

        one.links.add_peer(TWO, Address("127.0.0.1", stranger.links.port))
        one.links._admits = admits
        async with asyncio.timeout(TIMEOUT_S):
            while refused < 3:  # noqa: ASYNC110  nothing is told of it
                await asyncio.sleep(0.01)
        await one.links.stop()
        await stranger.links.stop()
        assert caplog.text.count("rejected a connection: it has another disk") == 1

    run(scenario())


def test_who_is_missing_at_first_is_no_cause_for_a_warning(run, caplog):
    """Brokers start together; a peer missing longer is logged, with the reason."""

    async def scenario():
        caplog.set_level("INFO")
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = Address(*free.getsockname())
        one = await start(ONE, patience_s=0.3)
        one.links.add_peer(TWO, address)
        await until_logged(caplog, "no link to broker 2")
        async with asyncio.timeout(TIMEOUT_S):
            while not (levels := told("WARNING")):  # noqa: ASYNC110  the log sets no event
                await asyncio.sleep(0.01)
        await one.links.stop()
        assert (told("INFO"), levels) == (1, 1)

    def told(level):
        return sum(
            record.levelname == level and "no link to broker 2" in record.message
            for record in caplog.records
        )

    run(scenario())


async def until_logged(caplog, words):
    """Wait until these words are in the log."""
    async with asyncio.timeout(TIMEOUT_S):
        while words not in caplog.text:  # noqa: ASYNC110  the log sets no event
            await asyncio.sleep(0.01)


async def read_to_the_end(reader):
    """Return what the other end sends before it closes or resets."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x00" * 100,
        random.Random(1).randbytes(100_000),
        encode_frame(0, b"")[0],
        encode_frame(1, b"hello")[0],
        encode_frame(0, b"x" * 5000)[0],
        encode_hello(identity(TWO), ONE)[0] + b"more",
    ],
    ids=["http", "zeros", "noise", "empty", "channel", "large", "impatient"],
)
def test_a_stranger_costs_only_itself(run, words):
    """Any first words end the connection; the broker's other links do not notice."""

    async def scenario():
        async with cluster(ONE, TWO) as (one, two):
            reader, writer = await asyncio.open_connection("127.0.0.1", one.links.port)
            writer.write(words)
            await read_to_the_end(reader)
            writer.transport.abort()
            assert one.send_numbered(TWO)
            await two.until(lambda: two.numbered == 1)
            assert one.told == [("back", TWO)]

    run(scenario())


async def silent_strangers(owner, number, stack):
    """Return readers of this many silent connections."""
    strangers = []
    for _ in range(number):
        reader, writer = await asyncio.open_connection("127.0.0.1", owner.links.port)
        stack.callback(writer.transport.abort)
        strangers.append((reader, writer))
    return strangers


def test_who_says_nothing_is_cut_off(run):
    """A stranger has its time, and nothing is left of it."""

    async def scenario():
        async with AsyncExitStack() as stack:
            owner = await start(ONE, handshake_timeout_s=0.1)
            stack.push_async_callback(owner.links.stop)
            [(reader, _)] = await silent_strangers(owner, 1, stack)
            assert await read_to_the_end(reader) == b""
            assert owner.links._connections == set()
            assert owner.links._strangers == {}

    run(scenario())


def test_a_flood_of_strangers_makes_room(run):
    """The oldest is closed, so that brokers can connect."""

    async def scenario():
        async with AsyncExitStack() as stack:
            owner = await start(ONE, strangers_max=3, handshake_timeout_s=1000.0)
            stack.push_async_callback(owner.links.stop)
            strangers = await silent_strangers(owner, 5, stack)
            assert await read_to_the_end(strangers[0][0]) == b""
            assert await read_to_the_end(strangers[1][0]) == b""
            assert len(owner.links._strangers) == 3

    run(scenario())


def test_a_corrupt_frame_ends_the_session(run):
    """Corruption in transit is noticed; both ends start again."""

    async def scenario():
        async with cluster(ONE, TWO) as (one, two):
            frame = bytearray(encode_frame(1, b"header")[0])
            frame[-1] ^= 1
            one.links._peers[TWO].send([bytes(frame)])
            for owner, other in ((one, TWO), (two, ONE)):
                await owner.until(lambda o=owner: len(o.told) == 3)
                assert owner.told == [("back", other), ("lost", other), ("back", other)]
            assert two.frames == []

    run(scenario())


def test_a_twin_does_not_leak_connections(run):
    """A second process with the id of a broker repeatedly replaces the first, and leaks nothing."""

    async def scenario():
        async with cluster(ONE, TWO) as (one, _):
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", one.links.port)
                writer.write(encode_hello(identity(TWO), ONE)[0])
                await reader.readexactly(8)
                writer.transport.abort()
            assert len(one.links._connections) <= 6
            await one.until(lambda: one.up[TWO])

    run(scenario())


# TLS


class Certificates:
    """An authority that signs brokers, in files."""

    def __init__(self, folder):
        self.folder = folder
        self.authority = trustme.CA()
        folder.mkdir()
        self.authority.cert_pem.write_to_path(folder / "authority.pem")

    def issue(self, *names):
        issued = self.authority.issue_cert(*names)
        folder = self.folder / names[0]
        folder.mkdir(exist_ok=True)
        issued.private_key_pem.write_to_path(folder / "key.pem")
        issued.cert_chain_pems[0].write_to_path(folder / "certificate.pem")
        return TlsFiles(
            certificate=folder / "certificate.pem",
            key=folder / "key.pem",
            authority=self.folder / "authority.pem",
        )


@pytest.fixture
def certificates(tmp_path):
    """The cluster's authority."""
    return Certificates(tmp_path / "ours")


def test_frames_flow_over_tls(run, certificates):
    """Mutual TLS, small and large frames, loss and return."""

    async def scenario():
        one = await start(ONE, tls=certificates.issue("broker-1"))
        two = await start(TWO, tls=certificates.issue("broker-2"))
        introduce(one, two)
        await one.until(lambda: one.up.get(TWO))
        await two.until(lambda: two.up.get(ONE))
        for number in range(300):
            attachments = [memoryview(bytes(number * 1000)), bytearray(number)]
            assert one.send_numbered(TWO, attachments=attachments)
            assert two.send_numbered(ONE)
        await two.until(lambda: two.numbered == 300)
        await one.until(lambda: one.numbered == 300)
        await two.links.stop()
        await one.until_told(("back", TWO), ("lost", TWO))
        await one.links.stop()

    run(scenario())


def test_a_certificate_speaks_for_its_own_broker_only(run, certificates, caplog):
    """Broker 3's certificate does not let anyone speak as broker 2."""

    async def scenario():
        one = await start(ONE, tls=certificates.issue("broker-1"))
        two = await start(TWO, tls=certificates.issue("broker-3"))
        introduce(one, two)
        await until_logged(caplog, "broker 2 shows a certificate that names broker-3")
        assert one.told == two.told == []
        await one.links.stop()
        await two.links.stop()

    run(scenario())


def test_a_certificate_is_renewed_without_a_restart(run, certificates, caplog):
    """The new certificate is used both ways; half a pair leaves the old one in force."""

    async def scenario():
        one = await start(ONE, tls=certificates.issue("broker-1"))
        files = certificates.issue("broker-3")
        two = await start(TWO, tls=files)
        introduce(one, two)
        await until_logged(caplog, "broker 2 shows a certificate that names broker-3")
        right = certificates.issue("broker-2")
        files.certificate.write_bytes(right.certificate.read_bytes())
        with pytest.raises(InvalidConfigError):
            two.links.renew_tls()
        assert one.told == two.told == []
        files.key.write_bytes(right.key.read_bytes())
        two.links.renew_tls()
        await one.until(lambda: one.up.get(TWO))
        await two.until(lambda: two.up.get(ONE))
        await two.links.stop()
        await one.links.stop()

    run(scenario())


@pytest.mark.parametrize("kind", ["plain", "other-authority"])
def test_who_has_no_certificate_of_ours_stays_out(run, certificates, tmp_path, kind):
    """A broker without TLS, or with a foreign certificate, never reaches its handshake."""

    async def scenario():
        one = await start(ONE, tls=certificates.issue("broker-1"), handshake_timeout_s=0.3)
        others = None
        if kind == "other-authority":
            others = Certificates(tmp_path / "theirs").issue("broker-2")
        two = await start(TWO, tls=others, handshake_timeout_s=0.3)
        introduce(one, two)
        await asyncio.sleep(0.6)
        assert one.told == two.told == []
        await one.links.stop()
        await two.links.stop()
        assert one.links._connections == set()

    run(scenario())


def test_a_client_must_show_a_certificate(run, certificates):
    """TLS with the right authority but without a certificate is ended by the listener."""

    async def scenario():
        one = await start(ONE, tls=certificates.issue("broker-1"))
        context = ssl.create_default_context(cafile=certificates.folder / "authority.pem")
        context.check_hostname = False
        # The client's side of a TLS 1.3 handshake ends before the listener has looked at it.
        reader, writer = await asyncio.open_connection("127.0.0.1", one.links.port, ssl=context)
        writer.write(encode_hello(identity(TWO), ONE)[0])
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.transport.abort()
        await one.links.stop()

    run(scenario())

"""Three brokers of a cluster in one process: real links, group commits and logs, no front ends."""

import asyncio
from pathlib import Path

import pytest
import trustme

from strandline.broker import base as base_module
from strandline.broker.cluster.broker import ClusterBroker
from strandline.config import BrokerConfig, ClusterConfig, JournalConfig, StreamConfig
from strandline.errors import StrandlineError
from strandline.process.ports import free_ports

IDS = (1, 2, 3)


class Cluster:
    """Brokers by id, and helpers of tests."""

    def __init__(self, tmp_path, kit):
        self.tmp_path, self.kit = Path(tmp_path), kit
        self.peers = [f"{n}=127.0.0.1:{p}" for n, p in zip(IDS, free_ports(3), strict=True)]
        self.brokers, self.disks = {}, {}
        self.tls = {}
        self.settings = {}
        self.master_keys = {}

    async def start(self, *numbers):
        for number in numbers:
            port = int(self.peers[number - 1].rpartition(":")[2])
            config = BrokerConfig(
                data_dir=str(self.tmp_path / f"broker-{number}"),
                journal=JournalConfig(file_bytes=1 << 20),
                **self.settings,
                cluster=ClusterConfig(
                    broker_id=number,
                    name="test",
                    peer_port=port,
                    peers=self.peers,
                    **self.tls.get(number, {}),
                ),
            )
            disk = self.disks.setdefault(number, self.kit.Disk())
            broker = ClusterBroker(config, disk=disk, master_keys=self.master_keys.get(number))
            await broker.start()
            broker.announce(10_000 + number)
            self.brokers[number] = broker
        await self.kit.until(lambda: all(self.brokers[n].is_ready for n in numbers), seconds=60)

    def secure(self):
        """Let brokers talk over mutual TLS, each with a certificate of its own."""
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.tmp_path / "authority.pem")
        for number in IDS:
            issued = authority.issue_cert(f"broker-{number}")
            key, chain = (self.tmp_path / f"{number}-{what}.pem" for what in ("key", "chain"))
            issued.private_key_pem.write_to_path(key)
            issued.cert_chain_pems[0].write_to_path(chain)
            self.tls[number] = {
                "tls_certificate": str(chain),
                "tls_key": str(key),
                "tls_authority": str(self.tmp_path / "authority.pem"),
            }

    async def kill(self, number):
        """As kill -9: nothing is finished."""
        broker = self.brokers.pop(number)
        for task in (*broker._tasks, *broker.membership._tasks):
            task.cancel()
        links = broker.membership._links
        for peer in list(links._peers):
            links.remove_peer(peer)  # or it would go on calling, beside the one that comes back
        for connection in list(links._connections):
            connection.abort("killed")
        links._server.close()
        for log in broker._storage.logs.values():
            log.poisoned = True
        broker.committer.send_queue.disconnect()
        broker.membership._links.send = lambda *_, **__: False
        broker.membership.replicas.drop_all(StrandlineError("killed"))
        await asyncio.sleep(0)
        self.kit.abandon(broker)

    async def create(self, name="s", *, at=2, **settings):
        """Create a stream with three replicas, known everywhere."""
        settings = {"replicas": 3, "min_isr": 2, "acks": "replicated", **settings}
        config = StreamConfig(name=name, subject=name, segment_bytes=64 << 10, **settings)
        await self.until_live()
        await self.brokers[at].create_stream(config)
        await self.kit.until(
            lambda: all(name in [s.name for s in b.streams()] for b in self.brokers.values())
        )

    async def until_live(self):
        """Until every broker that runs is in service, and said so everywhere."""

        def are_live():
            for broker in self.brokers.values():
                known = broker._image.brokers
                if any(n not in known or known[n].is_fenced for n in self.brokers):
                    return False
            return True

        await self.kit.until(are_live, seconds=60)

    def partition(self, number, name="s", index=0):
        return self.brokers[number].stream(name).partition(index)

    def image(self, name="s", index=0):
        """The partition as the newest image here has it."""
        broker = max(self.brokers.values(), key=lambda b: b.membership.quorum.applied_index)
        return broker._image.partition(name, index)

    async def leader(self, name="s", index=0):
        """The broker that leads a partition and takes records."""
        found = []

        def leads():
            found[:] = [
                n
                for n, b in self.brokers.items()
                if (replica_hooks := b.stream(name).partition(index).replica_hooks) is not None
                and replica_hooks.replica.reject_reason is None
            ]
            return len(found) == 1 and self.image(name, index).leader == found[0]

        await self.kit.until(leads, seconds=60)
        return found[0]

    async def put(self, *values, name="s", index=0):
        """Publish one after the other, each until it is acked."""
        for value in values:
            async with asyncio.timeout(30):
                while True:
                    answers = self.kit.Answers()
                    number = await self.leader(name, index)
                    partition = self.partition(number, name, index)
                    headers = [("Nats-Msg-Id", value.encode())]
                    self.kit.put(partition, answers, value, message_id=value, headers=headers)
                    await answers.wait(1)
                    if answers.acks:
                        break
                    await asyncio.sleep(0.02)

    async def agree(self, values, *, name="s", index=0):
        """Until every broker that runs serves exactly these values."""
        wanted = [value.encode() for value in values]
        for number in self.brokers:
            partition = self.partition(number, name, index)
            await self.kit.until(lambda p=partition: p.high_watermark >= len(wanted), seconds=60)
            assert self.kit.values(partition) == wanted

    async def until_caught_up(self, number, end, *, name="s", index=0):
        """Wait until a broker knows records up to an offset to be committed."""

        def has_all():
            partition = self.partition(number, name, index)
            return partition.replica_hooks is not None and partition.high_watermark >= end

        await self.kit.until(has_all, seconds=60)

    async def isr(self, *members, name="s", index=0):
        """Until the ISR is this."""
        await self.kit.until(lambda: self.image(name, index).isr == members, seconds=60)


@pytest.fixture
async def cluster(tmp_path, kit, monkeypatch):
    monkeypatch.setattr(base_module, "HEAL_INTERVAL_S", 0.01)
    made = Cluster(tmp_path, kit)
    yield made
    for number in list(made.brokers):
        made.disks[number].heal()
        await made.kill(number)

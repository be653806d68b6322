"""The systems as servers on a directory that a fault may befall: started, killed, started again.

Rules: ports stay the same over restarts, so that clients find the server again; logs are outside
the data directory. Reading back returns every record that the system gives out, in its order, and
notes what it reports besides.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from benchmarks import broker
from benchmarks.faults.clients import (
    STREAM,
    Appender,
    KafkaAppender,
    NatsAppender,
    RedisAppender,
    RedisCommands,
)
from benchmarks.peers import cluster, jetstream, kafka, redis_streams, strandline
from benchmarks.peers.natswire import NatsRequests
from benchmarks.peers.process import (
    LOOPBACK,
    StartError,
    free_ports,
    server,
    wait_for_line,
    wait_for_port,
)
from benchmarks.peers.system import Ack

START_TIMEOUT_S: Final = 40.0
READ_TIMEOUT_S: Final = 30.0
API_TIMEOUT_S: Final = 3.0
"""A server of JetStream that has no leader yet does not answer."""
PAGE: Final = 500
OF_ONE_SERVER: Final = "done to one server; of three, only the flipped bit"
QUICK_START: Final = "-XX:TieredStopAtLevel=1"
"""For a JVM that is started often and never warm."""
UNREADABLE_MAX: Final = 20
"""So many places a Kafka reader skips before it gives up."""


class ReadError(RuntimeError):
    """A system cannot be read; the text says what it says."""


@dataclass
class Stored:
    """What was read back."""

    values: list[bytes] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What the system reported as corrupt or missing."""


class Store(ABC):
    """One system with its data in a directory of its own.

    Args:
        folder: for logs and configuration.
        data: for its data; a fault may befall it.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    ack: ClassVar[Ack]
    settings: ClassVar[str]
    repairs: ClassVar[bool] = False
    """Whether it may repair what it reports as corrupt, if it is given a moment."""

    def __init__(self, folder: Path, data: Path) -> None:
        self._folder = folder
        self.data = data
        self._running = contextlib.ExitStack()
        self._processes: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._starts = 0
        self.version = ""

    @abstractmethod
    def prepare(self) -> None:
        """Before the first start: finds the program, chooses ports.

        Raises:
            UnavailableError: it is not on this machine.
        """

    @classmethod
    def leaves_out(cls, fault: str) -> str:
        """Why a fault is not done to it; empty if it is."""
        del fault
        return ""

    @abstractmethod
    def _commands(self) -> list[list[str]]:
        """The commands of its servers."""

    @abstractmethod
    def _wait(self, index: int, process: subprocess.Popen[bytes], log: Path) -> None:
        """Returns when the server of that index serves."""

    @abstractmethod
    def create(self) -> None:
        """Creates the stream."""

    @abstractmethod
    def appender(self, connection: int) -> Appender:
        """A publisher's connection."""

    @abstractmethod
    def read(self) -> Stored:
        """Everything that it gives out.

        Raises:
            ReadError, NatsError or OSError: it does not serve, or knows no such stream.
        """

    def start(self) -> None:
        """Starts the server.

        Raises:
            StartError: it ended, or does not serve in time.
        """
        self._starts += 1
        for number, words in enumerate(self._commands()):
            log = self._folder / f"server-{self._starts}-{number}.log"
            opened = server(words, log, cwd=self._folder, env=broker.BYTECODE)
            self._processes.append((self._running.enter_context(opened), log))
        for number, (process, log) in enumerate(self._processes):
            self._wait(number, process, log)

    @property
    def is_running(self) -> bool:
        """Whether all of its processes run."""
        return all(process.poll() is None for process, _ in self._processes)

    def kill(self) -> None:
        """SIGKILL for each server; then for what is left of its session."""
        for process, _ in self._processes:
            process.kill()
        self.close()

    def lose_power(self) -> None:
        """SIGKILL for the servers and their children at once."""
        for process, _ in self._processes:
            with contextlib.suppress(ProcessLookupError):  # it ended before, with its children
                os.killpg(process.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Stops the servers."""
        self._running.close()
        self._processes.clear()


class StrandlineStore(Store):
    """One broker; connections take its own listener and its nats-server in turn."""

    name = "strandline"
    label = "Strandline"
    ack = Ack.DISK
    settings = "1 broker, defaults; half of the connections by its nats-server"

    def prepare(self) -> None:
        """Chooses ports."""
        self._ports = free_ports(4)
        self.version = strandline.run_cli(broker.program(), "version")

    def _commands(self) -> list[list[str]]:
        names = ("nats", "ingest", "flight", "http")
        ports = dict(zip(names, self._ports, strict=True))
        options = [word for name in names for word in (f"--{name}-port", str(ports[name]))]
        words = [broker.program(), "serve", "--output", "json", "--host", LOOPBACK]
        return [[*words, *options, "--data-dir", str(self.data / "data")]]

    def _wait(self, index: int, process: subprocess.Popen[bytes], log: Path) -> None:
        del index
        wait_for_line(process, log, "{", timeout_s=START_TIMEOUT_S)

    @property
    def address(self) -> str:
        """Where Arrow Flight listens."""
        return f"{LOOPBACK}:{self._ports[2]}"

    def create(self) -> None:
        """Creates the stream with the CLI."""
        words = ("stream", "create", STREAM, "--subject", STREAM, "--acks", "disk")
        strandline.run_cli(broker.program(), *words, "--server", self.address)

    def appender(self, connection: int) -> Appender:
        """By nats-server, or by the broker's own listener."""
        return NatsAppender(self._ports[connection % 2])

    def read(self) -> Stored:
        """Reads by Arrow Flight; what is corrupt is noted and skipped."""
        import strandline as client_library
        from strandline.errors import CorruptBatchError, StrandlineError

        found = Stored()
        try:
            with client_library.connect(self.address, timeout_s=READ_TIMEOUT_S) as client:
                try:
                    found.values = _values(client.read(STREAM, columns=["value"]))
                except CorruptBatchError as error:
                    found.notes.append(f"reported: {_without_path(error.message)}")
                    batches = client.read(STREAM, columns=["value"], skip_corrupt=True)
                    found.values = _values(batches)
        except StrandlineError as error:
            raise ReadError(error.message) from error
        return found


class StrandlineClusterStore(StrandlineStore):
    """Three brokers; connections take their nats-servers in turn."""

    name = "strandline-r3"
    label = "Strandline, 3 brokers"
    ack = Ack.MAJORITY
    settings = "3 brokers, --replicas 3 --min-isr 2 --acks replicated, by their nats-servers"
    repairs = True

    @classmethod
    def leaves_out(cls, fault: str) -> str:
        """What a cluster changes is a flipped bit: others have the record."""
        return OF_ONE_SERVER if fault != "flipped bit" else ""

    def prepare(self) -> None:
        """Chooses ports: four of each broker, and one for its link with the others."""
        super().prepare()
        found = free_ports(5 * cluster.BROKERS)
        self._all_ports = [found[n : n + 5] for n in range(0, len(found), 5)]
        self._ports = self._all_ports[0]

    def _commands(self) -> list[list[str]]:
        ids = range(1, cluster.BROKERS + 1)
        links = [f"{n}={LOOPBACK}:{self._all_ports[n - 1][4]}" for n in ids]
        words = [broker.program(), "serve", "--output", "json", "--host", LOOPBACK]
        words += ["--cluster-id", "faults", "--peers", ",".join(links)]
        commands = []
        for number, ports in zip(ids, self._all_ports, strict=True):
            names = ("nats", "ingest", "flight", "http", "peer")
            options = [f"--{name}-port={port}" for name, port in zip(names, ports, strict=True)]
            options += [f"--broker-id={number}", f"--data-dir={self.data / f'broker-{number}'}"]
            commands.append([*words, *options])
        return commands

    def create(self) -> None:
        """Creates the stream with a replica on each broker."""
        words = ["stream", "create", STREAM, "--subject", STREAM, "--acks", "replicated"]
        words += ["--replicas", str(cluster.BROKERS), "--min-isr", "2", "--server", self.address]
        strandline.run_cli(broker.program(), *words)

    def appender(self, connection: int) -> Appender:
        """By a broker's nats-server."""
        return NatsAppender(self._all_ports[connection % cluster.BROKERS][0])


def _values(batches: Any) -> list[bytes]:
    return [value for batch in batches for value in batch["value"].to_pylist()]


def _without_path(text: str) -> str:
    """A message of one line that names no place of this machine."""
    words = text.split()
    return " ".join(Path(word).name if word.startswith("/") else word for word in words)


class JetStreamStore(Store):
    """nats-server with a sync for every append."""

    name = "jetstream"
    label = "JetStream, sync always"
    ack = Ack.DISK
    settings = "storage=file, num_replicas=1, sync_interval: always"
    sync_interval = "always"

    def prepare(self) -> None:
        """Finds nats-server."""
        self._program = jetstream.find_nats_server()
        [self._port] = free_ports(1)
        self.version = jetstream.version_of(self._program)
        store = self.data / "store"
        self._config = jetstream.write_config(self._folder, self._port, store, self.sync_interval)

    def _commands(self) -> list[list[str]]:
        return [[self._program, "-c", str(self._config)]]

    def _wait(self, index: int, process: subprocess.Popen[bytes], log: Path) -> None:
        del index
        wait_for_port(process, self._port, log, START_TIMEOUT_S)

    def create(self) -> None:
        """Creates the stream."""
        jetstream.create_streams(self._port, 1)

    def appender(self, connection: int) -> Appender:
        """By the only listener."""
        del connection
        return NatsAppender(self._port)

    def read(self) -> Stored:
        """Gets every sequence number between the stream's first and last."""
        found = Stored()
        with NatsRequests(LOOPBACK, self._port, API_TIMEOUT_S) as requests:
            info = requests.request("$JS.API.STREAM.INFO.BENCH0", b"")
            if "error" in info:
                found.notes.append(f"reported: {info['error']['description']}")
                return found
            state = info["state"]
            for number in range(state["first_seq"], state["last_seq"] + 1):
                body = b'{"seq": %d}' % number
                reply = requests.request("$JS.API.STREAM.MSG.GET.BENCH0", body)
                if "message" in reply:
                    found.values.append(base64.b64decode(reply["message"].get("data", "")))
                else:
                    found.notes.append(f"reported: {reply['error']['description']}")
        found.notes = sorted(set(found.notes))
        return found


class JetStreamDefaultStore(JetStreamStore):
    """nats-server as it is configured by default."""

    name = "jetstream-default"
    label = "JetStream, default"
    ack = Ack.PAGE_CACHE
    settings = "storage=file, num_replicas=1, sync_interval: 2m"
    sync_interval = "2m"


class JetStreamClusterStore(JetStreamStore):
    """Three clustered nats-servers with a sync for every append."""

    name = "jetstream-r3"
    label = "JetStream R3, sync always"
    ack = Ack.MAJORITY
    settings = "3 servers, storage=file, num_replicas=3, sync_interval: always"

    @classmethod
    def leaves_out(cls, fault: str) -> str:
        """What a cluster changes is a flipped bit: others have the record."""
        return OF_ONE_SERVER if fault != "flipped bit" else ""

    def prepare(self) -> None:
        """Finds nats-server, and configures three."""
        super().prepare()
        self._all_ports = free_ports(2 * cluster.BROKERS)
        self._port = self._all_ports[0]
        self._configs = [
            cluster.write_config(self._folder, number, self._all_ports, self.data)
            for number in range(cluster.BROKERS)
        ]

    def _commands(self) -> list[list[str]]:
        return [[self._program, "-c", str(config)] for config in self._configs]

    def _wait(self, index: int, process: subprocess.Popen[bytes], log: Path) -> None:
        wait_for_port(process, self._all_ports[index], log, START_TIMEOUT_S)

    def create(self) -> None:
        """Creates the stream once the servers have a leader."""
        cluster.create_r3_stream(self._port)

    def appender(self, connection: int) -> Appender:
        """By each server in turn."""
        return NatsAppender(self._all_ports[connection % cluster.BROKERS])


class RedisStore(Store):
    """redis-server with an append-only file that is synced for every reply."""

    name = "redis"
    label = "Redis Streams, appendfsync always"
    ack = Ack.DISK
    settings = 'appendonly yes, appendfsync always, save ""; no retries'
    appendfsync = "always"

    def prepare(self) -> None:
        """Finds redis-server."""
        self._program = redis_streams.find_redis()
        [self._port] = free_ports(1)
        self.version = redis_streams.version_of(self._program)

    def _commands(self) -> list[list[str]]:
        words = redis_streams.server_words(self._program, self._port, self.data, self.appendfsync)
        return [words]

    def _wait(self, index: int, process: subprocess.Popen[bytes], log: Path) -> None:
        del index
        wait_for_port(process, self._port, log, START_TIMEOUT_S)

    def create(self) -> None:
        """A key comes into being by its first record."""

    def appender(self, connection: int) -> Appender:
        """By the only listener."""
        del connection
        return RedisAppender(self._port)

    def read(self) -> Stored:
        """XRANGE from begin to end."""
        found, start = Stored(), b"-"
        with RedisCommands(self._port, READ_TIMEOUT_S) as commands:
            count = str(PAGE).encode()
            while rows := commands.call(b"XRANGE", STREAM.encode(), start, b"+", b"COUNT", count):
                found.values += [row[1][1] for row in rows]
                start = b"(" + rows[-1][0]
        return found


class RedisEverySecondStore(RedisStore):
    """redis-server as its documentation suggests: a sync every second."""

    name = "redis-everysec"
    label = "Redis Streams, appendfsync everysec"
    ack = Ack.PAGE_CACHE
    settings = 'appendonly yes, appendfsync everysec, save ""; no retries'
    appendfsync = "everysec"


class KafkaStore(Store):
    """One KRaft broker with a flush for every append."""

    name = "kafka"
    label = "Kafka, flush.messages=1"
    ack = Ack.DISK
    settings = "KRaft, 1 node, log.flush.interval.messages=1, acks=all, idempotent producer"
    flush = True

    def prepare(self) -> None:
        """Fetches Kafka's jars, and formats the directory at the first start."""
        self._ports = (free_ports(2)[0], free_ports(1)[0])
        self._java = kafka.java_words()
        self.version = f"kafka {kafka.VERSION}"

    def _commands(self) -> list[list[str]]:
        data = self.data / "kafka"
        if self._starts == 1:
            self._config = kafka.format_data(self._folder, data, self._ports, flush=self.flush)
        return [[*self._java, QUICK_START, "kafka.Kafka", str(self._config)]]

    def _wait(self, index: int, process: subprocess.Popen[bytes], log: Path) -> None:
        del index
        wait_for_port(process, self._ports[0], log, START_TIMEOUT_S)

    @property
    def _address(self) -> str:
        return f"{LOOPBACK}:{self._ports[0]}"

    def create(self) -> None:
        """Creates what Kafka calls by its own name, with one partition."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self._address})
        for created in admin.create_topics([NewTopic(STREAM, 1, 1)]).values():
            created.result(START_TIMEOUT_S)

    def appender(self, connection: int) -> Appender:
        """A producer of its own."""
        del connection
        return KafkaAppender(self._ports[0])

    def read(self) -> Stored:
        """Reads partition 0; skips places that cannot be read."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        settings = {
            "bootstrap.servers": self._address,
            "group.id": "judge",
            "enable.auto.commit": False,
            "check.crcs": True,
            "log_level": 0,
        }
        consumer = Consumer(settings)
        try:
            first, end = consumer.get_watermark_offsets(
                TopicPartition(STREAM, 0), timeout=READ_TIMEOUT_S
            )
            return _read_kafka(consumer, first, end)
        except KafkaException as error:
            raise ReadError(str(error)) from error
        finally:
            consumer.close()


def _read_kafka(consumer: Any, first: int, end: int) -> Stored:
    """Reads from one offset to another, past what gives errors."""
    from confluent_kafka import TopicPartition

    found, position, skipped = Stored(), first, 0
    consumer.assign([TopicPartition(STREAM, 0, position)])
    while position < end and skipped < UNREADABLE_MAX:
        progress = position
        for message in consumer.consume(PAGE, timeout=2):
            if message.error():
                found.notes.append(f"reported: {message.error().str()}")
            else:
                found.values.append(message.value())
                position = message.offset() + 1
        if position == progress:
            position, skipped = position + 1, skipped + 1
            consumer.seek(TopicPartition(STREAM, 0, position))
    if skipped:
        found.notes.append(f"{skipped} offsets could not be read")
    found.notes = sorted(set(found.notes))
    return found


class KafkaDefaultStore(KafkaStore):
    """One KRaft broker as it is configured by default."""

    name = "kafka-default"
    label = "Kafka, default (no flush)"
    ack = Ack.PAGE_CACHE
    settings = "KRaft, 1 node, no flush, acks=all, idempotent producer"
    flush = False

    @classmethod
    def leaves_out(cls, fault: str) -> str:
        """Only a power cut tells it from the other Kafka, and it takes minutes."""
        return "" if "power" in fault else "as with a flush: no sync takes part in it"


STORES: Final[tuple[type[Store], ...]] = (
    StrandlineStore,
    JetStreamStore,
    RedisStore,
    StrandlineClusterStore,
    JetStreamClusterStore,
    JetStreamDefaultStore,
    RedisEverySecondStore,
    KafkaStore,
    KafkaDefaultStore,
)


@contextlib.contextmanager
def opened(kind: type[Store], folder: Path, data: Path) -> Iterator[Store]:
    """A started system with an empty stream; stopped at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    store = kind(folder, data)
    store.prepare()
    try:
        store.start()
        create_when_ready(store)
        yield store
    finally:
        store.close()


def create_when_ready(store: Store) -> None:
    """Creates the stream: a server that listens may not be ready for that yet."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            return store.create()
        except (StartError, OSError, RuntimeError):
            if time.monotonic() > deadline or not store.is_running:
                raise
            time.sleep(0.2)

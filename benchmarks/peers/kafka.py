"""Kafka 4.x (KRaft, one node, plain `java`) with a flush for every append: `flush.messages=1`.

Get it: needs Java 17 and Maven; Maven fetches the jars into `benchmarks/.build/kafka/libs` from
whatever repository it is configured for. The load is driven by Kafka's own Java client
(`KafkaAppenders.java`, a single-file program) with the same closed-loop appenders.

Rules: server and client stay running for the whole invocation, because a JVM must be warm: the
first load is preceded by a warm-up of `WARMUP_S`. Each load has a topic of its own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.loadgen import Load, LoadResult
from benchmarks.loadgen.run import LoadError, parse_result
from benchmarks.peers import maven
from benchmarks.peers.process import (
    LOOPBACK,
    find_program,
    free_ports,
    fresh_dir,
    server,
    wait_for_port,
)
from benchmarks.peers.system import Ack, Place, Session, System

VERSION: Final = os.environ.get("BENCH_KAFKA_VERSION", "4.3.0")
WARMUP_S: Final = float(os.environ.get("BENCH_KAFKA_WARMUP_S", "30"))
QUIET: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
HEAP: Final = "-Xmx1g"
START_TIMEOUT_S: Final = 120.0
HOW_TO_GET_JAVA: Final = "install Java 17 or newer (Debian: `apt-get install openjdk-17-jdk`)"
CLIENT_SOURCE: Final = Path(__file__).with_name("KafkaAppenders.java")
DEPENDENCIES: Final = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)
CONFIG: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{broker},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{broker}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.dirs={data}
log.flush.interval.messages=1
"""


def fetch_jars() -> Path:
    """The folder with Kafka's jars; fetches them with Maven the first time."""
    return maven.fetch(f"kafka-{VERSION}", DEPENDENCIES)


@dataclass(frozen=True)
class KafkaSession:
    """A running broker and its warm Java client, which takes one load per line."""

    pid: int
    version: str
    client: subprocess.Popen[str]
    flush: bool

    def run(self, load: Load) -> LoadResult:
        """One load on a fresh topic with `load.subjects` partitions."""
        if load.rate or load.msg_id or load.ping:
            raise LoadError("the Kafka client has no open loop, no message ids and no ping")
        words = [load.connections, load.appenders, load.size_bytes, load.seconds, load.warmup]
        line = " ".join(map(str, [*words, load.subjects, int(self.flush), load.max_appends]))
        assert self.client.stdin is not None
        self.client.stdin.write(line + "\n")
        self.client.stdin.flush()
        return parse_result(self._read())

    def _read(self) -> str:
        assert self.client.stdout is not None
        line = self.client.stdout.readline()
        if not line.startswith("{"):
            raise LoadError(f"the Kafka client failed: {line.strip() or 'it ended'}")
        return line

    def wait_until_ready(self) -> None:
        """Reads the client's ready line."""
        self._read()


@contextlib.contextmanager
def _client(words: list[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    with log.open("wb") as err:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@dataclass(frozen=True)
class KafkaBroker:
    """A running broker, without a client."""

    pid: int
    address: str
    folder: Path
    java: list[str]
    """The command that runs a class of Kafka's jars."""


def java_words() -> list[str]:
    """The command that runs a class of Kafka's jars."""
    java, libs = find_program("java", HOW_TO_GET_JAVA), fetch_jars()
    return [java, HEAP, QUIET, "-cp", f"{libs}/*"]


def format_data(folder: Path, data: Path, ports: tuple[int, int], *, flush: bool = True) -> Path:
    """Formats the data directory of a one-node KRaft broker; returns its configuration file."""
    config = folder / "server.properties"
    broker, controller = ports
    text = CONFIG.format(host=LOOPBACK, broker=broker, controller=controller, data=data)
    config.write_text(text if flush else text.replace("log.flush.interval.messages=1\n", ""))
    tool = [*java_words(), "kafka.tools.StorageTool"]
    uuid = subprocess.run([*tool, "random-uuid"], capture_output=True, text=True, check=True)
    format_words = [*tool, "format", "-t", uuid.stdout.split()[-1], "-c", str(config)]
    subprocess.run(format_words, capture_output=True, check=True)
    return config


@contextlib.contextmanager
def open_broker(place: Place, *, flush: bool = True, partitions: int = 1) -> Iterator[KafkaBroker]:
    """A formatted one-node KRaft broker on free ports; what it creates has so many partitions."""
    run_java = java_words()
    port, controller = free_ports(2)
    with fresh_dir(place.data_root, "kafka") as folder:
        config = format_data(folder, folder / "data", (port, controller), flush=flush)
        with config.open("a") as settings:
            settings.write(f"num.partitions={partitions}\n")
        log = folder / "server.log"
        words = [*place.server_prefix, *run_java, "kafka.Kafka", str(config)]
        with server(words, log, cwd=folder) as process:
            wait_for_port(process, port, log, START_TIMEOUT_S)
            yield KafkaBroker(process.pid, f"{LOOPBACK}:{port}", folder, run_java)


@contextlib.contextmanager
def open_kafka(place: Place, *, flush: bool = True) -> Iterator[Session]:
    """A broker and a warm Java client."""
    with open_broker(place, flush=flush) as broker:
        words = [*place.client_prefix, *broker.java, str(CLIENT_SOURCE), broker.address]
        with _client(words, broker.folder / "client.log") as client:
            session = KafkaSession(broker.pid, f"kafka {VERSION}", client, flush)
            session.wait_until_ready()
            if WARMUP_S > 0:
                session.run(Load(connections=16, seconds=WARMUP_S, subjects=place.partitions))
            yield session


@contextlib.contextmanager
def open_no_flush(place: Place) -> Iterator[Session]:
    """The same with Kafka's own default: the operating system decides when to sync."""
    with open_kafka(place, flush=False) as session:
        yield session


KAFKA = System(
    name="kafka",
    label="Kafka, flush.messages=1",
    ack=Ack.DISK,
    settings="KRaft, 1 node, flush.messages=1, acks=all, max.in.flight=1, linger.ms=0",
    open=open_kafka,
    keep_running=True,
)
KAFKA_NO_FLUSH = System(
    name="kafka-default",
    label="Kafka, default (no flush)",
    ack=Ack.PAGE_CACHE,
    settings="KRaft, 1 node, no flush, acks=all, max.in.flight=1, linger.ms=0",
    open=open_no_flush,
    keep_running=True,
)

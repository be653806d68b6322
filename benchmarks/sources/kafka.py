"""Kafka, read by `confluent-kafka` (librdkafka): `consume` of BATCH messages at a time.

Get it: `pip install confluent-kafka`, and what `peers/kafka.py` needs. The broker flushes when the
operating system decides; reads do not depend on it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.fill import Shape
from benchmarks.peers.kafka import VERSION, open_broker
from benchmarks.peers.process import StartError, UnavailableError
from benchmarks.peers.system import Place
from benchmarks.sources.source import Pass

LABEL: Final = "Kafka, confluent-kafka"
BATCH: Final = 10_000
KAFKA_TOPIC: Final = "bench"
FILL_S_MAX: Final = 60.0
POLL_EVERY: Final = 1000
WAIT_S: Final = 5.0
KEPT_VALUES: Final = 1000


@dataclass(frozen=True)
class KafkaSource:
    """A broker with one filled partition."""

    address: str
    version: str
    records: int
    pid: int
    label: str = LABEL

    def read(self, seconds_max: float) -> Pass:
        """One pass with a consumer of its own; time counts from the first `consume` call."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        settings = {
            "bootstrap.servers": self.address,
            "group.id": secrets.token_hex(4),
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 8 << 20,
            "queued.max.messages.kbytes": 256 << 10,
        }
        consumer = Consumer(settings)
        try:
            consumer.assign([TopicPartition(KAFKA_TOPIC, 0, 0)])  # Kafka's own name
            records = value_bytes = 0
            started = time.perf_counter()
            while records < self.records and time.perf_counter() - started < seconds_max:
                messages = consumer.consume(min(BATCH, self.records - records), timeout=WAIT_S)
                if not messages:
                    break
                for message in messages:
                    if message.error():
                        raise KafkaException(message.error())
                    value_bytes += len(message.value() or b"")
                records += len(messages)
            return Pass(records, value_bytes, time.perf_counter() - started)
        finally:
            consumer.close()


def _fill(address: str, shape: Shape) -> int:
    """Produces `shape`, or what FILL_S_MAX suffices for; how many were acknowledged."""
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": address, "linger.ms": 20, "batch.size": 1 << 20}
    producer = Producer({**settings, "queue.buffering.max.messages": 1_000_000})
    values = [os.urandom(shape.value_bytes) for _ in range(KEPT_VALUES)]
    deadline = time.monotonic() + FILL_S_MAX
    sent = 0
    while sent < shape.records and time.monotonic() < deadline:
        try:
            producer.produce(KAFKA_TOPIC, values[sent % KEPT_VALUES])
        except BufferError:
            producer.poll(0.1)
            continue
        sent += 1
        if sent % POLL_EVERY == 0:
            producer.poll(0)
    left = producer.flush(FILL_S_MAX)
    if left:
        raise StartError(f"Kafka did not take {left} of {sent} records in time")
    return sent


@contextlib.contextmanager
def open_kafka_source(place: Place, shape: Shape) -> Iterator[KafkaSource]:
    """A fresh broker filled with `shape`."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise UnavailableError(
            "confluent-kafka not found: `pip install confluent-kafka`"
        ) from error
    with open_broker(place, flush=False) as broker:
        client = f"confluent-kafka {confluent_kafka.version()}"
        records = _fill(broker.address, shape)
        yield KafkaSource(broker.address, f"kafka {VERSION}, {client}", records, broker.pid)

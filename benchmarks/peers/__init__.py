"""The systems under test, each started with durable settings, fresh data and free ports.

`SYSTEMS` maps the name used on the command line to the system.
"""

from typing import Final

from benchmarks.peers.ceiling import CEILING, CEILING_NATS
from benchmarks.peers.cluster import JETSTREAM_R3, STRANDLINE_R3, STRANDLINE_R3_NATS
from benchmarks.peers.jetstream import JETSTREAM, JETSTREAM_DEFAULT
from benchmarks.peers.kafka import KAFKA, KAFKA_NO_FLUSH
from benchmarks.peers.redis_streams import REDIS
from benchmarks.peers.strandline import (
    STRANDLINE,
    STRANDLINE_MEMORY,
    STRANDLINE_NATS,
    STRANDLINE_NATS_MEMORY,
)
from benchmarks.peers.system import System

SYSTEMS: Final[dict[str, System]] = {
    system.name: system
    for system in (
        STRANDLINE,
        STRANDLINE_NATS,
        STRANDLINE_MEMORY,
        STRANDLINE_NATS_MEMORY,
        JETSTREAM,
        REDIS,
        KAFKA,
        JETSTREAM_DEFAULT,
        KAFKA_NO_FLUSH,
        CEILING,
        CEILING_NATS,
        STRANDLINE_R3,
        STRANDLINE_R3_NATS,
        JETSTREAM_R3,
    )
}
PEERS: Final = ("jetstream", "redis", "kafka")

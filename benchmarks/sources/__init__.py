"""Systems filled with data, each read from the beginning by one Python consumer.

A source is opened with a shape (how many records of which size), fills itself, and is then read
any number of times. Reads do not depend on how safe the data is, so peers are filled without syncs.
"""

from benchmarks.sources.bare_flight import open_bare_flight
from benchmarks.sources.jetstream import open_jetstream_source
from benchmarks.sources.kafka import open_kafka_source
from benchmarks.sources.source import Pass, Source
from benchmarks.sources.strandline import (
    LABEL,
    VALUES_ONLY,
    StrandlineSource,
    ValuesOnly,
    open_strandline_source,
)

__all__ = [
    "LABEL",
    "VALUES_ONLY",
    "Pass",
    "Source",
    "StrandlineSource",
    "ValuesOnly",
    "open_bare_flight",
    "open_jetstream_source",
    "open_kafka_source",
    "open_strandline_source",
]

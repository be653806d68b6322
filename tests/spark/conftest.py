"""One Spark session and one broker for all tests that need them: starting Spark takes seconds."""

import itertools
import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import strandline
from strandline.testing import ProcessServer

SOURCE = str(Path(__file__).parents[2] / "src")
_numbers = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def importable_by_workers():
    """Spark's Python workers find the package, installed or not."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (SOURCE, before)))
    yield
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="session")
def spark(importable_by_workers):
    """Two cores, four attempts a task, as little logging as possible."""
    from strandline.spark.session import QUICK_START, spark_session

    settings = QUICK_START | {"spark.sql.streaming.stopTimeout": "30s"}
    session = spark_session("local[2,4]", app_name="tests", settings=settings)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(importable_by_workers):
    """A broker process without NATS traffic."""
    with ProcessServer() as server:
        yield server


@pytest.fixture(scope="session")
def client(broker):
    """A client of the broker."""
    with strandline.connect(broker.flight) as client:
        yield client


@pytest.fixture
def new_stream(client):
    """Makes a stream with records numbered from 0, spread round robin over its partitions."""

    def make(records=0, *, partitions=2, **config):
        name = f"stream{next(_numbers)}"
        client.create_stream(name, partitions=partitions, **config)
        append(client, name, range(records), partitions=partitions)
        return name

    return make


def append(client, stream, numbers, *, partitions=2, size=0):
    """Append records whose value begins with their number, to partition number % partitions."""
    for partition in range(partitions):
        mine = [n for n in numbers if n % partitions == partition]
        if mine:
            table = pa.table(
                {
                    "value": pa.array([b"%d" % n + b"." * size for n in mine], pa.binary()),
                    "key": pa.array([b"k%d" % (n % 7) for n in mine], pa.binary()),
                }
            )
            client.append_batch(stream, table, partition=partition)


def logged(client, stream):
    """Every record of the log as (partition, offset, value), in order."""
    found = []
    for info in client.stream_info(stream).partitions:
        reader = client.read(stream, partition=info.partition, columns=["offset", "value"])
        for batch in reader:
            offsets, values = (batch.column(n).to_pylist() for n in ("offset", "value"))
            found += [(info.partition, o, v) for o, v in zip(offsets, values, strict=True)]
    return found


def landed(path):
    """Every row of a table as (partition, offset, value), in order."""
    from strandline.spark.table import read_table

    table = read_table(str(path)).to_table(columns=["partition", "offset", "value"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def python_environment():
    """Variables for a child process that starts Spark itself."""
    return os.environ | {"PYTHONPATH": SOURCE, "PYSPARK_PYTHON": sys.executable}

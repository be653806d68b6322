"""One Spark session and one broker for all tests that need them: starting Spark takes seconds."""

import fcntl
import hashlib
import itertools
import os
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest

import strandline
from strandline.testing import ProcessServer

SOURCE = str(Path(__file__).parents[2] / "src")
JOBS = Path(__file__).parent / "jobs"
SPARK = Path(find_spec("pyspark").origin).parent
ARCHIVE_S = 300
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


@pytest.fixture(scope="session", autouse=True)
def java_starts_quickly(importable_by_workers, request):
    """Spark's processes find their Java classes in an archive, which halves the time of a start.

    It stays in pytest's cache while Spark and Java are the same. A Java for which it was not made
    does without, and so does one that brings no archive of its own classes, as the wheel's, or that
    cannot make one: tests only take longer then.
    """
    from strandline.spark.java import find_java_home
    from strandline.spark.session import QUICK_JAVA

    options = QUICK_JAVA
    cache = getattr(request.config, "cache", None)
    base = find_java_home() / "lib" / "server" / "classes.jsa"
    if cache is not None and base.exists():
        archive = class_archive(cache.mkdir("java"), base)
        if archive.exists():
            options += f" -XX:SharedArchiveFile={archive} -Xlog:disable"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
            patch.setenv(name, options)
        yield


def class_archive(directory, base):
    """The archive for this Spark and the Java of ``base``, created if there is none."""
    made_of = [base, *(SPARK / "jars").glob("spark-core*.jar")]
    stamps = "".join(f"{file}{file.stat().st_mtime_ns}" for file in made_of)
    archive = directory / f"{hashlib.sha256(stamps.encode()).hexdigest()[:16]}.jsa"
    with (directory / "lock").open("w") as lock:
        # Of two workers that need it one makes it, with a minute of CPU, and the other waits.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_EX)
        else:
            if not archive.exists():
                make_archive(archive, directory)
    return archive


def make_archive(archive, directory):
    """Run a job that leaves an archive of the classes that it loaded."""
    for old in directory.iterdir():
        if old.name != "lock":
            old.unlink(missing_ok=True)
    making = directory / f"{os.getpid()}"
    command = [sys.executable, str(JOBS / "archive.py"), str(making)]
    try:
        subprocess.run(command, stdout=sys.stderr, timeout=ARCHIVE_S, check=False)
    except subprocess.TimeoutExpired:
        return  # what Java has written may be a part of it
    if making.exists():
        making.rename(archive)


@pytest.fixture(scope="session")
def spark(importable_by_workers):
    """Two cores, many attempts a task (some tests kill them), as little logging as possible."""
    from strandline.spark.session import QUICK_START, spark_session

    settings = QUICK_START | {
        "spark.sql.streaming.stopTimeout": "30s",
        # Compiling Java for each query takes longer than running it over a few rows.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    session = spark_session("local[2,12]", app_name="tests", settings=settings)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(importable_by_workers):
    """A broker process without NATS traffic."""
    with ProcessServer() as server:
        yield server


class Log:
    """Helpers at the broker: create streams, append, read everything."""

    def __init__(self, server):
        self.broker = server
        self.server = server.flight
        self.client = strandline.connect(server.flight)

    def new_stream(self, records=0, *, partitions=2, size=0, **config):
        """A stream with records numbered from 0."""
        name = f"stream{next(_numbers)}"
        self.client.create_stream(name, partitions=partitions, **config)
        self.append(name, range(records), partitions=partitions, size=size)
        return name

    def append(self, stream, numbers, *, partitions=2, size=0):
        """Append records: value "<number>...", key "k<number % 7>", partition by number."""
        for partition in range(partitions):
            mine = [n for n in numbers if n % partitions == partition]
            if mine:
                values = pa.array([b"%d" % n + b"." * size for n in mine], pa.binary())
                keys = pa.array([b"k%d" % (n % 7) for n in mine], pa.binary())
                table = pa.table({"value": values, "key": keys})
                self.client.append_batch(stream, table, partition=partition)

    def records(self, stream):
        """Every record of the log as (partition, offset, value), in order."""
        found = []
        for info in self.client.stream_info(stream).partitions:
            reader = self.client.read(stream, partition=info.partition, columns=["offset", "value"])
            for batch in reader:
                offsets, values = (batch.column(n).to_pylist() for n in ("offset", "value"))
                found += [(info.partition, o, v) for o, v in zip(offsets, values, strict=True)]
        return found

    def metric(self, start):
        """Return the broker's metric with this prefix and its labels; None: there is none."""
        with urllib.request.urlopen(f"{self.broker.http_url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(start)), None)


@pytest.fixture(scope="session")
def log(broker):
    """The broker, as tests use it."""
    return Log(broker)


@pytest.fixture
def landed():
    """A function: every row of a table as (partition, offset, value), in order."""
    from strandline.spark.table import read_table

    def rows(path):
        table = read_table(str(path)).to_table(columns=["partition", "offset", "value"])
        return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))

    return rows


@pytest.fixture
def stream_reader(spark, log):
    """A function: a streaming read of a stream, with options."""

    def reader(stream, **options):
        read = spark.readStream.format("strandline").options(server=log.server, stream=stream)
        return read.options(**options)

    return reader


@pytest.fixture
def batch_reader(spark, log):
    """A function: a batch read of a stream, with options."""

    def reader(stream, **options):
        read = spark.read.format("strandline").options(server=log.server, stream=stream)
        return read.options(**options)

    return reader


@pytest.fixture(scope="module")
def spark_cluster(importable_by_workers, tmp_path_factory):
    """A Spark master and two workers."""
    from strandline.spark.demo.standalone import Standalone

    with Standalone(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster

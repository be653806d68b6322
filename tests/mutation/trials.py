"""Whether the tests notice a mistake: tests that mirror the file first, then those that use it.

Rules: mistakes are made in a copy of the tree, never in the tree itself; real processes that tests
start run the copy, too, since it comes first on ``PYTHONPATH``. A run that takes too long is a
mistake that was noticed: something waits for ever.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from mistakes import Mistake

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path("src/strandline")
PER_TEST_S = 120
# Folders and modules, the longest that fits first: integration tests that go through them.
USED_BY = {
    "broker": ("broker_process", "client_streams", "kill_rounds"),
    "broker/cluster": ("cluster_clients", "cluster_processes", "cluster_operations"),
    "broker/groups": ("consumer_groups",),
    "broker/peers": ("peer_link", "cluster_processes"),
    "broker/quorum.py": ("cluster_processes", "cluster_init"),
    "broker/transactions": ("transactions_client", "transactions_kill"),
    "cli": ("cluster_init", "access"),
    "client": ("client_streams", "client_faults", "client_async"),
    "client/offset_store_dual.py": ("position_stores",),
    "client/offset_store_sql.py": ("position_stores",),
    "client/offset_store_zookeeper.py": ("position_stores",),
    "consensus": ("cluster_processes",),
    "encryption": ("encryption",),
    "frontends/flight": ("client_streams", "flight_fuzz", "local_reads"),
    "frontends/grpc": ("liftbridge_clients",),
    "frontends/grpc/liftbridge": ("liftbridge_clients", "liftbridge_cluster"),
    "frontends/nats": ("nats_publish", "nats_crashes", "client_nats"),
    "frontends": ("quotas", "tls"),
    "groups": ("consumer_groups",),
    "metadata": ("cluster_operations", "cluster_init"),
    "protocol": ("client_streams",),
    "reading": ("local_reads", "client_streams"),
    "record": ("client_streams", "compaction"),
    "replication": ("cluster_processes", "cluster_catch_up"),
    "security": ("access", "quotas"),
    "server": ("broker_process", "json_logs"),
    "storage": ("faults_damage", "kill_rounds", "broker_process"),
    "transactions": ("transactions_client",),
}
SIMULATED = {
    "consensus": "consensus_sim",
    "replication": "replication_sim",
    "storage": "recovery_sim",
    "transactions": "transactions_sim",
}
OTHERS = ("property", "sim")


class Outcome(NamedTuple):
    """What became of one mistake."""

    noticed: bool
    by: str
    """The stage and the first test that failed; of a survivor the tests that did not."""


class Copy:
    """A copy of the tree in which mistakes are made.

    Args:
        directory: where to; what is there is replaced.
        limit_s: how long the tests of one stage may take.
    """

    def __init__(self, directory: Path, *, limit_s: float) -> None:
        self.directory = directory
        self._limit_s = limit_s
        shutil.rmtree(directory, ignore_errors=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True
        ).stdout
        for name in filter(None, listed.decode().split("\0")):
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_file():
                shutil.copy2(ROOT / name, target)

    def tried(self, path: str, mistake: Mistake, *, mirrors_only: bool) -> Outcome | None:
        """Make a mistake, run its tests and undo it; None: the test fails without it, too."""
        stages = [("mirror", mirrors(path))]
        if not mirrors_only:
            stages.append(("integration", users(path)))
        file = self.directory / path
        source = file.read_bytes()
        passed: list[str] = []
        try:
            file.write_bytes(mistake.applied(source))
            for stage, chosen in stages:
                tests = [each for each in chosen if each not in passed]
                failure = self._run(tests) if tests else ""
                if failure:
                    file.write_bytes(source)
                    is_its_own = "::" not in failure or not self._run([failure])
                    return Outcome(noticed=True, by=f"{stage}: {failure}") if is_its_own else None
                passed += tests
        finally:
            file.write_bytes(source)
        return Outcome(noticed=False, by=" ".join(passed) or "no test is near it")

    def _run(self, tests: list[str]) -> str:
        """The first test that fails, or why there is none; empty if all pass."""
        command = [
            *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"),
            *("--no-header", "--tb=no", f"--timeout={PER_TEST_S}", *tests),
        ]
        environment = {**os.environ, "PYTHONPATH": str(self.directory / "src")}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"  # a mistake may keep the file's size and time
        process = subprocess.Popen(
            command,
            cwd=self.directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=self._limit_s)
        except subprocess.TimeoutExpired:
            return f"still running after {self._limit_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # it and what its tests left behind
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        if process.returncode in (0, 5):  # 5: no test is chosen on this machine
            return ""
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
        return failed[1] if failed else f"pytest ended with {process.returncode}"


def mirrors(path: str) -> list[str]:
    """The unit tests of a file: of its name, and those that import it."""
    inner = Path(path).relative_to(SOURCE)
    module = ".".join(("strandline", *inner.with_suffix("").parts))
    name = re.compile(rf"test_{re.escape(inner.stem)}(_\w+)?\.py")
    parent, _, own = module.rpartition(".")
    imports = re.compile(rf"{re.escape(module)}\b|from {re.escape(parent)} import .*\b{own}\b")
    folders = [ROOT / "tests/unit", *(ROOT / "tests" / each for each in OTHERS)]
    found = []
    for file in sorted(each for folder in folders for each in folder.rglob("test_*.py")):
        is_mirror = name.fullmatch(file.name) and inner.parts[0] in (*file.parts, file.name)
        if is_mirror or imports.search(file.read_text()):
            found.append(str(file.relative_to(ROOT)))
    return found


def users(path: str) -> list[str]:
    """The integration tests that go through a file, and the simulation of its core."""
    inner = Path(path).relative_to(SOURCE).as_posix()
    fitting = [each for each in USED_BY if inner == each or inner.startswith(f"{each}/")]
    names = USED_BY[max(fitting, key=len)] if fitting else ()
    found = [f"tests/integration/test_{each}.py" for each in names]
    simulated = SIMULATED.get(inner.partition("/")[0])
    if simulated:
        found.insert(0, f"tests/sim/test_{simulated}.py")
    return [each for each in found if (ROOT / each).exists()]

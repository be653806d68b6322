"""Whether the tests notice a mistake: the nearest tests first, those of whole processes last.

Three stages: unit tests of the file's name and those that import it; unit tests that use a name
defined in it, and the mirrors of modules that import it; tests of whole processes that have words
of the line, its function and its file.

Rules: mistakes are made in a copy of the tree, never in the tree itself; real processes that tests
start run the copy, too, since it comes first on ``PYTHONPATH``. A test that takes too long fails:
something waits for ever; tests that take longer than the limit together say nothing. A failure
counts if it comes again with the mistake and not without it: tests of real processes fail at times
on a busy machine. So does a test that waits for ever: it is one that took ``PER_TEST_S`` twice with
the mistake, and passed in that time without it.
"""

import ast
import contextlib
import math
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
PER_TEST_S = 60
NEAR_MAX = 14
"""How many test files of the second stage are run, the nearest first."""
NAME_LENGTH_MIN = 6
"""Shorter names, and words of small letters, are used for too much to tell a module by."""
WORD_LENGTH_MIN = 5
IMPORTS_AWAY_MAX = 2
USERS_MAX = 8
"""How many test files of the third stage are run, those about the line first."""
SIMULATED = {
    "core/raft": "consensus_sim",
    "core/replication": "replication_sim",
    "storage": "recovery_sim",
    "core/transactions": "transactions_sim",
}
OVERDUE = "still running"
TIMED_OUT = "a test waited for ever"
PROCESSES = ("integration", "spark")
OTHERS = ("property", "simulation", "golden")
LIMITS = "tests/golden/test_limits.py"
"""Notices changed numbers."""


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
        self._changes = 0
        self._slow: set[str] = set()
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
        stages = [("mirror", mirrors(self.directory, path))]
        if not mirrors_only:
            stages += [("near", [each]) for each in near(self.directory, path, mistake.line)]
            whole = users(self.directory, path, mistake.line)
            stages += [("integration", [each]) for each in whole]
        file = self.directory / path
        source, times = file.read_bytes(), file.stat()
        passed: list[str] = []
        for stage, chosen in stages:
            tests = [each for each in chosen if each not in {*passed, *self._slow}]
            try:
                file.write_bytes(mistake.applied(source))
                self._changes += 1  # Bytecode is told from the source by its time, in seconds.
                os.utime(file, (times.st_atime, times.st_mtime + self._changes))
                failure = self._run(tests)
                again = [failure] if "::" in failure else tests
                is_flaky = "::" in failure and not self._run(again)
            finally:
                file.write_bytes(source)
                os.utime(file, (times.st_atime, times.st_mtime))
            if failure.startswith(OVERDUE):
                self._slow.update(tests)  # On this machine they say nothing within the limit.
                continue
            without = self._run(again) if failure and not is_flaky else ""
            if is_flaky or without:
                return None
            if failure:
                return Outcome(noticed=True, by=f"{stage}: {failure}")
            passed += tests
        return Outcome(noticed=False, by=" ".join(passed) or "no test is near it")

    def _run(self, tests: list[str]) -> str:
        """The first test that fails, or why there is none; empty if all pass."""
        if not tests:
            return ""
        command = [
            *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"),
            *("--no-header", "--tb=no", f"--timeout={PER_TEST_S}", *tests),
        ]
        environment = {**os.environ, "PYTHONPATH": str(self.directory / "src")}
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
            return f"{OVERDUE} after {self._limit_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # it and what its tests left behind
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        if process.returncode in (0, 5):  # 5: no test is chosen on this machine
            return ""
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
        if failed is None and " Timeout " in said:
            return TIMED_OUT
        return failed[1] if failed else f"pytest ended with {process.returncode}"


def mirrors(root: Path, path: str) -> list[str]:
    """The unit tests of a file: of its name, and those that import it."""
    inner = Path(path).relative_to(SOURCE)
    name, imports = _mirror_name(inner), _imports(inner)
    found = []
    for file in _unit_tests(root):
        is_mirror = name.fullmatch(file.name) and inner.parts[0] in (*file.parts, file.name)
        if is_mirror or imports.search(file.read_text()):
            found.append(file.relative_to(root).as_posix())
    return found


def near(root: Path, path: str, line: int) -> list[str]:
    """Return more unit tests of a line, the nearest first.

    Mirrors of modules that import its file or that the line names; tests that use what the file
    defines; and of the other tests of its folder, which may reach it through what ``conftest.py``
    builds, those that have words of the line.
    """
    inner = Path(path).relative_to(SOURCE)
    source = (root / path).read_text()
    text = source.splitlines()[line - 1]
    related = {**_importers(root, inner), **dict.fromkeys(_named_modules(source, text), 0)}
    names = "|".join(map(re.escape, _names(root / path)))
    uses = re.compile(rf"\b(?:{names})\b") if names else None
    words = _words(f"{inner.stem} {text}")
    ranked = []
    for file in _unit_tests(root):
        folder = file.relative_to(root / "tests").parent
        steps = min(
            (
                step
                for each, step in related.items()
                if _mirror_name(each).fullmatch(file.name)
                and (Path("unit") / each.parent).is_relative_to(folder)
            ),
            default=IMPORTS_AWAY_MAX + 1,
        )
        content = file.read_text()
        used = len(uses.findall(content)) if uses else 0
        is_far = not (Path("unit") / inner.parent).is_relative_to(folder)
        is_beside = folder == Path("unit") / inner.parent
        if steps <= IMPORTS_AWAY_MAX or used or is_beside:
            alike = sum(word in content for word in words)
            place = file.relative_to(root).as_posix()
            ranked.append((is_far, min(steps, 1), -alike, steps, -used, place))
    found = [each[-1] for each in sorted(ranked)[:NEAR_MAX]]
    return [*found, LIMITS]


def users(root: Path, path: str, line: int) -> list[str]:
    """Return the tests of whole processes that share most words with a line.

    The words of its file and its function count, too. For a core its simulation comes first.
    """
    inner = Path(path).relative_to(SOURCE).as_posix()
    source = (root / path).read_text()
    text = source.splitlines()[line - 1]
    words = _words(f"{inner} {_function_at(source, line)} {text}")
    files = [each for one in PROCESSES for each in (root / "tests" / one).rglob("test_*.py")]
    texts = {each.relative_to(root).as_posix(): each.read_text().lower() for each in files}
    scores: dict[str, float] = dict.fromkeys(texts, 0)
    for word in words:
        having = [name for name, text in texts.items() if word in text]
        for name in having:  # a rare word tells more, and most in the name of the test
            scores[name] += math.log(len(texts) / len(having)) * (1 + 2 * (word in name))
    found = sorted(texts, key=lambda name: (-scores[name], name))[:USERS_MAX]
    for core, simulation in SIMULATED.items():
        if inner.startswith(f"{core}/"):
            found.insert(0, f"tests/simulation/test_{simulation}.py")
    return found


def _function_at(source: str, line: int) -> str:
    """The name of the innermost function around a line; empty outside of functions."""
    around = [
        (each.lineno, each.name)
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        and each.lineno <= line <= (each.end_lineno or 0)
    ]
    return max(around)[1] if around else ""


def _unit_tests(root: Path) -> list[Path]:
    """Test files that start no processes, in order."""
    folders = [root / "tests/unit", *(root / "tests" / each for each in OTHERS)]
    return sorted(each for folder in folders for each in folder.rglob("test_*.py"))


def _mirror_name(inner: Path) -> re.Pattern[str]:
    """The names that a mirror of a file has."""
    return re.compile(rf"test_{re.escape(inner.stem)}(_\w+)?\.py")


def _imports(inner: Path) -> re.Pattern[str]:
    """An import of a module, in either form."""
    named = inner.parent if inner.name == "__init__.py" else inner.with_suffix("")
    module = ".".join(("strandline", *named.parts))
    parent, _, own = module.rpartition(".")
    return re.compile(
        rf"{re.escape(module)}\b(?!\.)|from {re.escape(parent)} import (?:.*\b|\([^)]*\b){own}\b"
    )


def _importers(root: Path, inner: Path) -> dict[Path, int]:
    """The modules that import a file, or import one that does: over how many imports."""
    texts = {
        file.relative_to(root / SOURCE): file.read_text()
        for file in sorted((root / SOURCE).rglob("*.py"))
    }
    found: dict[Path, int] = {}
    newest = [inner]
    for step in range(1, IMPORTS_AWAY_MAX + 1):
        patterns = [_imports(each) for each in newest]
        newest = [
            each
            for each, text in texts.items()
            if each not in found and any(pattern.search(text) for pattern in patterns)
        ]
        found.update(dict.fromkeys(newest, step))
    return found


def _named_modules(source: str, text: str) -> list[Path]:
    """The modules of ours from which a line's names come."""
    return [
        Path(*node.module.split(".")[1:]).with_suffix(".py")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("strandline.")
        for each in node.names
        if re.search(rf"\b{re.escape(each.asname or each.name)}\b", text)
    ]


def _words(text: str) -> set[str]:
    """The longer words of which identifiers are made."""
    parts = re.findall(r"[A-Z]?[a-z]+", text)
    return {part.lower() for part in parts if len(part) >= WORD_LENGTH_MIN}


def _names(file: Path) -> list[str]:
    """What a module defines for others and is long enough to be known by."""
    defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return [
        each.name
        for each in ast.parse(file.read_bytes()).body
        if isinstance(each, defined)
        and not each.name.startswith("_")
        and len(each.name) >= NAME_LENGTH_MIN
        and ("_" in each.name or not each.name.islower())
    ]

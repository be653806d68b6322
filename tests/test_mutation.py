"""The tool behind ``make mutants``: which mistakes it makes, and that it judges them rightly."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).with_name("mutation")
SOURCE = b'''"""Adds."""

def add(a: int = 1, *, most=10) -> int:
    """Not more than 9."""
    assert a > 0, "never"
    logger.info("adding %d", a + 1)
    for each in range(a):
        if not each and a is not None:
            raise ValueError(f"{a + 1} < 2")
        a += 2
        note(each)
    return min(a, most) if a <= most else "\xc3\xa4" + str(a)
'''


@pytest.fixture
def tool(monkeypatch):
    """The modules of the tool; it is run as a folder."""
    monkeypatch.syspath_prepend(str(TOOL))
    import mistakes

    return mistakes


def test_a_mistake_changes_one_place(tool):
    """Each is Python, and differs from the source in one line; the same source gives the same."""
    found = tool.mistakes_of(SOURCE)
    assert found == tool.mistakes_of(SOURCE)
    for each in found:
        changed = [
            (old, new)
            for old, new in zip(SOURCE.split(b"\n"), each.applied(SOURCE).split(b"\n"), strict=True)
            if old != new
        ]
        assert len(changed) == 1
        assert tool.is_python(each.applied(SOURCE))
        assert each.before != each.after
    assert len(set(found)) == len(found)


def test_mistakes_are_made_in_what_the_code_does(tool):
    """Not in logs, assertions or texts; positions are right after multi-byte letters."""
    made = {(each.line, each.before, each.after) for each in tool.mistakes_of(SOURCE)}
    assert made == {
        (3, "1", "2"),
        (3, "10", "11"),
        (8, "not ", ""),
        (8, "and", "or"),
        (8, "is not", "is"),
        (8, "not each and a is not None", "not (not each and a is not None)"),
        (9, 'raise ValueError(f"{a + 1} < 2")', "pass"),
        (10, "a += 2", "pass"),
        (10, "2", "3"),
        (11, "note(each)", "pass"),
        (12, "min", "max"),
        (12, "<=", "<"),
        (12, "+", "-"),
    }


def test_a_renamed_file_is_followed(tool):
    """The tool's tests, files and survivors exist."""
    import trials

    import report

    for core, simulation in trials.SIMULATED.items():
        assert (trials.ROOT / trials.SOURCE / core).is_dir(), core
        assert (trials.ROOT / f"tests/simulation/test_{simulation}.py").exists(), simulation
    for (path, _, _), verdict in report.verdicts().items():
        assert (trials.ROOT / path).exists(), path
        if verdict["verdict"] == report.ADDED:
            file = verdict["reason"].partition("::")[0]
            assert (trials.ROOT / file).exists(), file


def test_tests_are_chosen_by_what_they_reach(tool):
    """A file without a mirror meets the tests of its importers, its names and its words."""
    from trials import NEAR_MAX, ROOT, USERS_MAX, mirrors, near, users

    path = "src/strandline/servers/nats/guard.py"
    assert mirrors(ROOT, path) == []
    chosen = near(ROOT, path, 75)
    assert "tests/unit/servers/nats/test_listener.py" in chosen[:5]
    assert len(chosen) <= NEAR_MAX + 1
    path = "src/strandline/broker/write_path/schema_check.py"
    chosen = users(ROOT, path, 60)
    assert chosen[0] == "tests/integration/test_schema_validation.py"
    assert len(chosen) == USERS_MAX


def test_a_run_tells_what_was_noticed(tmp_path):
    """In a copy: a mistake that a test sees, by the name of that test; the tree stays as it is."""
    file = TOOL.parents[1] / "src/strandline/core/transactions/hidden.py"
    source = file.read_bytes()
    done = subprocess.run(
        [
            *(sys.executable, TOOL, "--count", "1", "--only", "core/transactions/hidden.py"),
            *("--notes", tmp_path, "--mirrors-only"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "core/transactions/hidden.py" in done.stdout
    assert "noticed" in done.stdout.lower()
    trials = [json.loads(line) for line in next(tmp_path.iterdir()).read_text().splitlines()]
    noticed = [trial["by"] for trial in trials if trial["noticed"]]
    assert noticed
    assert all("test_hidden.py::" in by for by in noticed)
    assert file.read_bytes() == source


def test_a_test_that_waits_for_ever_is_told_from_one_that_fails(tool, tmp_path, monkeypatch):
    """On a busy machine the first may be a test that is only slow, so the page counts them."""
    import trials

    monkeypatch.setattr(trials, "PER_TEST_S", 1)
    copy = object.__new__(trials.Copy)
    copy.directory, copy._limit_s = tmp_path, 60
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout_method = thread\n")
    (tmp_path / "test_waits.py").write_text("import time\n\ndef test_it():\n    time.sleep(60)\n")
    (tmp_path / "test_fails.py").write_text("def test_it():\n    assert False\n")
    assert copy._run(["test_waits.py"]) == trials.TIMED_OUT
    assert copy._run(["test_fails.py"]) == "test_fails.py::test_it"

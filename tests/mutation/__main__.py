"""``make mutants``: single mistakes from a seed, one at a time; which do the tests notice?

The mistakes are drawn file by file, so that each file gets its share. A run that was interrupted is
continued: what was tried is in ``.mutants/SEED.jsonl``, and COUNT is the number of all together.
The page is about the runs of all seeds that are noted there.

mutmut and cosmic-ray do not fit this tree: mutmut switches a mutant on in the process of the tests,
while many of ours start brokers of their own from the installed tree; cosmic-ray has one test
command for all files, and changes the tree in place. Neither draws from a seed.
"""

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mistakes import Mistake, is_python, lines_of, mistakes_of
from trials import ROOT, SOURCE, Copy

from report import ADDED, STRICT_AREA, area_of, key_of, page, verdicts

LEFT_OUT = ("testing", "_generated", "demo", "version.py", "__main__.py")


def drawn(root: Path, seed: int, chosen: Callable[[str], bool]) -> Iterator[tuple[str, Mistake]]:
    """All mistakes in a tree, round after round of one for each file, in an order from the seed."""
    chance = random.Random(seed)
    left: dict[str, list[Mistake]] = {}
    for file in sorted((root / SOURCE).rglob("*.py")):
        path = file.relative_to(root).as_posix()
        found = mistakes_of(file.read_bytes())
        random.Random(f"{seed} {path}").shuffle(found)  # whatever becomes of other files
        if found and chosen(path) and not any(each in file.parts for each in LEFT_OUT):
            left[path] = found
    while left:
        paths = list(left)
        chance.shuffle(paths)
        for path in paths:
            yield path, left[path].pop()
            if not left[path]:
                del left[path]


def say(text: str) -> None:
    """Tell whoever waits how far it is."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def noted(file: Path, *, mirrors_only: bool) -> list[dict[str, Any]]:
    """What was tried before, the newest outcome of each mistake.

    Two kinds of survivors are tried again: of the mirroring tests alone, where others are run, too;
    and those for which a test was added since, which has to notice them.
    """
    lines = file.read_text().splitlines() if file.exists() else []
    found = {key_of(trial): trial for trial in map(json.loads, lines)}
    judged = verdicts()
    return [
        each
        for key, each in found.items()
        if each["noticed"]
        or not (
            (each.get("mirrors_only") and not mirrors_only)
            or judged.get(key, {}).get("verdict") == ADDED
        )
    ]


def first_noticed(file: Path) -> set[tuple[str, str, str]]:
    """The mistakes that were noticed when they were tried for the first time."""
    lines = file.read_text().splitlines() if file.exists() else []
    first = {key_of(trial): trial for trial in reversed([*map(json.loads, lines)])}
    return {key for key, trial in first.items() if trial["noticed"]}


def main() -> None:
    """Try mistakes until there are enough, or the time is over; write the page."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200, help="mistakes in all")
    parser.add_argument("--minutes", type=float, default=60, help="begin no trial after so long")
    parser.add_argument("--limit", type=float, default=900, help="seconds for the tests of a stage")
    parser.add_argument("--only", default="", help="files whose path has this text")
    area = parser.add_mutually_exclusive_group()
    for name, what in (("strict", "cores, storage and broker only"), ("elsewhere", "all others")):
        area.add_argument(f"--{name}", dest="area", action="store_const", const=name, help=what)
    parser.add_argument("--mirrors-only", action="store_true", help="no other tests")
    parser.add_argument("--notes", type=Path, default=ROOT / ".mutants")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the tests under way, too
    narrowed = (f"-{given.area}" if given.area else "") + given.only.replace("/", "-")
    note = given.notes / f"{given.seed}{narrowed}.jsonl"
    note.parent.mkdir(exist_ok=True)
    known = noted(note, mirrors_only=given.mirrors_only)
    tried = {key_of(each) for each in known}
    deadline_s = time.monotonic() + given.minutes * 60

    def chosen(path: str) -> bool:
        is_in_area = (area_of(path) == STRICT_AREA) == (given.area == "strict")
        return given.only in path and (not given.area or is_in_area)

    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        copy = Copy(Path(directory) / "tree", limit_s=given.limit)
        for path, mistake in drawn(copy.directory, given.seed, chosen):
            if len(known) >= given.count or time.monotonic() >= deadline_s:
                break
            source = (copy.directory / path).read_bytes()
            before, after = lines_of(mistake, source)
            if (path, before, after) in tried or not is_python(mistake.applied(source)):
                continue
            began_s = time.monotonic()
            outcome = copy.tried(path, mistake, mirrors_only=given.mirrors_only)
            if outcome is None:
                say(f"{path}: its tests fail without a mistake, too")
                continue
            trial = {"file": path, "line": mistake.line, "before": before, "after": after}
            trial |= {"kind": mistake.kind, **outcome._asdict(), "mirrors_only": given.mirrors_only}
            known.append(trial)
            tried.add(key_of(trial))
            with note.open("a") as file:
                file.write(json.dumps(trial) + "\n")
            told = "noticed" if outcome.noticed else "NOT NOTICED"
            took = f"{time.monotonic() - began_s:.0f} s"
            say(f"{path}:{mistake.line}: {before} -> {after}: {told}, {took}")
    if not given.only:
        write_page(given.notes, given.results)


def write_page(notes: Path, results: Path) -> None:
    """Write the page about all runs that are noted, each mistake once."""
    trials: dict[tuple[str, str, str], dict[str, Any]] = {}
    at_once: set[tuple[str, str, str]] = set()
    commands = []
    for note in sorted(notes.glob("*.jsonl")):
        seed, _, narrowed = note.stem.partition("-")
        if not seed.isdecimal() or narrowed not in ("", "strict", "elsewhere"):
            continue  # files that somebody chose: they would weigh too much
        own = noted(note, mirrors_only=True)
        trials.update({key_of(each): each for each in own})
        at_once |= first_noticed(note)
        chosen = f" ARGS=--{narrowed}" if narrowed else ""
        commands.append(f"make mutants MUTANT_SEED={seed} COUNT={len(own)}{chosen}")
    result = results / f"{datetime.now(UTC):%Y-%m-%d}-mutants.md"
    result.write_text(page(list(trials.values()), at_once=at_once, commands=commands))
    say(f"{len(trials)} mistakes: {result}")


main()

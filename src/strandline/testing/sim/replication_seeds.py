"""Run the simulator of replication: ``python -m strandline.testing.sim.replication_seeds``.

``seeds 1 500`` runs seeds 1 to 500 and says how fast; ``bugs 300`` hunts every seeded bug, at most
300 seeds each. Exits with 1 if a promise was broken, or a bug was not found.
"""

import argparse
import sys
from collections import Counter
from time import process_time

from strandline.testing.sim.replication import run
from strandline.testing.sim.replication_bugs import Catch, hunt_all
from strandline.testing.sim.world import ViolationError


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("seeds", "bugs"))
    parser.add_argument("numbers", type=int, nargs="+", help="first and last seed, or most seeds")
    given = parser.parse_args()
    if given.what == "bugs":
        return _bugs(given.numbers[0])
    return _seeds(given.numbers[0], given.numbers[-1])


def _seeds(first: int, last: int) -> int:
    """Every seed; all violations are told, the first does not stop it."""
    started_s, events, broken = process_time(), 0, 0
    counts: Counter[str] = Counter()
    for seed in range(first, last + 1):
        try:
            result = run(seed)
        except ViolationError as violation:
            broken += 1
            _say(str(violation))
        else:
            events += result.events
            counts += result.counts
    took_s = process_time() - started_s
    _say(f"{last - first + 1} seeds, {broken} broken; {events} events, {events / took_s:.0f}/s")
    _say(", ".join(f"{what} {count}" for what, count in sorted(counts.items())))
    return 1 if broken else 0


def _bugs(seeds_max: int) -> int:
    """Every bug."""
    catches = hunt_all(seeds_max=seeds_max, tell=_tell)
    missed = [catch for catch in catches if catch.what is None]
    _say(f"{len(catches)} bugs, {len(missed)} not found")
    return 1 if missed else 0


def _tell(catch: Catch) -> None:
    found = "NOT FOUND" if catch.what is None else catch.what[:110]
    _say(f"{catch.seeds:5} {catch.bug}: {found}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())

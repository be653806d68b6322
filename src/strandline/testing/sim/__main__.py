"""``python -m strandline.testing.sim``: run histories from seeds, or look for seeded bugs.

    python -m strandline.testing.sim histories --seeds 200  # all simulations, seeds 0 to 199
    python -m strandline.testing.sim histories consensus --seeds 17:18  # one history again
    python -m strandline.testing.sim bugs --seconds 30  # is each seeded bug found?

Exit code 1 if a promise was broken, or a seeded bug was not found.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from strandline.testing.sim.bugs import Bug, planted
from strandline.testing.sim.consensus import Group
from strandline.testing.sim.consensus_bugs import CONSENSUS_BUGS
from strandline.testing.sim.world import World


def consensus(seed: int) -> World:
    """One history of the consensus group."""
    return Group(seed).run()


SIMULATIONS: Final[dict[str, tuple[Callable[[int], World], tuple[Bug, ...]]]] = {
    "consensus": (consensus, CONSENSUS_BUGS),
}
"""Name → one history from its seed, and the bugs it must find."""


def run_histories(name: str, seeds: range) -> bool:
    """Run a history for each seed and print what happened in all of them; whether all were good."""
    run, _ = SIMULATIONS[name]
    started_s, events, failures = time.perf_counter(), 0, 0
    counts: Counter[str] = Counter()
    for seed in seeds:
        try:
            world = run(seed)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the seed is what matters
            failures += 1
            print(f"{name}, seed {seed}: {type(error).__name__}: {error}", flush=True)
        else:
            events += world.events
            counts += world.counts
    took_s = time.perf_counter() - started_s
    told = ", ".join(f"{what} {number:,}" for what, number in sorted(counts.items()))
    print(
        f"{name}: {len(seeds)} histories, {failures} bad, {events:,} events, "
        f"{events / took_s * 60 / 1e6:.1f} M events/min; {told}"
    )
    return not failures


def find_bug(name: str, bug: Bug, *, seconds: float, seeds_max: int = 100_000) -> str | None:
    """Run histories with the bug until one fails.

    Returns:
        Which seed found it and how; None if none did in time.
    """
    run, _ = SIMULATIONS[name]
    started_s = time.perf_counter()
    with planted(bug):
        for seed in range(seeds_max):
            try:
                run(seed)
            except Exception as error:  # noqa: BLE001 -- crashing is being found, too
                return f"seed {seed}: {type(error).__name__}: {error}"
            if time.perf_counter() - started_s > seconds:
                break
    return None


def find_bugs(name: str, *, seconds: float) -> bool:
    """Look for each of a simulation's bugs, print which seed found it; whether all were found."""
    _, bugs = SIMULATIONS[name]
    missed = 0
    for bug in bugs:
        found = find_bug(name, bug, seconds=seconds)
        missed += found is None
        print(f"{name}: {bug.name}\n    {found or 'NOT FOUND'}", flush=True)
    print(f"{name}: {len(bugs) - missed} of {len(bugs)} seeded bugs found")
    return not missed


def parse_seeds(text: str) -> range:
    """``200`` is 0 to 199, ``17:18`` is 17."""
    first, colon, last = text.partition(":")
    return range(int(first), int(last)) if colon else range(int(text))


def main() -> int:
    """Run what the command line asks for; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("histories", "bugs"))
    parser.add_argument("simulation", nargs="*", help=f"of: {', '.join(SIMULATIONS)} (all)")
    parser.add_argument("--seeds", type=parse_seeds, default=range(200), help="N or FROM:TO (200)")
    parser.add_argument("--seconds", type=float, default=30.0, help="longest search for a bug (30)")
    arguments = parser.parse_args()
    names = arguments.simulation or list(SIMULATIONS)
    if unknown := set(names) - set(SIMULATIONS):
        parser.error(
            f"no simulation {', '.join(sorted(unknown))}; there are {', '.join(SIMULATIONS)}"
        )
    if arguments.what == "histories":
        outcomes = [run_histories(name, arguments.seeds) for name in names]
    else:
        outcomes = [find_bugs(name, seconds=arguments.seconds) for name in names]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())

"""``python -m simulation``: run histories from seeds, or search for seeded bugs.

    python -m simulation histories --seeds 200  # all simulations, seeds 0 to 199
    python -m simulation histories consensus --seeds 17:18  # one history again
    python -m simulation bugs --seconds 30  # is each seeded bug found?
    python -m simulation trace --seeds 17:18 > 17.log  # a replication history, for ShiViz

``--seeds FROM:TO`` excludes TO; a failure prints the command that repeats it. Exit code 1 if a
promise was broken, or a seeded bug was not found.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from simulation import consensus_aims, consumers, metadata, recovery, replication, transactions
from simulation.bugs import SeededBug
from simulation.consensus_bugs import CONSENSUS_BUGS
from simulation.consumers_bugs import CONSUMER_BUGS
from simulation.metadata_bugs import METADATA_BUGS
from simulation.recovery_bugs import RECOVERY_BUGS
from simulation.replication_bugs import REPLICATION_BUGS
from simulation.transactions_bugs import TRANSACTION_BUGS


class HistoryKind(Protocol):
    """The outcome of a simulated run that broke no promise."""

    @property
    def fingerprint(self) -> str:
        """Equal for equal histories."""
        ...

    @property
    def events(self) -> int:
        """The number of events."""
        ...

    @property
    def counts(self) -> Counter[str]:
        """The number of events of each kind."""
        ...


class Simulation(NamedTuple):
    """A simulator: the function that runs a seed's history, and its seeded bugs."""

    run: Callable[[int], HistoryKind]
    bugs: tuple[SeededBug, ...]


SIMULATIONS: Final = {
    "consensus": Simulation(consensus_aims.run, CONSENSUS_BUGS),
    "consumers": Simulation(consumers.run, CONSUMER_BUGS),
    "metadata": Simulation(metadata.run, METADATA_BUGS),
    "recovery": Simulation(recovery.run, RECOVERY_BUGS),
    "replication": Simulation(replication.run, REPLICATION_BUGS),
    "transactions": Simulation(transactions.run, TRANSACTION_BUGS),
}


def run_histories(name: str, seeds: range) -> bool:
    """Run a history for each seed; print failures and totals; return whether all passed."""
    run = SIMULATIONS[name].run
    started_s, events, failures = time.process_time(), 0, 0
    counts: Counter[str] = Counter()
    for seed in seeds:
        try:
            history = run(seed)
        except Exception as error:  # noqa: BLE001 -- any error fails the history
            failures += 1
            print(
                f"{name}, seed {seed}: {type(error).__name__}: {error}\n"
                f"    repeat it: python -m simulation histories {name} --seeds {seed}:{seed + 1}",
                flush=True,
            )
        else:
            events += history.events
            counts += history.counts
    took_s = time.process_time() - started_s  # CPU time, whatever else the machine does
    listed = ", ".join(f"{what} {number:,}" for what, number in sorted(counts.items()))
    print(
        f"{name}: {len(seeds)} histories, {failures} failed, {events:,} events, "
        f"{events / took_s * 60 / 1e6:.1f} M events/min on one core; {listed}"
    )
    return not failures


class FoundBug(NamedTuple):
    """A seeded bug's detection: histories run, histories that showed it, first violation."""

    histories: int
    seen: int
    how: str


def find_bug(name: str, bug: SeededBug, *, seconds: float, enough: int = 1) -> FoundBug:
    """Run histories with the bug until ``enough`` of them fail, or the time is over.

    A crash counts as a failure. The limit is CPU time, so that a busy machine changes nothing.
    """
    run = SIMULATIONS[name].run
    started_s, seed, seen, how = time.process_time(), 0, 0, ""
    with bug.planted():
        while seen < enough and time.process_time() - started_s < seconds:
            try:
                run(seed)
            except Exception as error:  # noqa: BLE001 -- see above
                seen += 1
                how = how or f"seed {seed}: {type(error).__name__}: {error}"
            seed += 1
    return FoundBug(seed, seen, how)


def find_bugs(name: str, *, seconds: float) -> bool:
    """Search for each bug of a simulator and print how many seeds show it; return whether all."""
    bugs, missed = SIMULATIONS[name].bugs, 0
    for bug in bugs:
        found = find_bug(name, bug, seconds=seconds, enough=5)
        missed += not found.seen
        what = f"{found.seen} of {found.histories} seeds" if found.seen else "NOT FOUND"
        print(f"{name}: {bug.name}: {what}\n    {found.how[:150]}", flush=True)
    print(f"{name}: {len(bugs) - missed} of {len(bugs)} seeded bugs found")
    return not missed


def trace(seed: int, events_max: int) -> list[str]:
    """Return the first events of a replication history, with vector clocks."""
    events: list[str] = []

    def write(event: str) -> None:
        if len(events) < events_max:
            events.append(event)

    replication.run(seed, write_trace=write)
    return events


def parse_seeds(text: str) -> range:
    """Parse seeds: ``200`` is 0 to 199, ``17:18`` is 17."""
    first, colon, last = text.partition(":")
    return range(int(first), int(last)) if colon else range(int(text))


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line's request; return the exit code.

    Args:
        words: the command line's words; None: those of this process.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("histories", "bugs", "trace"))
    parser.add_argument("simulation", nargs="*", help=f"of: {', '.join(SIMULATIONS)} (all)")
    parser.add_argument(
        "--seeds",
        type=parse_seeds,
        default=range(200),
        help="N (0 to N - 1) or FROM:TO (FROM to TO - 1) (200)",
    )
    parser.add_argument("--events", type=int, default=400, help="length of a trace (400)")
    parser.add_argument("--seconds", type=float, default=30.0, help="longest search for a bug (30)")
    arguments = parser.parse_intermixed_args(words)
    if arguments.what == "trace":
        for seed in arguments.seeds:
            for event in trace(seed, arguments.events):
                sys.stdout.write(event)
        return 0
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

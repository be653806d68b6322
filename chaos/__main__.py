"""``python -m chaos``: break real clusters for some minutes and write a report.

    python -m chaos --brokers 3,5 --minutes 2
    python -m chaos --seed 7 --faults kill-leader,mute

A seed repeats the sequence of faults, but not each process's timing. Exit code 1 if a promise was
broken or the cluster made no progress; the data of such a run is kept, and its directory printed.
The results of successful runs are written to the directory in ``--results``, as by ``make chaos``.
"""

import argparse
import asyncio
import datetime as dt
import logging
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final

from chaos.faults import FAULTS
from chaos.run import ChaosOutcome, ChaosPlan, run_chaos
from strandline.errors import StrandlineError
from strandline.testing.history import ViolationError

HEAD: Final = (
    "brokers",
    "seed",
    "seconds",
    "acked",
    "retries known",
    "rejected",
    "no answer",
    "by our producer",
    "stored",
    "read",
    "reads failed",
    "processed by the group",
    "members joined",
    "their errors",
    "transactions",
    "longest silence with a majority",
    "slowest client after a heal",
    "verdict",
)


def row(outcome: ChaosOutcome) -> list[str]:
    """Return a run's line of the table."""
    plan = outcome.plan
    counts = [outcome.acked, outcome.duplicates, outcome.rejected, outcome.unanswered]
    counts += [outcome.own, outcome.stored, outcome.read, outcome.read_errors.total()]
    cells = [str(plan.brokers), str(plan.seed), f"{outcome.seconds:.0f}"]
    cells += [f"{count:,}" for count in counts]
    cells.append(f"{outcome.processed:,}")
    cells += [
        str(outcome.stays),
        str(outcome.group_errors.total()),
        f"{outcome.committed:,}",
        f"{outcome.silence_s_max:.1f} s",
        f"{outcome.recovery_s_max:.1f} s",
    ]
    return [*cells, "all promises kept"]


def page(outcomes: list[ChaosOutcome]) -> str:
    """Return the results as Markdown."""
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    lines = [f"# Chaos, {today}", "", "[docs/chaos.md](../../docs/chaos.md) says what is broken."]
    lines += ["", "| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    lines += ["| " + " | ".join(row(outcome)) + " |" for outcome in outcomes]
    numbers = " | ".join(f"{outcome.plan.brokers} brokers" for outcome in outcomes)
    lines += ["", f"| fault | {numbers} |", "|" + "---|" * (len(outcomes) + 1)]
    for name in FAULTS:
        cells = [
            "skipped" if name in outcome.skipped else str(outcome.faults[name])
            for outcome in outcomes
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    reasons = {f"{name}: {why}" for each in outcomes for name, why in each.skipped.items()}
    lines += ["", *(f"Skipped: {reason}." for reason in sorted(reasons))]
    return "\n".join(lines).rstrip() + "\n"


def write(outcomes: list[ChaosOutcome], folder: Path, label: str) -> Path:
    """Write today's page of results; return its path."""
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ("-".join(filter(None, (today, "chaos", label))) + ".md")
    path.write_text(page(outcomes))
    return path


def run(plan: ChaosPlan) -> ChaosOutcome | None:
    """Run once, with progress output; None if it failed."""
    print(f"{plan.brokers} brokers, {plan.seconds:.0f} s, seed {plan.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="strandline-chaos-"))
    try:
        outcome = asyncio.run(run_chaos(plan, folder))
    except (ViolationError, TimeoutError, StrandlineError) as error:
        print(f"  BAD: {type(error).__name__}: {error}\n  its data: {folder}", flush=True)
        return None
    shutil.rmtree(folder)
    for name, why in outcome.skipped.items():
        print(f"  {name} skipped: {why}")
    shown = zip(HEAD[2:], row(outcome)[2:], strict=True)
    print("  " + ", ".join(f"{name} {value}" for name, value in shown))
    errors = (outcome.read_errors, outcome.group_errors, outcome.transaction_errors)
    for counted in filter(None, (outcome.faults, *errors)):
        print("  " + ", ".join(f"{name} {count}" for name, count in counted.most_common()))
    return outcome


def main() -> int:
    """Run the command line's request; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--brokers", default="3,5", help="cluster sizes, one run each (3,5)")
    add("--minutes", type=float, default=2.0, help="of faults in each run, or until all were (2)")
    add("--seed", type=int, help="of the first run; the next ones follow (random)")
    add("--faults", default=",".join(FAULTS), help=f"of: {', '.join(FAULTS)} (all)")
    add("--results", type=Path, help="where to write the dated page (nowhere)")
    add("--label", default="", help="goes into its name; else it replaces the day's (none)")
    arguments = parser.parse_args()
    faults = tuple(arguments.faults.split(","))
    if unknown := set(faults) - set(FAULTS):
        parser.error(f"no fault {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    logging.getLogger("strandline").setLevel(logging.ERROR)  # clients warn of every fault
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that brokers are stopped
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    outcomes = [
        run(ChaosPlan(int(count), arguments.minutes * 60, seed + number, faults))
        for number, count in enumerate(arguments.brokers.split(","))
    ]
    good = [outcome for outcome in outcomes if outcome is not None]
    if arguments.results is not None and len(good) == len(outcomes):
        print(f"written: {write(good, arguments.results, arguments.label)}")
    return 0 if len(good) == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())

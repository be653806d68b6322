"""Faults beside each other: acknowledged records lost, doubled or altered, of us and of each peer.

Run it from the root of the repository: `make versus-faults`. Each system is killed (`kill -9`), cut
from power (what was not synced is lost), finds one bit flipped in a data file, and has its disk
filled, under the same load of eight publishers. It is started again, everything is read back and
compared with the acks. A peer that is not here, or a fault that this machine cannot do, is a line
that says why.

Rules: what the peers do is printed, never asserted. Ours must be 0, or the exit code is 1; where
the only copy of a record was damaged, the loss must at least be reported.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks import machine, report
from benchmarks.faults.faults import FAULTS, FLIPS, ROUNDS, Outcome, run
from benchmarks.faults.load import CONNECTIONS
from benchmarks.faults.stores import STORES, Store
from benchmarks.loadgen.build import BUILD_DIR
from benchmarks.peers.process import fresh_dir

NAME: Final = "versus-faults"
OURS: Final = "strandline"
SYNC_BYTES: Final = 2048
INTRO: Final = f"""\
Eight publishers, each with one record of 200 to 2,000 bytes under way; what they were acknowledged
is compared with what is read back at the end. Where the system recognizes an id (`Nats-Msg-Id`, an
idempotent producer), a record without an answer is sent again. A cell has the acknowledged records
that were lost (not there), altered (other bytes), doubled (copies too many) or out of their
publisher's order, of how many. "Unreported" are lost ones of which no error told the reader.

- **kill -9**: the server, {ROUNDS} times under load.
- **power cut**: the server and all it started, {ROUNDS} times; a FUSE file system drops what was
  not synced. Any sync makes names durable, as on ext4. What was there before the load is synced
  first; what is written later only by the system itself, since a kernel waits 5 to 30 s with that.
- **power cut, harsh**: the same, but a name is durable only when its directory was synced, and
  each unsynced page is kept or dropped by chance: the least that POSIX promises.
- **flipped bit**: after a `kill -9`, one bit between the first and the last record of a file that
  holds records; {FLIPS} times on copies of the same directory, each judged alone, then added.
- **full disk**: the file system fills up under load; the server is killed, and starts with space.

One seed repeats records, places and moments, not the timing of processes. A system that does not
start or cannot be read counts as having lost everything; its own tools may save some of it."""
EPILOG: Final = """\
examples:
  python -m benchmarks.versus_faults
  python -m benchmarks.versus_faults --systems strandline,redis --faults 'kill -9;power cut'
"""


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.versus_faults",
        description=__doc__.splitlines()[0],
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [store.name for store in STORES]
    parser.add_argument("--systems", default=",".join(names), help=f"of {', '.join(names)}")
    parser.add_argument("--faults", help=f"of {'; '.join(FAULTS)}; separated by ';'")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10.0, help="begin nothing after so long")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--data-root", type=Path, default=BUILD_DIR / "data")
    return parser.parse_args()


def chosen(words: argparse.Namespace) -> tuple[list[type[Store]], list[str]]:
    """The systems and faults of this run."""
    systems = [store for store in STORES if store.name in words.systems.split(",")]
    faults = [each.strip() for each in (words.faults or ";".join(FAULTS)).split(";")]
    if unknown := [each for each in faults if each not in FAULTS]:
        raise SystemExit(f"unknown faults: {unknown}; there are {list(FAULTS)}")
    return systems, faults


def cell(outcome: Outcome) -> str:
    """What a table says of one system under one fault."""
    if outcome.unavailable:
        return "not run"
    verdict = outcome.verdict
    parts = [
        f"{count:,} {word}"
        for word, count in (
            ("lost", verdict.lost),
            ("altered", verdict.altered),
            ("doubled", verdict.doubled),
            ("out of order", verdict.disordered),
        )
        if count
    ]
    if verdict.unreported:
        parts[0] += f" ({verdict.unreported:,} unreported)"
    found = f"**{', '.join(parts)}**" if parts else "0"
    return f"{found} of {verdict.acked:,}"


def is_broken(outcome: Outcome) -> bool:
    """Whether this is ours and breaks what we promise."""
    if outcome.unavailable or not outcome.system.startswith(OURS):
        return False
    lost_only_copy = outcome.fault == "flipped bit" and outcome.system == OURS
    return not outcome.verdict.is_honest or (outcome.verdict.lost > 0 and not lost_only_copy)


def page(outcomes: list[Outcome], found: machine.Machine, seed: int) -> str:
    """The Markdown page."""
    by_place = {(each.system, each.fault): each for each in outcomes}
    faults = [fault for fault in FAULTS if any(each.fault == fault for each in outcomes)]
    systems = [store for store in STORES if any(each.system == store.name for each in outcomes)]
    rows, about = [], []
    for store in systems:
        mine = [by_place.get((store.name, fault)) for fault in faults]
        cells = [cell(each) if each else "not run" for each in mine]
        rows.append([store.label, store.ack.value[0], *cells])
        version = next((each.version for each in mine if each and each.version), "-")
        about.append([store.label, store.ack.value, store.settings, version])
    notes = [
        [each.system, each.fault, f"{each.seconds:.0f}", "; ".join(each.notes) or "-"]
        for each in outcomes
        if not each.unavailable
    ]
    skipped = [
        f"- {each.system}, {each.fault}: {each.unavailable}"
        for each in outcomes
        if each.unavailable
    ]
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    parts = [f"# Acknowledged records after faults, {today}", INTRO]
    parts += [report.machine_text(found), f"`make versus-faults`, seed {seed}."]
    parts += ["## What was lost, altered or doubled", report.table(["", "ack", *faults], rows)]
    head = ["system", "an ack survives", "settings", "version"]
    parts += ["## What is compared", report.table(head, about)]
    if skipped:
        parts += ["## Not run", "\n".join(skipped)]
    parts += ["## What was seen", report.table(["system", "fault", "seconds", "notes"], notes)]
    return "\n\n".join(parts) + "\n"


def write(outcomes: list[Outcome], words: argparse.Namespace, found: machine.Machine) -> Path:
    """Writes the dated page, and the same as JSON; returns the page's path."""
    words.results.mkdir(parents=True, exist_ok=True)
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    path: Path = words.results / f"{today}-{NAME}.md"
    path.write_text(page(outcomes, found, words.seed))
    values = {
        "name": NAME,
        "date": today,
        "seed": words.seed,
        "connections": CONNECTIONS,
        "machine": asdict(found),
        "outcomes": [asdict(each) for each in outcomes],
    }
    path.with_suffix(".json").write_text(json.dumps(values, indent=1) + "\n")
    return path


def run_all(words: argparse.Namespace, data_root: Path) -> list[Outcome]:
    """Does every fault to every system, one after the other, until time is up."""
    systems, faults = chosen(words)
    deadline = time.monotonic() + words.minutes * 60
    outcomes = []
    for number, (store, fault) in enumerate((s, f) for s in systems for f in faults):
        if reason := store.leaves_out(fault):
            outcome = Outcome(store.name, fault, unavailable=reason)
        elif time.monotonic() > deadline:
            outcome = Outcome(store.name, fault, unavailable="the time of this run was up")
        else:
            outcome = run(fault, store, data_root / str(number), words.seed)
        print(f"{store.label:40} {fault:17} {cell(outcome)}", flush=True)
        for note in (*outcome.notes, outcome.unavailable):
            if note:
                print(f"    {note}", flush=True)
        outcomes.append(outcome)
    return outcomes


def main() -> int:
    """Runs everything, writes the page, and says whether ours is 0."""
    words = parse()
    found = machine.describe(words.data_root, SYNC_BYTES)
    with fresh_dir(words.data_root, NAME) as folder:
        outcomes = run_all(words, folder)
    print(f"\n{write(outcomes, words, found)}")
    broken = [f"{each.system}, {each.fault}: {cell(each)}" for each in outcomes if is_broken(each)]
    if broken:
        print("Strandline broke a promise:", *broken, sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

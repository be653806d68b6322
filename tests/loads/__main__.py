"""Loads without Spark under kill -9, in rounds of a table each, until so many were killed.

    python -m tests.loads --kills 1000 --seed 7 --directory DIR --out benchmarks/results

A round that is done is in DIR, and the same command goes on after it. A failure ends the run, with
the command that repeats its round.
"""

import argparse
import random
import signal
import sys
import time
from pathlib import Path

import msgspec

from strandline.testing import ProcessServer

from .judge import RoundCounts
from .kill_round import KillRound
from .page import page

KILLS_A_ROUND = 16


class KillRun:
    """Rounds with one seed, as far as they are done.

    Args:
        directory: where it keeps them.
        seed: chosen if there is none yet, and it is None.
    """

    def __init__(self, directory, seed):
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._file = directory / "rounds.jsonl"
        self.rounds = []
        seeds = directory / "seed"
        if not seeds.exists():
            seeds.write_text(str(random.randrange(1 << 32) if seed is None else seed))
        self.seed = int(seeds.read_text())
        if seed not in (None, self.seed):
            sys.exit(f"{directory} has rounds of the seed {self.seed}: name another directory")
        if self._file.exists():
            lines = self._file.read_bytes().splitlines()
            self.rounds = [
                msgspec.convert(msgspec.json.decode(each), RoundCounts) for each in lines
            ]

    @property
    def kills(self):
        """How many processes were killed."""
        return sum(sum(each.kills.values()) for each in self.rounds)

    def run(self, numbers, *, kills, until_s):
        """Run rounds until there are so many kills, or the time is over.

        Args:
            numbers: of the rounds.
            kills: of all rounds.
            until_s: by the monotonic clock.
        """
        with ProcessServer(self._directory / "broker") as broker:
            for number in numbers:
                if self.kills >= kills or time.monotonic() >= until_s:
                    return
                size = min(KILLS_A_ROUND, kills - self.kills)
                place = self._directory / f"round-{number}"
                made = KillRound(number, seed=self.seed, kills=size, broker=broker, directory=place)
                found = made.run()
                self._add(found)
                if found.failure:
                    note(
                        f"FAILED: {found.failure}\nlogs and data are in {place}; once more with: "
                        f"python -m tests.loads --seed {self.seed} --round {number}"
                    )
                    return

    def _add(self, found):
        self.rounds.append(found)
        with self._file.open("ab") as file:
            file.write(msgspec.json.encode(found.as_dict()) + b"\n")
        note(
            f"round {found.number} ({found.kind}): {sum(found.kills.values())} kills, "
            f"{found.records} records, {found.lost} lost, {found.doubled} doubled, "
            f"{found.disagreeing} of {found.snapshots} snapshots disagree; "
            f"{self.kills} kills by now, {found.seconds:.0f} s"
        )


def note(text):
    """Print progress."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def arguments():
    """From the command line."""
    parser = argparse.ArgumentParser(prog="tests.loads", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000, help="in all, with those of before")
    parser.add_argument("--minutes", type=float, default=600, help="begin no round after")
    parser.add_argument("--seed", type=int, help="by default that of the directory, or any")
    parser.add_argument("--round", type=int, help="this one alone")
    parser.add_argument("--first", type=int, help="begin with this one, not after the last")
    parser.add_argument("--directory", type=Path, default=Path("build/kill-loads"))
    parser.add_argument("--out", type=Path, help="directory to whose results to write the page")
    return parser.parse_args()


def main():
    """Run; the exit code."""
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    until_s = time.monotonic() + given.minutes * 60
    if given.round is not None:
        run = KillRun(given.directory / f"again-{time.time_ns()}", given.seed)
        run.run([given.round], kills=given.kills, until_s=until_s)
    else:
        run = KillRun(given.directory, given.seed)
        note(f"seed {run.seed}, {run.kills} kills are done")
        begin = 1 + max((each.number for each in run.rounds), default=-1)
        begin = begin if given.first is None else given.first
        run.run(range(begin, 1 << 31), kills=given.kills, until_s=until_s)
    text = page(run.rounds, seed=run.seed)
    if given.out is not None:
        (given.out / f"{time.strftime('%Y-%m-%d')}-kill-loads.md").write_text(text)
    sys.stdout.write(text)
    return int(any(each.failure for each in run.rounds))


if __name__ == "__main__":
    sys.exit(main())

"""Pipelines under kill -9: all patterns at once, one kill in each run, then a check of the output.

    python tests/spark/crash --runs 10 --brokers 3 --seed 7 --out benchmarks/results

Each run appends records, lets the pipelines publish some batches, and kills something at a random
moment while records go on coming. After each run what is seen must be the beginning of what is
expected; at the end two drivers are started on the same checkpoints, and the output must be the
function of the input, each record. A violation ends it with what was seen, the seed, and the
directory.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

from brokers import Brokers, until
from feeding import Feeder
from judge import Judge
from story import KINDS, Story
from tally import Chunk, write_results
from victims import Victims, turns, victims_of

from strandline.errors import StrandlineError, UnavailableError
from strandline.spark.demo.standalone import Standalone
from strandline.testing.history import ViolationError

RECORDS = 200
BATCH_TIMEOUT_S = 900
END_TIMEOUT_S = 1500
ATTEMPTS = 5
AWAY_S = 3.0


class CrashRuns:
    """Runs of one story.

    Args:
        story: streams and pipelines.
        moments: random choices.
        chunk: what is counted.
        cluster: of Spark; None if the driver does everything.
    """

    def __init__(self, story, moments, *, chunk, cluster=None):
        self.story = story
        self.moments = moments
        self.chunk = chunk
        self.judge = Judge(story)
        self.victims = Victims(story, moments, cluster=cluster)
        self.job = None

    def run(self, victim):
        """Append, let the pipelines work, kill meanwhile, and check what is visible."""
        self._have_a_driver()
        self.story.append(RECORDS)
        for _ in range(self.moments.randint(1, len(self.story.kinds))):
            self.job.wait_for("batch", timeout_s=BATCH_TIMEOUT_S)
        with Feeder(self.story):
            time.sleep(self.moments.uniform(0, 1.5))
            busy = until(self.story.unread, "a pipeline has records before it")
            gone = self.victims.kill(victim, self.job)
            self.chunk.count(victim, busy)
            if gone is not None:
                time.sleep(self.moments.uniform(0, AWAY_S))
                self.story.brokers.bring_back(gone, self.story.client)
        self.look(is_end=False)

    def _have_a_driver(self):
        """Start a driver if there is none; earlier reports no longer count."""
        if self.job is None or not self.job.is_running:
            self.end_job()
            self.job = self.story.start("continuous")
            self.job.wait_for("started", timeout_s=END_TIMEOUT_S)
        self.job.latest("batch")

    def look(self, *, is_end):
        """Judge every output.

        Raises:
            ViolationError: something is wrong; all of it is in the chunk.
        """
        for kind in ("input", *self.story.kinds):
            self.chunk.verdicts[kind] = self.judge.judge(kind, is_end=is_end)
        wrong = {kind: v.first for kind, v in self.chunk.verdicts.items() if not v.is_clean}
        if wrong:
            raise ViolationError("; ".join(f"{kind}: {what}" for kind, what in wrong.items()))

    def finish(self, *, drivers):
        """Let pipelines read all there is: where they run, or in two drivers at once, and then in
        one what neither of them ended.
        """
        if drivers == 1:
            self._go_on()
        self.end_job()
        left = self._two_at_once() if drivers > 1 else set()
        for attempt in range(ATTEMPTS):
            if not left:
                break
            left = self._ended(
                self.story.start("available_now", name=f"alone{attempt}", kinds=sorted(left))
            )
        if left:
            raise ViolationError(f"{sorted(left)} did not come to their end in {ATTEMPTS} attempts")
        self.look(is_end=True)

    def _go_on(self):
        """Let the driver that runs, or a new one, work until nothing is missing."""
        self._have_a_driver()
        while True:
            self.look(is_end=False)
            if all(each.found == each.expected for each in self.chunk.verdicts.values()):
                return
            self.job.wait_for("batch", timeout_s=BATCH_TIMEOUT_S)

    def _two_at_once(self):
        """Return what neither of two drivers finished."""
        jobs = [self.story.start("available_now", name=f"last{n}") for n in range(2)]
        try:
            ends = [self._ended(job) for job in jobs]
        finally:
            for job in jobs:
                job.kill()
        for kind in self.story.kinds:
            self.chunk.fenced[kind] = sum(kind in left for left in ends)
        return set.intersection(*ends)

    def _ended(self, job):
        """Return the pipelines of a driver that did not finish."""
        try:
            errors = job.wait_for("end", timeout_s=END_TIMEOUT_S)["errors"]
        except UnavailableError as ended:
            errors = dict.fromkeys(self.story.kinds, str(ended))
        finally:
            job.kill()
        for kind, error in errors.items():
            note(f"{job.name}: {kind}: {error[:200]}")
        return set(errors)

    def end_job(self):
        """End the driver that runs."""
        if self.job is not None:
            self.job.kill()
            self.job = None


def crash(given, chunk, directory):
    """All runs of a chunk.

    Raises:
        ViolationError: an output is wrong.
    """
    moments = random.Random(given.seed)
    kinds = given.kinds.split(",")
    spark = Standalone(directory, workers=given.executors) if given.executors else nullcontext()
    with spark as cluster, Brokers(directory / "data", given.brokers) as brokers:
        master = cluster.url if cluster else "local[2,8]"
        story = Story(directory, kinds, brokers=brokers, master=master)
        runs = CrashRuns(story, moments, chunk=chunk, cluster=cluster)
        words = turns(given.victims, moments)
        try:
            for number in range(given.runs):
                victim = next(words)
                runs.run(victim)
                chunk.runs, chunk.records = number + 1, story.total
                note(f"run {number + 1}: {victim} killed, {story.total} records")
            runs.finish(drivers=given.drivers)
        except (StrandlineError, TimeoutError):
            note(brokers.last_words())
            raise
        finally:
            runs.end_job()
            story.close()
            chunk.restarted = restarts(directory / "job.log")


def restarts(log):
    """How often each pipeline failed and was started again, though its driver lived."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    failures = [line.removeprefix("FAILED ") for line in lines if line.startswith("FAILED ")]
    for failure in failures:
        note(f"restarted {failure[:300]}")
    return dict(Counter(failure.partition(":")[0] for failure in failures))


def note(text):
    """Print progress."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def arguments():
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kinds", default=",".join(KINDS), help="which pipelines, with commas")
    parser.add_argument("--victims", type=lambda text: text.split(","), help="instead of all")
    parser.add_argument(
        "--executors", type=int, default=2, help="of a Spark cluster; 0: the driver does it all"
    )
    parser.add_argument(
        "--drivers", type=int, choices=(1, 2), default=2, help="on one checkpoint at the end"
    )
    parser.add_argument("--out", type=Path, help="directory to whose dated results to add this")
    given = parser.parse_args()
    given.victims = given.victims or victims_of(brokers=given.brokers, executors=given.executors)
    given.seed = random.randrange(1 << 32) if given.seed is None else given.seed
    return given


def main():
    """Run; the exit code."""
    given = arguments()
    # Whoever ends us wants our processes ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    note(f"seed {given.seed}")
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
    chunk = Chunk(
        brokers=given.brokers,
        executors=given.executors,
        seed=given.seed,
        kinds=given.kinds,
        victims=",".join(given.victims),
        drivers=given.drivers,
        load=os.getloadavg()[0],
    )
    directory = Path(tempfile.mkdtemp(prefix="strandline-crash-"))
    began = time.monotonic()
    try:
        crash(given, chunk, directory)
    except Exception as error:
        chunk.failure = f"{type(error).__name__}: {str(error)[:1000]}"
        note(f"FAILED with seed {given.seed}; logs and data are in {directory}")
        raise
    else:
        chunk.failure = ""
        shutil.rmtree(directory)
    finally:
        chunk.seconds = round(time.monotonic() - began)
        sys.stdout.write(write_results(chunk, given.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""One round: a new table, loaded while its load, the broker and the store's answers are broken.

Rules: everything that is chosen comes from the seed and the round's number. After each kill of a
load nobody writes, and the table is judged; a reader judges it at other moments.
"""

import contextlib
import os
import random
import shutil
import signal
import threading
import time

import pyarrow as pa

import strandline
from strandline.errors import DataLossError, StrandlineError, UnknownStreamError
from strandline.spark.connection import forget_client
from strandline.testing.history import ViolationError
from tests.kit.object_stores import ObjectStore

from .judge import LogModel, RoundCounts, TableJudge
from .kinds import KINDS, MERGED_FILES_MAX, SNAPSHOT_AGES_MS
from .life import LoadLife

VICTIMS = {"load": 80, "load early": 12, "broker": 4, "broker and load": 2, "paused": 6}
STORE_FAULTS = {"lose": 0.01, "late": 0.01, "twice": 0.02, "never": 0.001, "refuse": 0.01}
_ATTEMPTS = 20
_BATCH_S = 60
_END_S = 240
_AHEAD_MAX = 120
"""Records that are published before they are loaded, so that a round ends soon."""


class KillRound:
    """A round of kills on one load.

    Args:
        number: of the round, which chooses the load.
        kind: instead of that.
        seed: of all rounds.
        kills: how many.
        broker: the running broker.
        directory: of the round; removed unless something is wrong.
    """

    def __init__(self, number, *, seed, kills, broker, directory, kind=None):
        self._kind = kind or KINDS[number % len(KINDS)]
        self._moments = random.Random(f"{seed}/{number}")
        self._label = f"{number}"
        self._kills = kills
        self._broker = broker
        self._directory = directory
        self.counts = RoundCounts(self._kind.name, number)
        self._stop = threading.Event()
        self._failures = []
        self._life = None

    def run(self):
        """Run it; what is wrong is in its counts."""
        began_s = time.monotonic()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        with contextlib.ExitStack() as stack:
            s3 = stack.enter_context(ObjectStore()) if self._kind.in_store else None
            if s3:
                os.environ.update(s3.environment())
                for kind, chance in STORE_FAULTS.items():
                    s3.fail(kind, chance=chance)
            client = stack.enter_context(strandline.connect(self._broker.flight))
            try:
                self._run(client, s3)
            except Exception as error:  # noqa: BLE001 - it is the result, with its reason
                self._failures.append(error)
            finally:
                self._stop.set()
                if self._life is not None:
                    self._life.kill()
                forget_client(self._broker.flight)
        self.counts.seconds = round(time.monotonic() - began_s, 1)
        if self._failures:
            error = self._failures[0]
            self.counts.failure = f"{type(error).__name__}: {str(error)[:1000]}"
        else:
            shutil.rmtree(self._directory)
        return self.counts

    def _run(self, client, s3):
        streams = self._kind.streams(self._label)
        for name in [*streams, f"bad-{self._label}"]:
            with contextlib.suppress(UnknownStreamError):  # unless the round was interrupted
                client.delete_stream(name)
            client.create_stream(name, partitions=2 if name in streams else 1)
        self._config = self._kind.config(
            self._directory,
            label=self._label,
            server=self._broker.flight,
            s3=s3,
            age_ms=self._moments.choice(SNAPSHOT_AGES_MS),
        )
        log = LogModel(client, streams)
        self._judge = TableJudge(self._kind, self._config, log, self.counts)
        work = [lambda: self._feed(log), self._read]
        threads = [threading.Thread(target=self._watched, args=[each]) for each in work]
        for thread in threads:
            thread.start()
        try:
            for _ in range(self._kills):
                self._kill(self._choose())
                if self._failures:
                    return
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        if s3:
            for fault in s3.heal():
                kind = fault.split()[0]
                self.counts.store_faults[kind] = self.counts.store_faults.get(kind, 0) + 1
        if self._life is not None:
            self._end(self._life)
        for place in log.records:  # so that there is a last commit, which may merge
            self._append(client, log, place, [self._kind.record(-1, random.Random(1), place[1])])
        self._finish()
        for name in [*streams, f"bad-{self._label}"]:
            client.delete_stream(name)

    def _choose(self):
        return self._moments.choices(list(VICTIMS), list(VICTIMS.values()))[0]

    def _watched(self, work):
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised by the round
            self._failures.append(error)

    # What is killed

    def _kill(self, victim):
        """Kill something at a random moment, and judge the table."""
        life = self._alive()
        if victim == "load early":
            time.sleep(self._moments.random() * 0.4)
        else:
            life.wait("batch", life.counts["batch"] + self._moments.randint(1, 2), seconds=_BATCH_S)
            time.sleep(self._moments.random() * 0.25)
        if victim.startswith("broker"):
            self._broker.kill()
            self._count("broker")
        if victim == "paused":
            self._overtake(life)
        elif victim != "broker":
            self._end(life)
        if victim.startswith("broker"):
            time.sleep(self._moments.random())
            self._broker.start()
        if self._life is None:
            self._check()

    def _overtake(self, life):
        """Let another life of the load commit while one is stopped, and both go on."""
        life.signal(signal.SIGSTOP)
        other = self._begun()
        try:
            other.wait("batch", self._moments.randint(1, 3), seconds=5)
            life.signal(signal.SIGCONT)
            time.sleep(self._moments.random() * 0.3)
        finally:
            self._life = other
            self._end(life)
            self._end(other)

    def _alive(self):
        """Return the life that runs, or a new one."""
        if self._life is not None and not self._life.is_running:
            self._end(self._life)
        if self._life is None:
            self._life = self._begun()
        return self._life

    def _begun(self, trigger="continuous", **changes):
        config = self._config | {"trigger": trigger} | changes
        return LoadLife(config, self._directory / "load.log")

    def _end(self, life):
        if life.kill():
            self._count("load")
        self.counts.merged += life.counts["merged"]
        self.counts.expired += life.counts["expired"]
        self._life = None
        if life.error is not None:
            self._judge_error(life.error)

    def _judge_error(self, error):
        """Count an end by itself: what passes, or a commit that another one came before."""
        _, retriable, message = error
        is_race = "committed already" in message or "another" in message
        if not (retriable or is_race):
            raise ViolationError(f"the load ended: {error}")
        self.counts.refused += 1

    def _count(self, victim):
        self.counts.kills[victim] = self.counts.kills.get(victim, 0) + 1

    def _check(self):
        """Judge the table while nobody writes to it."""
        for attempt in range(_ATTEMPTS):
            try:
                self._judge.snapshot()
            except (StrandlineError, OSError) as error:
                if not self._may_pass(error) or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def _may_pass(self, error):
        """Return whether a reader may meet this error, and has to begin anew."""
        if isinstance(error, StrandlineError):
            return error.retriable
        return self._kind.in_store  # in the words of the libraries that read there

    def _finish(self):
        """Load what is left, without faults, and judge it all."""
        for _ in range(_ATTEMPTS):
            last = self._begun("available_now", batch_bytes_max=1 << 20)
            last.wait(seconds=_END_S)
            is_late = last.kill()
            self.counts.merged += last.counts["merged"]
            self.counts.expired += last.counts["expired"]
            if is_late:
                raise ViolationError(f"the load did not end in {_END_S} s")
            if last.error is None:
                break
            self._judge_error(last.error)
        files = self._judge.end()
        if files > MERGED_FILES_MAX:
            raise ViolationError(f"{files} files for each partition are left")
        if self.counts.lost or self.counts.doubled:
            raise ViolationError("records were lost or doubled")

    # What goes on meanwhile

    def _feed(self, log):
        """Append records to random partitions until the end of the round."""
        moments, number = random.Random(self._moments.random()), 0
        with strandline.connect(self._broker.flight) as client:
            while not self._stop.wait(moments.random() * 0.08):
                if sum(log.acked.values()) > sum(self._judge.committed.values()) + _AHEAD_MAX:
                    continue
                place = moments.choice(list(log.records))
                count = moments.randint(1, 12)
                pairs = [self._kind.record(number + n, moments, place[1]) for n in range(count)]
                number += count
                with contextlib.suppress(StrandlineError):  # unknown: the log says whether
                    self._append(client, log, place, pairs)

    def _append(self, client, log, place, pairs):
        keys, values = zip(*pairs, strict=True)
        columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        ack = client.append_batch(place[0], pa.table(columns), partition=place[1])
        [(_, first, count)] = ack.ranges
        log.values.update({(place, first + n): values[n] for n in range(count)})
        log.acked[place] = max(log.acked[place], first + count)

    def _read(self):
        """Judge the table and its union with the log at random moments."""
        moments = random.Random(self._moments.random())
        age_s = self._config["snapshot_age_ms"] / 1000
        while not self._stop.wait(moments.random()):
            is_union = not self._kind.is_upsert and moments.random() < 0.5
            began_s = time.monotonic()
            try:
                self._judge.union() if is_union else self._judge.snapshot()
            except DataLossError:
                # The files of a version that was replaced before it was read.
                if time.monotonic() - began_s < age_s:
                    raise
            except (StrandlineError, OSError) as error:
                if not self._may_pass(error):
                    raise

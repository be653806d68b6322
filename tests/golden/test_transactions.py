"""Golden scripts of transactions: requests to the coordinator, and their effects.

A line that begins with ``>`` is a command, the lines after it are what came of it, ``#`` explains.
``GOLDEN_UPDATE=1`` writes what comes now into the scripts: read the difference before a commit.

Commands: ``begin ID [after=P.E] [batch=TX/N] [nonce=N] [timeout=MS]`` · ``add ID place ...`` ·
``prepare|commit|abort ID [as=P.E]`` ·
``commit_staged|abort_staged ID P.E`` · ``publish TX N fingerprint [part ...]`` ·
``store [n]``: what was to be stored is · ``mark [place]``: partitions store the markers given ·
``lose [place]``: they do not · ``time MS`` · ``last TX`` · ``write P.E place``: a record arrives ·
``crash``: a new coordinator begins from what is stored · ``status``. ``P.E`` is producer id and
epoch.
"""

from pathlib import Path

import pytest

from strandline.core.coordinator_effects import Answer, EntriesStored, Forget, Reject, Store, Tick
from strandline.core.transactions import effects as fx
from strandline.core.transactions import events as ev
from strandline.core.transactions.coordinator import Coordinator
from strandline.core.transactions.effects import MarkerKind
from strandline.core.transactions.index import TransactionIndex
from strandline.core.transactions.state import (
    BatchOfProducer,
    CoordinatorState,
    TransactionalProducer,
    TransactionPartition,
)

SCRIPTS = sorted((Path(__file__).parent / "transactions").glob("*.txt"))


def producer(text):
    producer_id, epoch = text.split(".")
    return TransactionalProducer(int(producer_id), int(epoch))


def place(text):
    stream, number = text.split("/")
    return TransactionPartition(stream, int(number), int(number) + 1)


def batch(text):
    name, number = text.split("/")
    return BatchOfProducer(name, int(number))


class Partition:
    """A partition of the script: an offset and a transaction index."""

    def __init__(self):
        self.index = TransactionIndex(0)
        self.end = 0

    def mark(self, mark):
        if mark.kind is MarkerKind.BEGIN:
            if not self.index.may_begin(mark.producer):
                return
        elif self.index.has_ended(mark.producer):
            return
        self.index.note(mark.kind, mark.producer, self.end)
        self.end += 1

    def write(self, who):
        if not self.index.is_open(who):
            return "refused"
        self.end += 1
        return f"at {self.end - 1}"

    def status(self):
        stable = self.index.last_stable_offset(self.end)
        return f"end={self.end} stable={stable} aborted={self.index.aborted_count}"


class Story:
    """One coordinator and its partitions."""

    def __init__(self):
        self.now_ms = 0
        self.entries = []
        self.unstored = []
        self.marks = []
        self.partitions = {}
        self.producers = {}
        self.fresh = 0
        self.coordinator = Coordinator(CoordinatorState(), now_ms=0)

    def run(self, line):
        name, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        return getattr(self, name)(*plain, **{f"{key}_": v for key, v in options.items()})

    def step(self, event):
        return self.told(self.coordinator.step(event, self.now_ms))

    def told(self, effects):
        lines = []
        for effect in effects:
            match effect:
                case Store():
                    self.unstored.append(effect)
                    continue
                case fx.SendMarker():
                    self.marks.append(effect)
                    who = f"{effect.kind.value} {effect.producer}"
                    lines.append(f"marker for {effect.place}: {who}")
                case Answer(token, fx.Begun() as begun):
                    if not begun.is_published:
                        self.producers[token.split()[1]] = begun.producer
                    what = "nothing to stage" if begun.is_published else f"as {begun.producer}"
                    lines.append(f"{token}: {what}")
                case Answer(token, fx.Published(publication, is_repeat)):
                    how = "was published" if is_repeat else "published"
                    lines.append(f"{token}: {how}, fingerprint {publication.fingerprint}")
                case Answer(token, value):
                    lines.append(f"{token}: " + ("done" if value is None else str(value)))
                case Reject(token, error):
                    lines.append(f"{token}: {error.code}")
                case fx.TimedOut(name):
                    lines.append(f"{name} timed out")
                case Forget(before):
                    lines.append(f"entries before {before} may go")
        return lines

    def begin(self, id_, after_=None, batch_=None, nonce_=None, timeout_="1000"):
        self.fresh += 1
        return self.step(
            ev.Begin(
                f"begin {id_}",
                id_,
                None if after_ is None else producer(after_),
                nonce_ or f"nonce {self.fresh}",
                int(timeout_),
                self.fresh,
                None if batch_ is None else batch(batch_),
            )
        )

    def _who(self, id_, as_):
        return producer(as_) if as_ else self.producers[id_]

    def add(self, id_, *names, as_=None):
        who = self._who(id_, as_)
        return self.step(
            ev.AddTransactionPartitions(f"add {id_}", id_, who, [place(name) for name in names])
        )

    def prepare(self, id_, as_=None):
        return self.step(ev.Prepare(f"prepare {id_}", id_, self._who(id_, as_)))

    def commit(self, id_, as_=None):
        return self.step(ev.End(f"commit {id_}", id_, self._who(id_, as_), is_commit=True))

    def abort(self, id_, as_=None):
        return self.step(ev.End(f"abort {id_}", id_, self._who(id_, as_), is_commit=False))

    def commit_staged(self, id_, who):
        token = f"commit_staged {id_}"
        return self.step(ev.EndStaged(token, id_, producer(who), is_commit=True))

    def abort_staged(self, id_, who):
        token = f"abort_staged {id_}"
        return self.step(ev.EndStaged(token, id_, producer(who), is_commit=False))

    def publish(self, name, number, fingerprint, *parts):
        token = f"publish {name}/{number}"
        return self.step(ev.Publish(token, BatchOfProducer(name, int(number)), parts, fingerprint))

    def last(self, name):
        return self.step(
            ev.QueryTransactions(f"last {name}", lambda state: state.publications[name].batch)
        )

    def store(self, count=None):
        count = len(self.unstored) if count is None else int(count)
        stored, self.unstored = self.unstored[:count], self.unstored[count:]
        self.entries += [each.entry for each in stored]
        return self.step(EntriesStored(stored[-1].sequence)) if stored else []

    def _given(self, where):
        taken = [m for m in self.marks if where is None or str(m.place) == where]
        self.marks = [m for m in self.marks if m not in taken]
        return taken

    def mark(self, where=None):
        lines = []
        for given in self._given(where):
            self.partitions.setdefault(str(given.place), Partition()).mark(given)
            is_begin = given.kind is MarkerKind.BEGIN
            lines += self.step(ev.Marked(given.id, given.producer, given.place, is_begin))
        return lines

    def lose(self, where=None):
        lines = []
        for given in self._given(where):
            is_begin = given.kind is MarkerKind.BEGIN
            lines += self.step(ev.NotMarked(given.id, given.producer, given.place, is_begin))
        return lines

    def time(self, ms):
        self.now_ms += int(ms)
        return self.step(Tick())

    def crash(self):
        self.unstored, self.marks = [], []
        state = CoordinatorState()
        for entry in self.entries:
            state.apply(entry)
        self.coordinator = Coordinator(state, now_ms=self.now_ms, sequence=len(self.entries))
        return self.told(self.coordinator.resume())

    def write(self, who, where):
        return [self.partitions.setdefault(where, Partition()).write(producer(who))]

    def status(self):
        state = self.coordinator.state
        lines = [
            f"{each.id}: {each.status.value} as {each.producer}"
            for each in sorted(state.transactions.values(), key=lambda each: each.id)
        ]
        return lines + [f"{name}: {p.status()}" for name, p in sorted(self.partitions.items())]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_stories_of_transactions_go_as_they_are_told(path, golden):
    """Each script's commands have exactly the effects it lists."""
    golden.judge(path, Story().run)

"""Producer state against a model that keeps and searches the whole log.

Batches are next, repeated, early, torn or of other epochs, in any order; the log is cut now and
then, as by a full disk or a change of leaders, and now and then known from its batches alone.
"""

from hypothesis import given
from hypothesis import strategies as st

from strandline.broker.write_path.producer_state import ProducerStates
from strandline.errors import OutOfOrderSequenceError, ProducerFencedError
from strandline.types import ProducerStamp

stamps = st.builds(ProducerStamp, st.integers(1, 3), st.integers(0, 2), st.integers(0, 9))
batches = st.tuples(st.just("batch"), stamps, st.integers(1, 3))
repeats = st.tuples(st.just("again"), st.integers(0, 30), st.just(0))
cuts = st.tuples(st.just("cut"), st.integers(0, 30), st.just(0))
following = st.tuples(st.just("next"), st.integers(1, 3), st.integers(1, 3))
reloads = st.tuples(st.just("reload"), st.just(0), st.just(0))
steps = st.lists(st.one_of(following, following, following, batches, repeats, cuts, reloads))


class Model:
    """(stamp, records, offset) of every batch in the log."""

    def __init__(self):
        self.log = []

    @property
    def end(self):
        return self.log[-1][2] + self.log[-1][1] if self.log else 0

    def of(self, producer_id):
        return [each for each in self.log if each[0].producer_id == producer_id]

    def verdict(self, stamp, records):
        """Return the required answer: "next", an offset, or the error's class."""
        stored = self.of(stamp.producer_id)
        if not stored:
            return "next" if stamp.sequence == 0 else OutOfOrderSequenceError
        newest, count, _ = stored[-1]
        if stamp.epoch < newest.epoch:
            return ProducerFencedError
        if stamp.epoch > newest.epoch:
            return "next" if stamp.sequence == 0 else OutOfOrderSequenceError
        if stamp.sequence == newest.sequence + count:
            return "next"
        return self._place(stored, stamp, records) or OutOfOrderSequenceError

    def _place(self, stored, stamp, records):
        """The offset of records that lie together in the log, as text: 0 must not be false."""
        places = {
            known.sequence + index: offset + index
            for known, count, offset in stored
            if known.epoch == stamp.epoch
            for index in range(count)
        }
        wanted = [places.get(stamp.sequence + index) for index in range(records)]
        first = wanted[0]
        is_run = first is not None and wanted == list(range(first, first + records))
        return str(first) if is_run else None

    def following(self, producer_id):
        stored = self.of(producer_id)
        if not stored:
            return ProducerStamp(producer_id, 0, 0)
        newest, count, _ = stored[-1]
        return newest._replace(sequence=newest.sequence + count)

    def cut(self, offset):
        """Truncate at the last batch that begins at or before ``offset``, as logs are."""
        starts = [start for _, _, start in self.log if start <= offset]
        end = starts[-1] if starts else 0
        self.log = [each for each in self.log if each[2] < end]
        return end


def answer(producers, stamp, records):
    try:
        known = producers.check(stamp, records)
    except (OutOfOrderSequenceError, ProducerFencedError) as error:
        return type(error)
    return "next" if known is None else str(known)


def noted(log, **limits):
    producers = ProducerStates(**limits)
    for stamp, records, offset in log:
        producers.note(stamp, records, offset=offset, now_ns=0)
    return producers


def play(steps, check, **limits):
    """Let both see the same; ``check`` compares each answer."""
    model, producers = Model(), ProducerStates(**limits)
    for kind, what, records in steps:
        if kind == "cut":
            if not producers.forget_from(model.cut(what)):
                producers = noted(model.log, **limits)
            continue
        if kind == "reload":
            producers = noted(model.log, **limits)
            continue
        stamp, count = what, records
        if kind == "next":
            stamp = model.following(what)
        elif kind == "again":
            if not model.log:
                continue
            stamp, count, _ = model.log[what % len(model.log)]
        found, wanted = answer(producers, stamp, count), model.verdict(stamp, count)
        check(found, wanted)
        if found == "next":
            offset = model.end
            producers.note(stamp, count, offset=offset, now_ns=0)
            model.log.append((stamp, count, offset))


@given(steps)
def test_answers_are_those_of_the_whole_log(steps):
    """New, known at its offset, out of order or fenced: as if everything was remembered."""

    def check(found, wanted):
        assert found == wanted

    play(steps, check)


@given(steps, st.integers(1, 3))
def test_forgetting_costs_a_rejection_and_never_a_second_copy(steps, ranges_max):
    """With little room a repeat may be rejected, but is never stored twice."""

    def check(found, wanted):
        is_forgotten = found is OutOfOrderSequenceError and isinstance(wanted, str)
        assert found == wanted or (is_forgotten and wanted != "next")

    play(steps, check, ranges_max=ranges_max)

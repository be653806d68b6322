"""The coordinator beyond the golden scripts: limits, forgetting, and its entries."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.coordinator_effects import EntriesStored, Reject, Store
from strandline.core.transactions import coordinator as coordinator_module
from strandline.core.transactions import events as ev
from strandline.core.transactions import state as state_module
from strandline.core.transactions.coordinator import Coordinator
from strandline.core.transactions.state import (
    EPOCH_MAX,
    CoordinatorState,
    Publication,
    TransactionalProducer,
    TransactionEntry,
    TransactionPartition,
    TransactionState,
    TransactionStatus,
    decode_entry,
    encode_entry,
)
from strandline.errors import InvalidRecordError, ProducerFencedError, UnavailableError
from strandline.security.producer_ids import owner_of, producer_id_of


class Run:
    """A coordinator whose entries are stored at once."""

    def __init__(self, state=None):
        self.coordinator = Coordinator(state or CoordinatorState(), now_ms=0)
        self.entries = []
        self.fresh = 0

    def step(self, event, now_ms=0):
        given, effects = [], self.coordinator.step(event, now_ms)
        while effects:
            stored = [each for each in effects if isinstance(each, Store)]
            given += [each for each in effects if not isinstance(each, Store)]
            self.entries += [each.entry for each in stored]
            effects = []
            if stored:
                effects = self.coordinator.step(EntriesStored(stored[-1].sequence), now_ms)
        return given

    def begin(self, id_, after=None, **options):
        self.fresh += 1
        request = ev.Begin(id_, id_, after, f"nonce {self.fresh}", 1000, self.fresh, **options)
        [answer] = self.step(request)
        if isinstance(answer, Reject):
            raise answer.error
        return answer.value.producer

    def end(self, id_, who, *, is_commit=True):
        return self.step(ev.End(id_, id_, who, is_commit=is_commit))


def test_another_principal_gets_another_producer():
    """The one before is fenced off, and its epochs are not the next one's to use."""
    run = Run()
    first = run.begin("pay")
    run.fresh = producer_id_of(7, 1)
    second = run.begin("pay")
    assert (owner_of(second.producer_id), second.epoch) == (1, 0)
    third = run.begin("pay")
    assert third == TransactionalProducer(second.producer_id, 1)
    [refused] = run.end("pay", first)
    assert isinstance(refused.error, ProducerFencedError)


def test_a_nonce_of_somebody_else_repeats_nothing():
    """Another principal with the same nonce begins a transaction of its own."""
    run = Run()
    mine = run.begin("pay")
    [answer] = run.step(ev.Begin("t", "pay", None, "nonce 1", 1000, producer_id_of(2, 1)))
    assert answer.value.producer != mine


def test_an_id_continues_under_another_producer_when_epochs_are_used_up():
    """An epoch is never used twice."""
    state = CoordinatorState()
    last = TransactionalProducer(5, EPOCH_MAX)
    state.apply(
        TransactionEntry(
            transactions=(
                TransactionState(
                    id="x",
                    producer=last,
                    status=TransactionStatus.COMMITTED,
                    timeout_ms=1,
                    nonce="n",
                ),
            )
        )
    )
    run = Run(state)
    assert run.begin("x", after=last) == TransactionalProducer(1, 0)
    with pytest.raises(ProducerFencedError):
        run.begin("x", after=last)


def test_open_transactions_are_limited(monkeypatch):
    """One more is rejected with a temporary error."""
    monkeypatch.setattr(coordinator_module, "OPEN_MAX", 2)
    run = Run()
    first = run.begin("a")
    run.begin("b")
    with pytest.raises(UnavailableError):
        run.begin("c")
    run.end("a", first)
    assert run.begin("c").epoch == 0


def test_ids_that_ended_longest_ago_are_forgotten(monkeypatch):
    """A producer that returns under such an id is fenced, and may begin again."""
    monkeypatch.setattr(state_module, "IDS_MAX", 3)
    run = Run()
    producers = {}
    for id_ in "abcde":
        producers[id_] = run.begin(id_)
        run.end(id_, producers[id_])
    assert len(run.coordinator.state.transactions) <= 4
    with pytest.raises(ProducerFencedError):
        run.begin("a", after=producers["a"])
    assert run.begin("a") not in producers.values()


def test_of_several_that_wait_for_an_end_the_last_begins():
    """The others were taken over before they began."""
    run = Run()
    who = run.begin("x")
    place = TransactionPartition("s", 0, 1)
    run.step(ev.AddTransactionPartitions("add", "x", who, [place]))
    run.end("x", who)
    assert run.step(ev.Begin("one", "x", None, "nonce one", 1000, 8)) == []
    [refused] = run.step(ev.Begin("two", "x", None, "nonce two", 1000, 9))
    assert (refused.token, refused.error.code) == ("one", "producer_fenced")
    answers = run.step(ev.Marked("x", who, place, is_begin=False))
    assert [each.token for each in answers] == ["x", "two"]


def test_the_state_rewritten_is_the_same_state():
    """Entries of a few items each hold everything."""
    run = Run()
    for number in range(7):
        who = run.begin(f"id {number}")
        run.step(
            ev.AddTransactionPartitions(
                "a", f"id {number}", who, [TransactionPartition("s", number, number + 1)]
            )
        )
        run.step(ev.End("e", f"id {number}", who, True))
    run.step(ev.Publish("p", state_module.BatchOfProducer("job", 3), [], "f"))
    state, again = run.coordinator.state, CoordinatorState()
    for entry in state.entries(2):
        again.apply(decode_entry(encode_entry(entry)))
    assert again.as_plain() == state.as_plain()
    replayed = CoordinatorState()
    for entry in run.entries:
        replayed.apply(decode_entry(encode_entry(entry)))
    assert replayed.as_plain() == state.as_plain()


def test_an_entry_survives_its_encoding():
    """With every part of it."""
    entry = TransactionEntry(
        publications=(Publication(transaction_id="t", batch=1, fingerprint="f"),),
        forgotten=("x",),
    )
    assert decode_entry(encode_entry(entry)) == entry


@given(data=st.binary(max_size=200))
def test_bytes_that_are_no_entry_are_an_error_of_their_own(data):
    """Whatever bytes: an entry, or the one error."""
    try:
        entry = decode_entry(data)
    except InvalidRecordError:
        return
    assert msgspec.json.decode(encode_entry(entry)) is not None

"""A slice of `make versus-faults`: each fault once, done to Strandline alone.

Faults that need FUSE or the right to mount are skipped where there is none.
"""

import pytest

from benchmarks import versus_faults
from benchmarks.faults import faults
from benchmarks.faults.records import Ledger, Payloads, Verdict
from benchmarks.faults.stores import StrandlineStore


@pytest.mark.slow
@pytest.mark.parametrize("fault", faults.FAULTS)
def test_no_acknowledged_record_is_lost_doubled_or_altered(tmp_path, monkeypatch, fault):
    """Of a flipped bit the only copy may be the victim: then the loss is reported."""
    monkeypatch.setattr(faults, "ROUNDS", 1)
    monkeypatch.setattr(faults, "FLIPS", 1)
    monkeypatch.setattr(faults, "FULL_S", 2.0)
    outcome = faults.run(fault, StrandlineStore, tmp_path / "run", seed=1)
    if outcome.unavailable:
        pytest.skip(outcome.unavailable)
    assert outcome.verdict.acked >= 8 * faults.PROGRESS
    assert not versus_faults.is_broken(outcome), outcome
    assert not any("stood still" in note for note in outcome.notes), outcome
    if fault == "full disk":
        assert "no space left" in str(outcome.notes)


@pytest.fixture
def ledger():
    """Two connections that got acks for three records each."""
    return Ledger(Payloads(1), {0: [0, 1, 2], 1: [0, 1, 3]})


def stored(ledger, *keys):
    """The records with these connections and numbers."""
    return [ledger.payloads.value(*key) for key in keys]


ALL = ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (1, 3))


def test_a_complete_log_is_clean(ledger):
    """A record without an ack may be there, and may be missing."""
    clean = Verdict(acked=6)
    assert ledger.judge(stored(ledger, *ALL)) == clean
    assert ledger.judge(stored(ledger, *(key for key in ALL if key != (1, 2)))) == clean


def test_each_kind_of_breach_is_counted(ledger):
    """Missing, repeated, changed and swapped records are told apart."""
    assert ledger.judge(stored(ledger, *ALL[:-1])) == Verdict(acked=6, lost=1)
    assert ledger.judge(stored(ledger, *ALL, (0, 0))) == Verdict(acked=6, doubled=1)
    swapped = ((0, 1), (0, 0), *ALL[4:], (1, 0), (1, 1))
    assert ledger.judge(stored(ledger, *swapped)) == Verdict(acked=6, disordered=3)
    values = stored(ledger, *ALL)
    for byte in (0, 12, 20, 150):
        flipped = bytearray(values[0])
        flipped[byte] ^= 4
        changed = ledger.judge([bytes(flipped), *values[1:]])
        assert changed == Verdict(acked=6, lost=1, altered=1)


def test_a_page_names_each_figure_and_why_a_cell_is_missing(machine):
    """What was lost is bold; what was not run says why."""
    lost = faults.Outcome("redis", "kill -9", Verdict(acked=10, lost=2, unreported=2, altered=1))
    absent = faults.Outcome("kafka", "kill -9", unavailable="java not found")
    ours = faults.Outcome("strandline", "kill -9", Verdict(acked=10))
    page = versus_faults.page([ours, lost, absent], machine, seed=5)
    assert "| Strandline | c | 0 of 10 |" in page
    assert "| **2 lost (2 unreported), 1 altered** of 10 |" in page
    assert "- kafka, kill -9: java not found" in page
    assert "seed 5" in page


@pytest.fixture
def machine():
    """Any."""
    from benchmarks.machine import Machine, SyncCost

    return Machine("cpu", 2, 8.0, "6", "3.11", "ext4", 0.1, 0.1, 0.0, SyncCost(2048, 1, 1, 1, 1))


def test_ours_is_broken_by_any_breach_but_a_reported_loss_of_the_only_copy():
    """Peers are never judged; three brokers have other copies."""

    def broken(fault, system="strandline", **figures):
        return versus_faults.is_broken(faults.Outcome(system, fault, Verdict(10, **figures)))

    assert broken("kill -9", lost=1)
    assert broken("power cut", doubled=1)
    assert broken("flipped bit", altered=1)
    assert broken("flipped bit", lost=1, unreported=1)
    assert broken("flipped bit", "strandline-r3", lost=1)
    assert not broken("flipped bit", lost=1)
    assert not broken("kill -9", "redis", lost=1)

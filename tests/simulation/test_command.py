"""The command that runs simulations, as people type it."""

from collections import Counter
from typing import NamedTuple

import pytest

from simulation.__main__ import SIMULATIONS, Simulation, main


@pytest.mark.parametrize(
    "words",
    [
        ["histories", "metadata", "--seeds", "0:2"],
        ["histories", "--seeds", "0:2", "metadata"],
        ["--seeds", "0:2", "histories", "metadata"],
    ],
)
def test_options_stand_anywhere(words, capsys):
    """Before the names of simulations or behind them, the same histories run."""
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("metadata: 2 histories, 0 failed")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["histories", "--seeds", "0:2", "metadada"], "no simulation metadada"),
        (["historie", "--seeds", "0:2"], "invalid choice: 'historie'"),
        (["--seeds", "0:2"], "what"),
    ],
)
def test_wrong_words_are_rejected(words, told, capsys):
    """And said to be wrong."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert told in capsys.readouterr().err


class Passed(NamedTuple):
    """The outcome of a history that broke no promise."""

    events: int
    counts: Counter


def test_a_failed_history_prints_the_command_that_repeats_it(monkeypatch, capsys):
    """The printed command runs that history alone, which fails again."""
    seeds = []

    def run(seed):
        seeds.append(seed)
        if seed == 17:
            raise AssertionError("two leaders")
        return Passed(1, Counter())

    monkeypatch.setitem(SIMULATIONS, "metadata", Simulation(run, ()))
    assert main(["histories", "metadata", "--seeds", "16:19"]) == 1
    assert seeds == [16, 17, 18]
    out = capsys.readouterr().out
    assert "metadata, seed 17: AssertionError: two leaders" in out
    command = out.split("repeat it: python -m simulation ")[1].splitlines()[0]
    assert main(command.split()) == 1
    assert seeds == [16, 17, 18, 17]

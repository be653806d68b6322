"""The command that runs simulations, as people type it."""

import pytest

from simulation.__main__ import main


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
    assert capsys.readouterr().out.startswith("metadata: 2 histories, 0 bad")


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

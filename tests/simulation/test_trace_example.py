"""The documented trace of a simulated cluster: the seed that the page names gives it."""

import re
from pathlib import Path

from simulation.__main__ import trace
from strandline.testing.shiviz import check_clocks, read_trace

PAGE = Path(__file__).parents[2] / "docs" / "traces.md"


def test_the_documented_seed_gives_the_documented_trace():
    """The example is how the output of its command begins, and the clocks in that are right."""
    _, _, text = PAGE.read_text().partition("## Simulated clusters")
    seed, events = map(int, re.search(r"--seeds (\d+):\d+ --events (\d+)", text).groups())
    shown = re.search(r"```text\n(.*?)```", text, re.DOTALL).group(1)
    written = "".join(trace(seed, events))
    assert written.startswith(shown)
    found = read_trace(written.splitlines())
    check_clocks(found)
    assert {": appends", ": commits"} <= {
        word for word in (": appends", ": commits") for event in found if word in event.what
    }

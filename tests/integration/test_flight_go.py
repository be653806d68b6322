"""The example of the protocol page: Arrow Flight from Go, without a client of ours.

Arrow for Go takes minutes to build: `make clients` does.
"""

import os
import subprocess

import pytest

from strandline.testing import Server
from tests.kit.doc_examples import ROOT
from tests.kit.example_builds import built

SHOWN = """\
3 orders are synced from offset 0 on
0: order 1
1: order 2
2: order 3
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The example, built."""
    if os.environ.get("CLIENTS") != "all":
        pytest.skip("takes minutes to build: make clients")
    words = [["mod", "tidy"], ["vet", "."], ["build", "-o", "orders", "."]]
    return built(ROOT / "examples" / "flight" / "go", "go", tmp_path_factory, words=words)


def test_the_example_runs(program):
    """It creates a stream, appends three records in one batch, and reads them."""
    with Server() as url:
        found = subprocess.run(
            [program / "orders", url], capture_output=True, text=True, timeout=60, check=False
        )
    assert (found.stdout, found.returncode) == (SHOWN, 0), found.stderr

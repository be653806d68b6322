"""JavaScript's NATS clients, of both generations, use streams and consumers unchanged.

Without Node, or where its packages cannot be installed, the tests are skipped.
"""

import subprocess

import pytest


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("program", ["current.mjs", "older.mjs"])
def test_javascripts_clients_use_streams_and_consumers(javascript_programs, url, program):
    """Fetch, next, consume, acknowledge, ordered, push, ordered push, queue, list, delete."""
    found = subprocess.run(
        ["node", program, url],
        cwd=javascript_programs,
        capture_output=True,
        check=False,
        text=True,
        timeout=90,
    )
    assert found.stdout.endswith("all done\n"), found.stdout[-1000:] + found.stderr[-2000:]

"""JavaScript's NATS clients, of both generations, use streams and consumers unchanged.

Without Node, or where its packages cannot be installed, the tests are skipped.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("javascript")
PACKAGES = {
    "@nats-io/transport-node": "3.4.0",
    "@nats-io/jetstream": "3.4.0",
    "nats": "2.29.3",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the programs, with the packages that they need."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("Node is not on the PATH")
    folder = tmp_path_factory.mktemp("javascript")
    shutil.copytree(SOURCE, folder, dirs_exist_ok=True)
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": PACKAGES}))
    installed = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--loglevel", "error"],
        cwd=folder,
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    if installed.returncode:
        pytest.skip(f"the packages cannot be installed, offline perhaps: {installed.stderr[-500:]}")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("program", ["current.mjs", "older.mjs"])
def test_javascripts_clients_use_streams_and_consumers(folder, url, program):
    """Fetch, next, consume, acknowledge, ordered, push, ordered push, queue, list, delete."""
    found = subprocess.run(
        ["node", program, url],
        cwd=folder,
        capture_output=True,
        check=False,
        text=True,
        timeout=90,
    )
    assert found.stdout.endswith("all done\n"), found.stdout[-1000:] + found.stderr[-2000:]

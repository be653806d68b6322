"""Go's NATS client (nats.go, both of its APIs) uses streams and consumers unchanged.

Its programs are compiled here; without Go, or without its modules, the tests are skipped.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("go")
MODULE = """\
module strandline/jetstream
go 1.21
require github.com/nats-io/nats.go v1.55.0
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The folder of the compiled programs."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not on the PATH")
    folder = tmp_path_factory.mktemp("go")
    shutil.copytree(SOURCE, folder, dirs_exist_ok=True)
    (folder / "go.mod").write_text(MODULE)
    (folder / "built").mkdir()
    environment = {**os.environ, "GOFLAGS": "-mod=mod"}
    built = subprocess.run(
        [go, "build", "-o", "built/", "./..."],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    if built.returncode:
        pytest.skip(
            f"the programs cannot be built, without a network perhaps: {built.stderr[-500:]}"
        )
    return folder / "built"


def assert_done(program, url):
    """Assert that a program does all that it does."""
    found = subprocess.run([program, url], capture_output=True, check=False, text=True, timeout=90)
    assert found.stdout.endswith("all done\n"), found.stdout[-1000:] + found.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_gos_client_uses_streams_and_consumers(programs, url):
    """Create, publish, read, fetch, consume, acknowledge, refuse, ordered, purge, delete."""
    assert_done(programs / "jetstream", url)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_gos_client_receives_from_push_and_ordered_consumers(programs, url):
    """Both of its APIs; ordered consumers that are lost, queue groups, flow control."""
    assert_done(programs / "push", url)

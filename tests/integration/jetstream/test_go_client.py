"""Go's NATS client (nats.go's package jetstream) uses streams and pull consumers unchanged.

Its program is compiled here; without Go, or without its modules, the test is skipped.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("go") / "main.go"
MODULE = """\
module strandline/jetstream
go 1.21
require github.com/nats-io/nats.go v1.55.0
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The compiled program."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not on the PATH")
    folder = tmp_path_factory.mktemp("go")
    (folder / "go.mod").write_text(MODULE)
    shutil.copy(SOURCE, folder)
    environment = {**os.environ, "GOFLAGS": "-mod=mod"}
    built = subprocess.run(
        [go, "build", "-o", "program", "."],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    if built.returncode:
        pytest.skip(
            f"the program cannot be built, without a network perhaps: {built.stderr[-500:]}"
        )
    return folder / "program"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_gos_client_uses_streams_and_consumers(program, url):
    """Create, publish, read, fetch, consume, acknowledge, refuse, ordered, purge, delete."""
    found = subprocess.run([program, url], capture_output=True, check=False, text=True, timeout=90)
    assert found.stdout.endswith("all done\n"), found.stdout[-1000:] + found.stderr[-2000:]

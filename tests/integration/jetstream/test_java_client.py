"""Java's NATS client (jnats) uses streams, consumers and buckets unchanged.

Its program is compiled here. Without a JDK, or without Maven and jnats, the tests are skipped.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kit.example_builds import built

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[2] / "examples" / "clients" / "java"
"""Names the version of jnats."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]


@pytest.fixture(scope="module")
def java_program(tmp_path_factory):
    """The command that runs the compiled program."""
    java, compiler = shutil.which("java"), shutil.which("javac")
    if java is None or compiler is None:
        pytest.skip("a JDK (java and javac, 11 or newer) is not on the PATH")
    words = [["-q", "-B", "dependency:copy-dependencies"]]
    jars = built(EXAMPLE, "mvn", tmp_path_factory, words=words) / "target" / "dependency"
    classes = tmp_path_factory.mktemp("classes")
    program = HERE / "java" / "Streams.java"
    compiled = subprocess.run(
        [compiler, "-cp", f"{jars}/*", "-d", str(classes), str(program)],
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    assert compiled.returncode == 0, compiled.stderr
    return [java, "-cp", f"{classes}:{jars}/*", "Streams"]


def assert_done(words, url):
    """Assert that a program does all that it does."""
    found = subprocess.run([*words, url], capture_output=True, check=False, text=True, timeout=180)
    assert found.stdout.endswith("all done\n"), found.stdout[-1000:] + found.stderr[-3000:]
    assert len(re.findall("^ok ", found.stdout, re.MULTILINE)) > 70


def test_javas_client_uses_streams_consumers_and_buckets(java_program, url):
    """Create, publish, read, fetch, consume, iterate, push, ordered, by time, key-value, purge."""
    assert_done(java_program, url)


def test_javas_client_uses_the_ingest_listener(java_program, ours):
    """The same, connected to nothing else."""
    assert_done(java_program, ours.ingest_url)

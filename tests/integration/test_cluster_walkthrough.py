"""docs/cluster.md, run as written: every shell line, from top to bottom, on other ports."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.kit.clusters import figure

ROOT = Path(__file__).parents[2]
SPAN = 30
"""Ports that three brokers of `strandline dev` use."""
DOCUMENTED_BASE = 9400


def free_base():
    """The first of ``SPAN`` consecutive free ports, with tens like the documented ones."""
    for base in range(20_000 + os.getpid() % 1000 * 30, 60_000, SPAN):
        try:
            for port in range(base, base + SPAN):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise AssertionError("no free ports")


def commands(base):
    """The shell blocks of the page, with ports of this run."""
    text = (ROOT / "docs" / "cluster.md").read_text("utf-8")
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        yield re.sub(r"\b94([012]0)\b", lambda found: str(base + int(found[1])), block)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_walk_through_does_what_it_says(tmp_path):
    """The leader is killed, another leads, the ISR heals, all copies are the same, it leads again.

    Each broker serves its own copy in the end: that is what their counters say.
    """
    base = free_base()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path}
    start, *steps = commands(base)
    dev = subprocess.Popen(
        [*start.split(), "--port-base", str(base)],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        ready = [dev.stdout.readline() for _ in range(3)]
        assert all(f"127.0.0.1:{base + 10 * n}" in line for n, line in enumerate(ready)), ready
        sites = [re.search(r"web (http://\S+)/", line)[1] for line in ready]
        joined = until_status("grep -c live | grep 3", base)
        *steps, compare = steps
        shown = [run(step, tmp_path, environ) for step in (joined, *steps)]
        before = list(map(delivered, sites))
        run(compare, tmp_path, environ)
        served = [after - b for after, b in zip(map(delivered, sites), before, strict=True)]
        run(until_status("grep -E '^orders +0 +1 '", base + 10), tmp_path, environ)
    finally:
        for lock in tmp_path.glob("strandline-dev/broker-*/broker.lock"):
            for pid in lock.read_text().split():
                end(int(pid))
        dev.send_signal(signal.SIGTERM)
        dev.wait(30)
        dev.stdout.close()
    status = "\n".join(shown)
    assert re.search(r"^orders +0 +1 +\d+ +1 2 3 +1 2 3", status, re.MULTILINE), "1 led at first"
    assert re.search(r"^orders +0 +2 +\d+ +1 2 3 +2 3", status, re.MULTILINE), "then 2"
    assert len((tmp_path / "from-1").read_text().splitlines()) == 1001
    assert served == [1001, 1001, 1001]


def until_status(filter_, port):
    """A script that waits until a broker's status passes a filter."""
    asked = f"strandline cluster status -s 127.0.0.1:{port} | {filter_}"
    return f"until {asked}; do sleep 0.2; done"


def delivered(site):
    """Return the number of records a broker has delivered to readers."""
    return figure(SimpleNamespace(http_url=site), "strandline_read_records_total")


def run(step, directory, environ):
    """Run a block as one script; return its output."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", step],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, f"{step}\n{done.stdout}{done.stderr}"
    return done.stdout


def end(pid):
    """Kill a broker if it still runs."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return

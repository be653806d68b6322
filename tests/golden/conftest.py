"""Golden scripts: commands, and below each its effects.

A line that begins with ``>`` is a command; comments and empty lines stay; everything else is what
came when the script was written.
"""

import os
from types import SimpleNamespace

import pytest


def played(text, command):
    """Return the script with the present effects after each command."""
    lines = []
    for line in text.splitlines():
        if line.startswith(">"):
            lines += [line, *command(line[1:].strip())]
        elif line.startswith("#") or not line:
            lines.append(line)
    return "\n".join(lines) + "\n"


def judge(path, command):
    """Run a script: every line must match, unless the script is being rewritten."""
    script = path.read_text("utf-8")
    now = played(script, command)
    if os.environ.get("GOLDEN_UPDATE"):
        path.write_text(now, "utf-8")
    assert now == script


@pytest.fixture
def golden():
    """``golden.judge(path, command)``; ``command`` gives the lines that come of a command."""
    return SimpleNamespace(judge=judge)

"""A job for tests: commands of ``strandline``, one after another, in a process of their own.

    python commands.py DIRECTORY COMMANDS.json

Each command is a list of words. One JVM serves all of them, which spares some six seconds for each.
Writes a JSON line for each: how it ended, and what it wrote to standard output and standard error.
A command is run again where Spark has given up on a Python process that took ten seconds to start,
which happens on busy machines and is what our message says to do.
"""

import contextlib
import io
import json
import os
import sys
from pathlib import Path

from strandline.cli.app import app

GAVE_UP = "Python worker failed to connect back"
TRIES = 5


def run(words):
    """One command, as the shell would run it; its output is that of all its tries."""
    out = io.StringIO()
    for _ in range(TRIES):
        err = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                app(words)
            except SystemExit as ended:
                code = ended.code
        if GAVE_UP not in err.getvalue():
            break
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


commands = json.loads(Path(sys.argv[2]).read_text())
os.chdir(sys.argv[1])
for command in commands:
    sys.stdout.write(json.dumps({"event": "command", **run(command)}) + "\n")
    sys.stdout.flush()

"""The ``strandline`` command.

Rules: a command parses, calls one function of another package and prints. Anything heavy is
imported inside the command, so that ``--help`` is quick. Results go to standard output, progress
and errors to standard error. Exit codes: 0 done, 1 an error (or damage found), 2 wrong usage.
"""

import importlib
import os
import sys
from typing import Any


def main() -> None:
    """Run the command that the arguments name; say so if only the client is installed."""
    open_standard_streams()
    _loaded("strandline.cli.app").app()


def liftbridge_main() -> None:
    """The script ``strandline-liftbridge``: that command alone."""
    open_standard_streams()
    _loaded("strandline.cli.liftbridge").main()


def open_standard_streams() -> None:
    """Replace standard streams that were closed.

    Python has ``None`` for such a stream, and the next file or connection gets its descriptor:
    results would go there. Reading from the closed input and writing to the closed output are
    errors of the operating system, which are reported; what goes to the closed error stream is not
    wanted.
    """
    ways = (os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, ways[descriptor])  # the lowest that is free: its own
            setattr(sys, name, os.fdopen(opened, "w" if descriptor else "r", closefd=False))


def _loaded(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        sys.exit(f"error: {error.name} is not installed: pip install 'strandline[server,cli]'")

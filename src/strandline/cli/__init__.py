"""The ``strandline`` command.

Rules: a command parses its arguments, calls one function of another package and prints the result.
Heavy imports are inside the commands, so that ``--help`` is quick. Results go to standard output,
progress and errors to standard error. Exit codes: 0 for success, 1 for an error (or corruption
found), 2 for wrong usage.
"""

import importlib
import os
import sys
from typing import Any


def main() -> None:
    """Run the command line; exit with a hint if only the client is installed."""
    open_standard_streams()
    root = _loaded("strandline.cli.root")
    asked = [name for name in sys.argv[1:2] if name in root.MODULES]
    root.application(*asked)()


def liftbridge_main() -> None:
    """Run the script ``strandline-liftbridge``."""
    open_standard_streams()
    _loaded("strandline.cli.liftbridge").main()


def open_standard_streams() -> None:
    """Replace standard streams that were closed at start.

    Python sets such a stream to ``None``, and the next file or connection would get its descriptor
    and receive the output. With the replacement, reading the closed input or writing the closed
    output fails with an OSError, which is reported; text for the closed error stream is discarded.
    """
    ways = (os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, ways[descriptor])  # the lowest free one: the stream's own
            setattr(sys, name, os.fdopen(opened, "w" if descriptor else "r", closefd=False))


def _loaded(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        sys.exit(f"error: {error.name} is not installed: pip install 'strandline[server,cli]'")

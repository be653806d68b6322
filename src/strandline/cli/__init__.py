"""The ``strandline`` command.

Rules: a command parses, calls one function of another package and prints. Anything heavy is
imported inside the command, so that ``--help`` is quick. Results go to standard output, progress
and errors to standard error. Exit codes: 0 done, 1 an error (or damage found), 2 wrong usage.
"""

import importlib
import sys
from typing import Any


def main() -> None:
    """Run the command that the arguments name; say so if only the client is installed."""
    _loaded("strandline.cli.app").app()


def liftbridge_main() -> None:
    """The script ``strandline-liftbridge``: that command alone."""
    _loaded("strandline.cli.liftbridge").main()


def _loaded(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        sys.exit(f"error: {error.name} is not installed: pip install 'strandline[server,cli]'")

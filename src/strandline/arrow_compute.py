"""pyarrow's compute functions, loaded when the first of them is called.

``from strandline import arrow_compute as pc`` in place of ``import pyarrow.compute as pc``: they
take 8 MiB and 60 ms to load, and a client that publishes single records calls none of them. A
broker loads them at its start.
"""

import importlib
from typing import Any


def load() -> None:
    """Load the functions now: later, connections may have used up the process's descriptors."""
    importlib.import_module("pyarrow.compute")


def __getattr__(name: str) -> Any:
    """Return a function of ``pyarrow.compute``, and cache it in this module."""
    function = globals()[name] = getattr(importlib.import_module("pyarrow.compute"), name)
    return function

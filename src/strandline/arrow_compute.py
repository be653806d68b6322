"""pyarrow's compute functions, loaded when the first of them is called.

``from strandline import arrow_compute as pc`` in place of ``import pyarrow.compute as pc``: they
take 8 MiB and 60 ms to load. A client that publishes single records calls none of them, and neither
does a broker without clients.
"""

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

reserve: Callable[[], AbstractContextManager[object]] = nullcontext
"""Entered while the functions are loaded. A broker sets what gives it descriptors for their files,
since its clients may have taken all others."""


def __getattr__(name: str) -> Any:
    """Return a function of ``pyarrow.compute``, and cache it in this module."""
    with reserve():
        function = globals()[name] = getattr(importlib.import_module("pyarrow.compute"), name)
    return function

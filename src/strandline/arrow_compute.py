"""pyarrow's compute functions, loaded when the first of them is called.

``from strandline import arrow_compute as pc`` in place of ``import pyarrow.compute as pc``: they
take 8 MiB and 60 ms to load, and a broker whose publishers use NATS, or a client that publishes
single records, calls none of them.
"""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Return a function of ``pyarrow.compute``, and keep it here."""
    function = globals()[name] = getattr(importlib.import_module("pyarrow.compute"), name)
    return function

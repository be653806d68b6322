"""pyarrow without pandas, for processes that never use it.

pyarrow imports pandas, if installed, for the first value that it converts from Python. That takes
37 MiB, and 0.2 to 0.5 s of CPU. It tries once in a process, so the caller must own the process: a
broker, or a command that never returns a data frame.
"""

import sys


class _NoPandas:
    """A finder that reports pandas as not installed."""

    def find_spec(self, name: str, *_of_the_package: object) -> None:
        """Raise for pandas; leave all else to the other finders."""
        if name == "pandas":
            raise ModuleNotFoundError(name)


def keep_pandas_out() -> None:
    """Make pyarrow work without pandas; no effect if it has imported pandas already."""
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    pa.array([])  # makes pyarrow ask for pandas; a number would also take 4 MiB for Arrow's pool
    sys.meta_path.remove(finder)

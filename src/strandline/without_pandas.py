"""pyarrow without pandas, for processes that never use it.

pyarrow imports pandas, where it is installed, for the first value that it converts from Python: 37
MiB, and 0.2 to 0.5 s of CPU. It asks once in a process, so what calls this must own the process:
a broker, and commands that never hand out a data frame.
"""

import sys


class _NoPandas:
    """A finder that says that pandas is not installed."""

    def find_spec(self, name: str, *_of_the_package: object) -> None:
        """Raise for pandas; leave all else to the other finders."""
        if name == "pandas":
            raise ModuleNotFoundError(name)


def keep_pandas_out() -> None:
    """Let pyarrow go without pandas from now on; where it has already asked, nothing changes."""
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    pa.array([])  # makes pyarrow ask for pandas; a number would also take 4 MiB for Arrow's pool
    sys.meta_path.remove(finder)

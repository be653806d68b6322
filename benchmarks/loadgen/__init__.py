"""The native load generator: closed-loop appenders over the NATS protocol or Redis' RESP.

`run_load` runs one load and returns what it measured; `ceiling_server` and `responder` start the
built-in no-op servers, whose figures are the generator's own ceiling.
"""

from benchmarks.loadgen.build import NoCompilerError, build
from benchmarks.loadgen.run import (
    Load,
    LoadError,
    LoadResult,
    NoOp,
    ceiling_server,
    responder,
    run_load,
)

__all__ = [
    "Load",
    "LoadError",
    "LoadResult",
    "NoCompilerError",
    "NoOp",
    "build",
    "ceiling_server",
    "responder",
    "run_load",
]

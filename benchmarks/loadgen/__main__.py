"""`python -m benchmarks.loadgen ...`: compiles the generator if needed and becomes it."""

from __future__ import annotations

import os
import sys

from benchmarks.loadgen.build import NoCompilerError, build

try:
    binary = build()
except NoCompilerError as error:
    sys.exit(str(error))
os.execv(binary, ["loadgen", *sys.argv[1:]])  # noqa: S606 - it becomes the generator

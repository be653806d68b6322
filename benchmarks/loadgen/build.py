"""Compiles the native load generator into `benchmarks/.build/` when its source has changed.

Rules: needs only a C compiler (`$CC`, or cc, gcc, clang) and libc on Linux; the binary is named
after the hash of its sources, so a stale one is never run; two builders may run at once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

SOURCE_DIR: Final = Path(__file__).parent
BUILD_DIR: Final = SOURCE_DIR.parent / ".build"
SOURCES: Final = ("loadgen.c", "options.c", "wire.c", "beam.c", "ceiling.c", "responder.c")
HEADERS: Final = ("loadgen.h", "hist.h")
FLAGS: Final = ("-O2", "-std=c11", "-Wall", "-Wextra")
HOW_TO_GET_CC: Final = (
    "no C compiler found: the load generator is C. Install one (Debian, Ubuntu: "
    "`apt-get install gcc libc6-dev`; Fedora: `dnf install gcc`), or set $CC to yours."
)


class NoCompilerError(RuntimeError):
    """There is no C compiler; the text says how to get one."""


def find_compiler() -> str:
    """The path of a C compiler; raises NoCompilerError if there is none."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        path = shutil.which(name) if name else None
        if path:
            return path
    raise NoCompilerError(HOW_TO_GET_CC)


def source_hash() -> str:
    """Twelve hex digits that change whenever a source or a flag does."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for name in (*SOURCES, *HEADERS):
        digest.update((SOURCE_DIR / name).read_bytes())
    return digest.hexdigest()[:12]


def build() -> Path:
    """Returns the path of an up-to-date binary, compiling it first if there is none."""
    binary = BUILD_DIR / f"loadgen-{source_hash()}"
    if binary.exists():
        return binary
    compiler = find_compiler()
    BUILD_DIR.mkdir(parents=True, exist_ok=True)
    part = binary.with_name(f"{binary.name}.{os.getpid()}")
    command = [compiler, *FLAGS, "-o", str(part), *(str(SOURCE_DIR / name) for name in SOURCES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    part.replace(binary)
    return binary

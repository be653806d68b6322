"""What a benchmark knows of a system under test: how to start it, load it, and what its ack means.

Rules: a system states its ack class (one of `Ack`) and its settings, and both go into every
result; systems of different ack classes are different rows, never one ratio.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.loadgen import Load, LoadResult
from benchmarks.warmup import NO_PREPARATION, Preparation


class Ack(enum.StrEnum):
    """What an acknowledged append survives."""

    MEMORY = "a: in the server's memory"
    PAGE_CACHE = "b: written to the page cache"
    DISK = "c: synced to the disk of one node"
    MAJORITY = "d: synced to the disks of a majority"
    NONE = "-: nothing is stored"


@dataclass(frozen=True)
class Place:
    """Where and how to start a system: data root, partitions, command prefixes, preparation."""

    data_root: Path
    partitions: int = 1
    preparation: Preparation = NO_PREPARATION
    server_prefix: tuple[str, ...] = ()
    client_prefix: tuple[str, ...] = ()


class Session(Protocol):
    """A running system, ready to be loaded."""

    @property
    def pid(self) -> int:
        """Process id of the server that stores the records."""

    @property
    def version(self) -> str:
        """Version of the server."""

    def run(self, load: Load) -> LoadResult:
        """Runs one load; the stream of the load exists and is empty or at least unread."""


@dataclass(frozen=True)
class System:
    """One row of a comparison."""

    name: str
    label: str
    ack: Ack
    settings: str
    open: Callable[[Place], AbstractContextManager[Session]]
    keep_running: bool = False
    """Started once per invocation (a JVM that must stay warm) instead of once per point."""

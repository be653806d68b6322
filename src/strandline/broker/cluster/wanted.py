"""Metadata changes that this broker wants, gathered while a command is in flight."""

import asyncio
from typing import Generic, TypeVar

from strandline.types import LogId

T = TypeVar("T")


class PendingProposals(Generic[T]):
    """The newest wish of each log: a command that names a partition twice is refused whole."""

    def __init__(self) -> None:
        self._wishes: dict[LogId, T] = {}
        self._is_there = asyncio.Event()

    def put(self, log_id: LogId, wish: T) -> None:
        """Want this, and nothing else of before."""
        self._wishes[log_id] = wish
        self._is_there.set()

    def put_back(self, log_id: LogId, wish: T) -> None:
        """Want this still, unless something newer is wanted by now."""
        self._wishes.setdefault(log_id, wish)
        self._is_there.set()

    async def taken(self) -> list[T]:
        """All that is wanted, when there is anything."""
        await self._is_there.wait()
        self._is_there.clear()
        wishes, self._wishes = self._wishes, {}
        return list(wishes.values())

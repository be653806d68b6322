"""Offsets of a partition that no reader sees: markers, and records of aborted transactions.

One bit per offset, in words of 4,096 offsets: they can be counted between any two offsets, and
dropped from the beginning of the log.

Threads: ``add`` and ``forget_below`` belong to one thread; ``between`` may be called on any.
"""

from strandline.types import Offset

WORD_OFFSETS = 4096


class HiddenOffsets:
    """A set of offsets, dense where many are near each other."""

    def __init__(self) -> None:
        self._words: dict[int, int] = {}

    def add(self, first: int, count: int = 1) -> None:
        """Add ``count`` offsets from ``first`` on; some may be in the set already."""
        while count > 0:
            number, bit = divmod(first, WORD_OFFSETS)
            taken = min(count, WORD_OFFSETS - bit)
            self._words[number] = self._words.get(number, 0) | ((1 << taken) - 1) << bit
            first, count = first + taken, count - taken

    def forget_below(self, offset: Offset) -> None:
        """Drop the words that have no offset from ``offset`` on."""
        while self._words and (first := next(iter(self._words))) < offset // WORD_OFFSETS:
            del self._words[first]

    def between(self, start: int, stop: int) -> int:
        """Count the hidden offsets from ``start`` to ``stop``, exclusive; any thread."""
        found = 0
        for number, word in list(self._words.items()):
            base = number * WORD_OFFSETS
            low, high = max(start - base, 0), min(stop - base, WORD_OFFSETS)
            if low < high:
                found += (word >> low & ((1 << high - low) - 1)).bit_count()
        return found

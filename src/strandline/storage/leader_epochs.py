"""Where each leader epoch of a partition began, so that replicas can find where they agree.

A small text file per partition: a line ``epoch start-offset`` each, both ascending, and a last line
``crc32c`` with the checksum of the lines before. Rules: epoch 0 begins at offset 0 even if no file
says so; the file is replaced atomically before a change counts; entries follow the log when it is
truncated at either end.
"""

from bisect import bisect_right
from pathlib import Path

from crc32c import crc32c

from strandline.errors import CorruptBatchError
from strandline.storage.disk import Disk
from strandline.types import LeaderEpoch, Offset

FILE_NAME = "leader-epochs"

Entry = tuple[LeaderEpoch, Offset]
_FIRST: Entry = (LeaderEpoch(0), Offset(0))


class LeaderEpochs:
    """(epoch, start offset) in order, at least one."""

    def __init__(self, path: Path, *, disk: Disk, entries: tuple[Entry, ...] = (_FIRST,)) -> None:
        assert entries, "there is always a current epoch"
        self._path = path
        self._disk = disk
        self.entries = entries

    @classmethod
    def open(cls, directory: Path, *, disk: Disk) -> "LeaderEpochs":
        """Load the file of a partition; without one, epoch 0 at offset 0.

        Raises:
            CorruptBatchError: the file is not what was written.
        """
        path = directory / FILE_NAME
        data = disk.read_bytes(path)
        return cls(path, disk=disk, entries=_parse(data, path) if data else (_FIRST,))

    @property
    def current(self) -> LeaderEpoch:
        """The latest epoch."""
        return self.entries[-1][0]

    def begin(self, epoch: LeaderEpoch, start_offset: Offset) -> None:
        """Note that ``epoch`` begins at ``start_offset``; durable on return.

        An epoch that wrote nothing gives way: it began where the new one begins.

        Raises:
            DiskFullError: no space; nothing changed.
            LogPoisonedError: the write failed.
        """
        assert epoch > self.current or self.entries == (_FIRST,), "epochs only grow"
        assert start_offset >= self.entries[-1][1], "epochs begin in order of offset"
        kept = tuple(entry for entry in self.entries if entry[1] < start_offset)
        self._save((*kept, (epoch, start_offset)))

    def end_offset(
        self, epoch: LeaderEpoch, *, log_end_offset: Offset
    ) -> tuple[LeaderEpoch, Offset]:
        """The largest epoch known that is not above ``epoch``, and where it ends.

        A follower that asks with its own last epoch truncates to the answer (KIP-101, KIP-279).
        """
        found = bisect_right(self.entries, epoch, key=lambda entry: entry[0]) - 1
        if found < 0:
            return LeaderEpoch(-1), self.entries[0][1]
        last = found + 1 == len(self.entries)
        return self.entries[found][0], log_end_offset if last else self.entries[found + 1][1]

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """The epoch whose leader wrote ``offset``."""
        found = bisect_right(self.entries, offset, key=lambda entry: entry[1]) - 1
        return self.entries[max(found, 0)][0]

    def truncate_to(self, offset: Offset) -> None:
        """Forget the epochs that begin at or after ``offset``: the log was cut there."""
        kept = tuple(entry for entry in self.entries if entry[1] < offset)
        self._save(kept or self.entries[:1])

    def truncate_before(self, offset: Offset) -> None:
        """Forget the epochs that end at or before ``offset``; the one in force begins there."""
        later = tuple(entry for entry in self.entries if entry[1] > offset)
        self._save(((self.epoch_at(offset), offset), *later))

    def _save(self, entries: tuple[Entry, ...]) -> None:
        if entries == self.entries:
            return
        text = "".join(f"{epoch} {offset}\n" for epoch, offset in entries).encode()
        self._disk.write_atomically(self._path, text + _checksum(text))
        self.entries = entries


def _checksum(text: bytes) -> bytes:
    """The last line of a file."""
    return b"crc32c %08x\n" % crc32c(text)


def _parse(data: bytes, path: Path) -> tuple[Entry, ...]:
    """The entries of a file, checked.

    Raises:
        CorruptBatchError: not lines of two ascending numbers, or a wrong checksum.
    """
    entries: list[Entry] = []
    text = data[: data.rstrip(b"\n").rfind(b"\n") + 1]
    if not text or data != text + _checksum(text):
        raise CorruptBatchError("checksum mismatch", file=str(path))
    for number, line in enumerate(text.splitlines()):
        words = line.split()
        if len(words) != 2 or not all(word.isdigit() for word in words):
            raise CorruptBatchError(f"line {number + 1} is not 'epoch offset'", file=str(path))
        epoch, offset = LeaderEpoch(int(words[0])), Offset(int(words[1]))
        if entries and not (epoch > entries[-1][0] and offset > entries[-1][1]):
            raise CorruptBatchError(f"line {number + 1} is out of order", file=str(path))
        entries.append((epoch, offset))
    return tuple(entries)

"""Committed offsets in ZooKeeper, by kazoo.

    ZooKeeperOffsetStore("host1:2181,host2:2181")

One znode per partition, ``<root>/<group>/<stream>/<partition>``, holds the offset and the epoch
under which it was claimed as JSON.

Rules: a commit is one ZooKeeper transaction. It changes each znode only in the version that was
read. So a claim made meanwhile wins, also over a commit that timed out here and is executed once
ZooKeeper is back. Needs the extra ``offset-stores``.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from strandline.client.consumer.offset_store import TIMEOUT_S, Offsets, Owner
from strandline.errors import StaleMemberError, UnavailableError
from strandline.optional_dependencies import install_hint
from strandline.types import PartitionName

try:
    from kazoo.client import KazooClient
    from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
    from kazoo.handlers.threading import KazooTimeoutError
    from kazoo.interfaces import IAsyncResult
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(install_hint(error), name=error.name) from error

ROOT = "/strandline/positions"
ATTEMPTS = 10


class _Kept(msgspec.Struct, frozen=True):
    """The content of a znode."""

    next_offset: int | None
    epoch: int


_decode = msgspec.json.Decoder(_Kept).decode


class ZooKeeperOffsetStore:
    """An ``OffsetStore`` in ZooKeeper.

    Args:
        hosts: ``host:port``, several separated by commas.
        root: the parent of the znodes.
        timeout_s: the timeout of each call.

    Raises:
        UnavailableError: ZooKeeper cannot be reached.
    """

    def __init__(self, hosts: str, *, root: str = ROOT, timeout_s: float = TIMEOUT_S) -> None:
        self._root = root
        self._timeout_s = timeout_s
        self._client = KazooClient(hosts=hosts)
        try:
            with _translated():
                self._client.start(timeout=timeout_s)
        except UnavailableError:
            self.close()  # ends the client's threads, which would retry
            raise

    def claim(
        self, group: str, partitions: Collection[PartitionName], owner: Owner
    ) -> dict[PartitionName, int]:
        """Return the committed offsets for a new owner; see ``OffsetStore``."""
        names = sorted(partitions)
        kept = self._change(group, names, owner=owner, change=lambda _, kept: kept.next_offset)
        return {name: offset for name, offset in kept.items() if offset is not None}

    def commit(self, group: str, offsets: Offsets, owner: Owner) -> None:
        """Commit offsets; see ``OffsetStore``."""
        self._change(group, sorted(offsets), owner=owner, change=lambda name, _: offsets[name])

    def read(self, group: str) -> dict[PartitionName, int]:
        """Return all committed offsets; see ``OffsetStore``."""
        found: dict[PartitionName, int] = {}
        with _translated():
            for stream in self._children(self._path(group)):
                for number in self._children(f"{self._path(group)}/{stream}"):
                    name = PartitionName(unquote(stream), int(number))
                    kept = self._kept(group, name)[0]
                    if kept is not None and kept.next_offset is not None:
                        found[name] = kept.next_offset
        return found

    def close(self) -> None:
        """Close the connection."""
        self._client.stop()
        self._client.close()

    def _change(
        self,
        group: str,
        names: list[PartitionName],
        *,
        owner: Owner,
        change: Callable[[PartitionName, _Kept], int | None],
    ) -> dict[PartitionName, int | None]:
        """Set offsets to the results of ``change``, all or none; return them.

        Raises:
            StaleMemberError: another owner has claimed a partition.
            UnavailableError: the znodes change in every attempt, or ZooKeeper does not answer.
        """
        for _ in range(ATTEMPTS):
            with _translated():
                values: dict[PartitionName, int | None] = {}
                transaction = self._client.transaction()
                for name in names:
                    kept, version = self._kept(group, name)
                    if kept is None:
                        kept, version = self._made(group, name)
                    _check(kept, name, owner)
                    values[name] = change(name, kept)
                    epoch = owner.epoch if owner.member else kept.epoch
                    data = msgspec.json.encode(_Kept(values[name], epoch))
                    transaction.set_data(self._path(group, *name), data, version=version)
                results = self._answer(transaction.commit_async()) if names else []
            if not any(isinstance(result, Exception) for result in results):
                return values
            if not any(isinstance(result, BadVersionError) for result in results):
                raise UnavailableError(f"ZooKeeper did not commit offsets: {results}")
        raise UnavailableError(f"offsets of {group!r} are changed by others all the time; retry")

    def _kept(self, group: str, name: PartitionName) -> tuple[_Kept | None, int]:
        """Return a znode's content and version."""
        try:
            data, stat = self._answer(self._client.get_async(self._path(group, *name)))
        except NoNodeError:
            return None, -1
        return _decode(data), stat.version

    def _made(self, group: str, name: PartitionName) -> tuple[_Kept, int]:
        """Create a znode, or return the one that was just created by another process."""
        empty = _Kept(None, 0)
        path = self._path(group, *name)
        try:
            data = msgspec.json.encode(empty)
            self._answer(self._client.create_async(path, data, makepath=True))
        except NodeExistsError:
            kept, version = self._kept(group, name)
            return kept or empty, version
        return empty, 0

    def _answer(self, call: IAsyncResult) -> Any:
        """Return a call's result, with a timeout, which kazoo's own calls do not have.

        Raises:
            KazooException, KazooTimeoutError: ZooKeeper rejects the call, or does not answer.
        """
        return call.get(timeout=self._timeout_s)

    def _path(self, *parts: str | int) -> str:
        return "/".join((self._root, *(_znode(str(part)) for part in parts)))

    def _children(self, path: str) -> list[str]:
        try:
            return sorted(self._answer(self._client.get_children_async(path)))
        except NoNodeError:
            return []


def _znode(text: str) -> str:
    """Return the name of a znode for any text; ``unquote`` returns the text."""
    # ZooKeeper rejects these two names, which ``quote`` would not change.
    return text.replace(".", "%2E") if text in (".", "..") else quote(text, safe="")


def _check(kept: _Kept, name: PartitionName, owner: Owner) -> None:
    if owner.member and kept.epoch > owner.epoch:
        raise StaleMemberError(
            f"{name} was claimed under epoch {kept.epoch}, later than {owner.epoch}: another "
            "member owns it now"
        )


@contextmanager
def _translated() -> Iterator[None]:
    """Translate ZooKeeper's errors.

    Raises:
        UnavailableError: the call failed, or its outcome is unknown.
    """
    try:
        yield
    except (KazooException, KazooTimeoutError) as error:
        raise UnavailableError(f"offset store in ZooKeeper: {error!r}") from error

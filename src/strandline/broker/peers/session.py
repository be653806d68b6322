"""The state of a peer: the two connections with it, as a pure state machine.

Frames to a peer use the connection that this broker opened (``out``), frames from the peer the one
that the peer opened (``in``). A peer is *up* while both are open and belong to one incarnation of
the peer.

Rules: frames are sent, and passed on, only while the peer is up. While it is up, the end of one
connection ends both. So whenever a frame is lost, both brokers are notified that the other is
disconnected, and their cores start again; no answer can be lost unnoticed between two connections.
While the peer is not up, the end of one connection loses no frame, and the other connection stays
open.

Invariants: ``Back`` and ``Lost`` alternate, ``Back`` first. Each connection that leaves the session
    has ended or gets ``Close``. The later handshake wins: an earlier connection of the same
    direction, or of another incarnation, belongs to a process or a session that has ended.
"""

from typing import Final, Literal, Protocol

import msgspec

Direction = Literal["in", "out"]
OTHER: Final[dict[Direction, Direction]] = {"in": "out", "out": "in"}


class Half(Protocol):
    """One of the two connections, after its handshake."""

    @property
    def incarnation(self) -> str:
        """The peer's incarnation."""
        ...


class Back(msgspec.Struct, frozen=True):
    """Notify the owner that the peer is connected."""


class Lost(msgspec.Struct, frozen=True):
    """Notify the owner that the peer is disconnected; frames may have been lost."""


class Close(msgspec.Struct, frozen=True):
    """Close a connection that has left the session."""

    half: Half


Effect = Back | Lost | Close


class PeerSession:
    """The connections with one peer."""

    def __init__(self) -> None:
        self._halves: dict[Direction, Half] = {}

    @property
    def is_up(self) -> bool:
        """Whether the peer is up, so that frames are exchanged."""
        return len(self._halves) == len(OTHER)

    def opened(self, direction: Direction, half: Half) -> list[Effect]:
        """Handle a completed handshake."""
        effects = self._drop(direction) if direction in self._halves else []
        other = self._halves.get(OTHER[direction])
        if other is not None and other.incarnation != half.incarnation:
            effects.append(Close(self._halves.pop(OTHER[direction])))
        self._halves[direction] = half
        if self.is_up:
            effects.append(Back())
        return effects

    def closed(self, half: Half) -> list[Effect]:
        """Handle the end of a connection, perhaps of one that left the session before."""
        for direction, each in self._halves.items():
            if each is half:
                return [effect for effect in self._drop(direction) if effect != Close(half)]
        return []

    def _drop(self, direction: Direction) -> list[Effect]:
        """Remove a connection; if the peer is up, remove the other one, too."""
        if not self.is_up:
            return [Close(self._halves.pop(direction))]
        closing: list[Effect] = [Close(each) for each in self._halves.values()]
        self._halves.clear()
        return [*closing, Lost()]

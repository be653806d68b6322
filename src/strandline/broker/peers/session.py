"""The state of a peer: the two connections with it, as a pure state machine.

Frames to a peer go over the connection we made to it (``out``), frames from it come over the one it
made to us (``in``). A peer is *up* while both are open and were made by one incarnation of it.

Rules: frames are sent, and handed up, only while the peer is up. While it is up, the end of one
connection ends both. So whenever a frame is lost, both brokers hear that the other was lost, and
their cores begin anew; an answer cannot vanish between two connections unnoticed. While it is not
up no frame is lost by the end of one connection, and the other may stay.

Invariants: ``Back`` and ``Lost`` alternate, ``Back`` first. A connection that leaves the session
was closed, or is told to close. The later handshake wins: an earlier connection of the same
direction, or of another incarnation, belongs to a process or a session that is gone.
"""

from dataclasses import dataclass
from typing import Final, Literal, Protocol

Direction = Literal["in", "out"]
OTHER: Final[dict[Direction, Direction]] = {"in": "out", "out": "in"}


class Half(Protocol):
    """A connection, after its handshake."""

    @property
    def incarnation(self) -> str:
        """Of the peer."""
        ...


@dataclass(frozen=True, slots=True)
class Back:
    """Tell the owner that the peer is there."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Tell the owner that the peer is gone; what was sent may not have arrived."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close a connection, which is in the session no more."""

    half: Half


Effect = Back | Lost | Close


class PeerSession:
    """The connections with one peer."""

    def __init__(self) -> None:
        self._halves: dict[Direction, Half] = {}

    @property
    def is_up(self) -> bool:
        """Whether frames flow."""
        return len(self._halves) == len(OTHER)

    def opened(self, direction: Direction, half: Half) -> list[Effect]:
        """A handshake was completed."""
        effects = self._drop(direction) if direction in self._halves else []
        other = self._halves.get(OTHER[direction])
        if other is not None and other.incarnation != half.incarnation:
            effects.append(Close(self._halves.pop(OTHER[direction])))
        self._halves[direction] = half
        if self.is_up:
            effects.append(Back())
        return effects

    def closed(self, half: Half) -> list[Effect]:
        """A connection ended; perhaps one that left the session long ago."""
        for direction, each in self._halves.items():
            if each is half:
                return [effect for effect in self._drop(direction) if effect != Close(half)]
        return []

    def _drop(self, direction: Direction) -> list[Effect]:
        """Take a connection out, and the other with it if frames flow."""
        if not self.is_up:
            return [Close(self._halves.pop(direction))]
        closing: list[Effect] = [Close(each) for each in self._halves.values()]
        self._halves.clear()
        return [*closing, Lost()]

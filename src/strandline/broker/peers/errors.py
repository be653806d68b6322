"""The errors that end a connection between two brokers.

Rules: these errors never leave the package. They close a connection and are logged, and the owner
of the link is notified that the peer is disconnected. So they are no ``StrandlineError`` and have
no code for clients.
"""

from enum import StrEnum


class PeerFrameError(Exception):
    """Bytes that are no frame, or a frame over a limit; later bytes cannot be decoded either."""


class HandshakeRejection(StrEnum):
    """Why a broker rejects a handshake; sent to the peer, so the values must not change."""

    NOT_A_PEER = "not_a_peer"
    VERSION = "version"
    OTHER_CLUSTER = "other_cluster"
    OWN_ID = "own_id"
    WRONG_BROKER = "wrong_broker"
    UNKNOWN_BROKER = "unknown_broker"
    OTHER_DIRECTORY = "other_directory"
    CERTIFICATE = "certificate"


class HandshakeError(Exception):
    """The handshake of a peer is rejected.

    Args:
        reason: a stable code.
        message: for people; says what is wrong, and what was expected.
    """

    def __init__(self, reason: HandshakeRejection, message: str) -> None:
        super().__init__(message)
        self.reason = reason

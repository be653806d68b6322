"""The errors that end a connection between two brokers.

Rules: these never leave the package. They close a connection and are logged, and the owner of the
link is notified that the peer is disconnected; so they are no ``StrandlineError`` and have no code
for clients.
"""

from enum import StrEnum


class PeerFrameError(Exception):
    """Bytes that are not a frame, or a frame over a limit; nothing more can be decoded."""


class HandshakeRejection(StrEnum):
    """Why a broker rejects a handshake; sent to the peer, so names are stable."""

    NOT_A_PEER = "not_a_peer"
    VERSION = "version"
    OTHER_CLUSTER = "other_cluster"
    OWN_ID = "own_id"
    WRONG_BROKER = "wrong_broker"
    UNKNOWN_BROKER = "unknown_broker"
    OTHER_DIRECTORY = "other_directory"
    CERTIFICATE = "certificate"


class HandshakeError(Exception):
    """The peer is rejected.

    Args:
        reason: a stable code.
        message: for people: what is wrong, and what was expected.
    """

    def __init__(self, reason: HandshakeRejection, message: str) -> None:
        super().__init__(message)
        self.reason = reason

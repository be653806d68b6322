"""The errors that end a connection between two brokers.

Rules: these never leave the package. They close a connection and are logged, and the owner of the
link is notified that the peer is disconnected; so they are no ``StrandlineError`` and have no code
for clients.
"""

from enum import StrEnum


class PeerFrameError(Exception):
    """Bytes that are no frame, or one over a limit; the stream cannot be read on."""


class HandshakeRejection(StrEnum):
    """Why a broker does not want to talk; crosses the wire, so names are not changed."""

    NOT_A_PEER = "not_a_peer"
    VERSION = "version"
    OTHER_CLUSTER = "other_cluster"
    OWN_ID = "own_id"
    WRONG_BROKER = "wrong_broker"
    UNKNOWN_BROKER = "unknown_broker"
    OTHER_DIRECTORY = "other_directory"
    CERTIFICATE = "certificate"


class HandshakeError(Exception):
    """The other end is refused.

    Args:
        reason: for programs.
        message: for people; names what is wrong and what was expected.
    """

    def __init__(self, reason: HandshakeRejection, message: str) -> None:
        super().__init__(message)
        self.reason = reason

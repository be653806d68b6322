"""The sizes and timeouts of the peer link, in one place."""

import msgspec


class LinkLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a link; every length from outside is checked before memory is allocated."""

    frame_bytes_max: int = 64 << 20
    """The largest frame, its prefix included; more than ``limits.batch_bytes`` of the broker."""
    attachments_max: int = 65_536
    """Attachments of one frame."""
    queue_bytes_max: int = 64 << 20
    """Bytes that wait for a peer that does not take them; then it counts as lost. One frame may
    always wait, however large."""
    write_high_bytes: int = 1 << 20
    """Bytes the transport may hold before frames wait in our own queue, which is counted."""

    handshake_bytes_max: int = 4096
    """The largest frame of a peer that has not said who it is."""
    handshake_timeout_s: float = 2.0
    strangers_max: int = 64
    """Accepted connections that have not said who they are; the oldest makes room."""
    connect_timeout_s: float = 2.0
    patience_s: float = 5.0
    """How long a broker may be missing after we began to call it before that is worth a warning:
    brokers that start together do not all listen at once."""

    backoff_min_s: float = 0.05
    backoff_max_s: float = 1.0

    keepalive_idle_s: int = 5
    """Silence after which the kernel asks whether the other machine is there."""
    keepalive_interval_s: int = 1
    keepalive_probes: int = 3
    unacked_timeout_ms: int = 5000
    """How long sent bytes may stay unacknowledged by the other kernel."""

    close_timeout_s: float = 1.0
    """How long a stop waits for queued frames to go out."""

    def __post_init__(self) -> None:
        """Assert that the limits do not contradict each other."""
        assert 0 < self.handshake_bytes_max <= self.frame_bytes_max
        assert 0 < self.backoff_min_s <= self.backoff_max_s
        assert self.attachments_max >= 0
        assert self.strangers_max > 0

"""The sizes and timeouts of the peer link, in one place."""

import msgspec


class LinkLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a link; each length from outside is checked before memory is allocated."""

    frame_bytes_max: int = 64 << 20
    """The largest frame with its prefix; more than ``limits.batch_bytes`` of the broker."""
    attachments_max: int = 65_536
    """The most attachments of one frame."""
    queue_bytes_max: int = 64 << 20
    """The most bytes that may wait for a peer that does not accept them; beyond, the peer counts as
    lost. A single frame may always wait, however large."""
    write_high_bytes: int = 1 << 20
    """The most bytes in the transport before frames wait in the link's own queue."""

    handshake_bytes_max: int = 4096
    """The largest frame before the handshake."""
    handshake_timeout_s: float = 2.0
    strangers_max: int = 64
    """The most accepted connections without a handshake; beyond, the oldest one is closed."""
    connect_timeout_s: float = 2.0
    patience_s: float = 5.0
    """How long a broker may be unreachable after the first attempt before that is logged as a
    warning: brokers that start together do not all listen at once."""

    backoff_min_s: float = 0.05
    backoff_max_s: float = 1.0

    keepalive_idle_s: int = 5
    """Seconds without bytes after which the kernel probes the other machine."""
    keepalive_interval_s: int = 1
    keepalive_probes: int = 3
    unacked_timeout_ms: int = 5000
    """The time that the other kernel may leave sent bytes unacknowledged."""

    close_timeout_s: float = 1.0
    """The longest wait of a stop for queued frames to be sent."""

    def __post_init__(self) -> None:
        """Check that the limits do not contradict each other."""
        assert 0 < self.handshake_bytes_max <= self.frame_bytes_max
        assert 0 < self.backoff_min_s <= self.backoff_max_s
        assert self.attachments_max >= 0
        assert self.strangers_max > 0

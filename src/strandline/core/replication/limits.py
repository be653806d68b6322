"""The timeouts of replication and the bytes it may have in flight."""

import msgspec


class ReplicationLimits(msgspec.Struct, frozen=True):
    """Times in milliseconds; the same on every broker."""

    replica_lag_ms_max: int = 10_000
    """An in-sync replica that is behind for longer leaves the ISR."""

    resend_ms: int = 500
    """Ask again when an answer is outstanding for this long. That is rare, since broken links are
    reported."""

    window_bytes: int = 16 << 20
    """Bytes on the way to a follower that it has not synced yet."""

    spared_window_bytes: int = 4 << 20
    """The same for a follower that is not in sync, while publishers are active: they come first on
    the leader's disk and network, as long as the follower still catches up."""

    publishing_ms: int = 100
    """Publishers count as active for this long after a record."""

    read_bytes: int = 4 << 20
    """Read from the log at once for a follower that is behind."""

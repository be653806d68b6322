"""Parts that tasks staged, and publishing them once from the driver.

Rules: a part is what one task staged under a batch of a transaction; publishing names the parts
that Spark's winners made, all at once. Publishing again is acknowledged if the fingerprint is the
same. Must not know Spark.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.client.staged_write import StagedWrite
from strandline.spark.connection import with_retries
from strandline.spark.rows import Fingerprint


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a task staged."""

    txn_id: str
    batch: int
    ref: str
    """Empty if the batch is published already."""
    fingerprint: Fingerprint


def begin_stage(
    server: str, batch: tuple[str, int], *, timeout_ms: int, stage_timeout_ms: int
) -> StagedWrite:
    """Begin to stage rows; a context, whose end discards what was not finished.

    Args:
        server: a broker.
        batch: transaction id and number.
        timeout_ms: how long a broker may stay away before this is an error.
        stage_timeout_ms: how long what is staged waits to be published.

    Raises:
        StrandlineError: no broker in time, or a later batch is published.
    """
    return with_retries(
        server,
        lambda client: client.stage(*batch, timeout_s=stage_timeout_ms / 1000),
        timeout_ms=timeout_ms,
    )


def publish(server: str, parts: Sequence[Part], *, timeout_ms: int) -> None:
    """Make the rows of all parts visible at once, or acknowledge that they are.

    Args:
        server: a broker.
        parts: of one batch; those without rows are left out.
        timeout_ms: how long a broker may stay away.

    Raises:
        StrandlineError: the batch is published with other rows, a later one is published, or a
            part is gone.
    """
    wrote = [part for part in parts if part.fingerprint.rows]
    if not wrote:
        return
    refs = [part.ref for part in wrote if part.ref]
    total = sum((part.fingerprint for part in wrote), Fingerprint())
    with_retries(
        server,
        lambda client: client.commit_staged(
            wrote[0].txn_id, wrote[0].batch, refs, fingerprint=str(total)
        ),
        timeout_ms=timeout_ms,
    )

"""Staged parts of tasks, and their commit by the driver.

Rules: a part is what one task staged under a batch of a transaction; the commit names the parts of
the attempts that Spark chose, all at once. A repeated commit succeeds if the fingerprint is the
same. Must not know Spark.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.client.transactions.staged_write import StagedWrite
from strandline.spark.connection import with_retries
from strandline.spark.rows import Fingerprint


@dataclass(frozen=True, kw_only=True)
class Part:
    """The staged rows of a task."""

    txn_id: str
    batch: int
    ref: str
    """A reference to the part, for the commit; empty if the batch is already committed."""
    fingerprint: Fingerprint


def begin_stage(
    server: str, batch: tuple[str, int], *, timeout_ms: int, stage_timeout_ms: int
) -> StagedWrite:
    """Begin to stage rows; leaving the context discards a part that was not finished.

    Args:
        server: the address of a broker.
        batch: transaction id and batch number.
        timeout_ms: how long a broker may be unreachable before this is an error.
        stage_timeout_ms: how long staged rows wait to be committed before they are discarded.

    Raises:
        StrandlineError: no broker answered in time, or a later batch is committed.
    """
    return with_retries(
        server,
        lambda client: client.stage(*batch, timeout_s=stage_timeout_ms / 1000),
        timeout_ms=timeout_ms,
    )


def publish(server: str, parts: Sequence[Part], *, timeout_ms: int) -> None:
    """Make the rows of all parts visible at once; has no effect when repeated.

    Args:
        server: the address of a broker.
        parts: the parts of one batch; parts without rows are left out.
        timeout_ms: how long a broker may be unreachable.

    Raises:
        StrandlineError: the batch is committed with other rows, a later batch is committed, or a
            part does not exist.
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

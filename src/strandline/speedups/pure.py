"""The functions in plain Python, and what each of them is for."""

from collections.abc import Sequence


def ack_lines(
    operation: bytes,
    replies: Sequence[bytes | None],
    sids: Sequence[bytes | None] | None,
    *,
    before: bytes,
    after: bytes,
    sequence: int,
) -> bytes:
    """Return the protocol lines that acknowledge consecutive records.

    Args:
        operation: with the space after it, such as ``MSG``.
        replies: the reply subject of each record; None: it is not acknowledged.
        sids: the subscription that receives each reply, None if there is none; or None for all, of
            an operation without sids.
        before: the payload up to the sequence.
        after: the payload after the sequence.
        sequence: of the first record, below 2^63 as that of the last.
    """
    lines: list[bytes] = []
    for number, reply in enumerate(replies):
        to = reply
        if sids is not None:
            sid = sids[number]
            to = None if reply is None or sid is None else b"%b %b" % (reply, sid)
        if to is not None:
            payload = b"%b%d%b" % (before, sequence + number, after)
            lines.append(b"%b%b %d\r\n%b\r\n" % (operation, to, len(payload), payload))
    return b"".join(lines)

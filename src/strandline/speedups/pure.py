"""The functions in plain Python, and what each of them is for."""

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

DIGITS_MAX: Final = 19
"""Numbers with this many digits or more are rejected unread: they exceed every limit."""
_ACK_NUMBERS: Final = re.compile(
    rb"\.[0-9]{1,20}\.([0-9]{1,20})\.([0-9]{1,20})\.[0-9]{1,20}\.[0-9]{1,20}"
)

_ONE_RECORD: Final = struct.Struct("<IIIBBHqIIIIqqqhHiq")
"""The header of a batch, and the column of one timestamp."""
_MAGIC, _VERSION, _NOBODY = 0x314E_5453, 1, -1
_HEADER_BYTES, _CRC_FROM = 72, 8
_PADDING: Final = [bytes(-length % 8) for length in range(8)]


def encode_record(
    value: bytes,
    subject: bytes,
    checksum: Callable[[memoryview], int],
    *,
    base_offset: int,
    leader_epoch: int,
    timestamp_ns: int,
) -> bytes | bytearray:
    """Return a batch of one record without key and headers, in the format of ``record.batch``.

    Args:
        value: the record's.
        subject: the record's, in UTF-8.
        checksum: returns the CRC-32C of bytes.
        base_offset: the record's offset.
        leader_epoch: the epoch of its leader.
        timestamp_ns: its time.
    """
    named, size = len(subject), len(value)
    length = _HEADER_BYTES + 16 + named + -named % 8 + size + -size % 8
    if length >= 1 << 31:
        raise OverflowError("a batch that long")
    head = _ONE_RECORD.pack(
        _MAGIC, 0, length, _VERSION, 0, 0, base_offset, 1, 0, leader_epoch, named, timestamp_ns,
        timestamp_ns, _NOBODY, _NOBODY, 1, _NOBODY, timestamp_ns,
    )  # fmt: skip
    ends = struct.pack("<ii", 0, size)
    batch = bytearray().join((head, subject, _PADDING[named % 8], ends, value, _PADDING[size % 8]))
    struct.pack_into("<I", batch, 4, checksum(memoryview(batch)[_CRC_FROM:]))
    return batch


def ack_lines(
    operation: bytes,
    runs: Sequence[tuple[bytes, bytes, int, Sequence[bytes | None]]],
    sids: Sequence[bytes | None] | None,
) -> bytes:
    """Return the NATS protocol lines that acknowledge runs of consecutive records.

    Args:
        operation: the operation with the space after it, such as ``MSG``.
        runs: for each run the payload up to the sequence, the payload after it, the sequence of the
            first record, below 2^63 as that of the last, and the reply subject of each record;
            None: it is not acknowledged.
        sids: the id of the subscription that receives each reply, None if nobody does. None
            instead of a list: the operation has no sids.
    """
    lines: list[bytes] = []
    number = 0
    for before, after, first, replies in runs:
        around = len(before) + len(after)
        for sequence, reply in enumerate(replies, first):
            sid = reply if sids is None else sids[number]
            number += 1
            if reply is None or sid is None:
                continue
            digits = b"%d" % sequence
            payload = around + len(digits), before, digits, after
            if sids is None:
                lines.append(b"%b%b %d\r\n%b%b%b\r\n" % (operation, reply, *payload))
            else:
                lines.append(b"%b%b %b %d\r\n%b%b%b\r\n" % (operation, reply, sid, *payload))
    return b"".join(lines)


def split_messages(
    data: bytes,
    position: int,
    messages: list[Any],
    *,
    is_published: bool,
    line_max: int,
    payload_max: int,
    count_max: int,
) -> int:
    """Parse messages from NATS protocol bytes and append them to a list, up to the first other one.

    Args:
        data: the bytes.
        position: where an operation begins.
        messages: receives (subject, sid, reply, header block, payload) of each message; sid is
            empty if there is none, reply and header block are None if absent or empty.
        is_published: whether messages are PUB and HPUB, which have no sid, or MSG and HMSG.
        line_max: the longest line.
        payload_max: the largest payload, headers included, below 2^62.
        count_max: the most entries of ``messages``.

    Returns:
        Where parsing stopped: at the end, at an incomplete or malformed message, or at an operation
        that is no message, or that is not written in capitals with one space after it.
    """
    plain, words_min = (b"PUB ", 2) if is_published else (b"MSG ", 3)
    end, size_word, size = len(data), b"", 0
    while position < end and len(messages) < count_max:
        line_end = data.find(b"\r\n", position)
        if line_end < 0 or line_end - position > line_max:
            break
        header_size = 0
        if data[position : position + 4] == plain:
            words = data[position + 4 : line_end].split()
        elif data[position : position + 5] == b"H" + plain:
            words = data[position + 5 : line_end].split()
            if len(words) <= words_min or not _is_number(words[-2]):
                break
            header_size = int(words.pop(-2))
        else:
            break
        extra = len(words) - words_min
        if not 0 <= extra <= 1:
            break
        if words[-1] != size_word:  # most messages are as large as the previous one
            if not _is_number(words[-1]):
                break
            size_word = words[-1]
            size = int(size_word)
        start = line_end + 2
        stop = start + size
        if size > payload_max or header_size > size or data[stop : stop + 2] != b"\r\n":
            break
        sid = b"" if is_published else words[1]
        reply = words[-2] if extra else None
        split = start + header_size
        block = data[start:split] if header_size else None
        messages.append((words[0], sid, reply, block, data[split:stop]))
        position = stop + 2
    return position


def _is_number(word: bytes) -> bool:
    """Return whether a word is a number of fewer than ``DIGITS_MAX`` digits."""
    return len(word) < DIGITS_MAX and word.isdigit()


def delivery_frames(
    operations: tuple[bytes, bytes],
    lefts: Sequence[bytes],
    rights: Sequence[bytes],
    *,
    columns: tuple[Sequence[int], Sequence[int], Sequence[bytes], Sequence[bytes]],
    first: int,
    pending: int,
) -> bytes:
    """Return the frames that deliver a run of records, each with a reply subject of its own.

    Args:
        operations: the operation of a record without headers and that of one with headers, each
            with the space after it.
        lefts: the parts of a frame's line before the numbers; taken in turn.
        rights: the parts after the numbers, before the sizes; taken in turn.
        columns: sequences, times in nanoseconds, header blocks and payloads of the records.
        first: the number of the first delivery; the others follow it.
        pending: how many records follow the first one; one fewer for each of the others.
    """
    plain, with_headers = operations
    frames: list[bytes] = []
    for number, (sequence, time_ns, block, payload) in enumerate(zip(*columns, strict=True)):
        left, right = lefts[number % len(lefts)], rights[number % len(rights)]
        numbers = (sequence, first + number, max(0, time_ns), max(0, pending - number))
        line = b"%b%b%d.%d.%d.%d%b" % (with_headers if block else plain, left, *numbers, right)
        sizes = (
            b"%d %d" % (len(block), len(block) + len(payload)) if block else b"%d" % len(payload)
        )
        frames.append(b"%b %b\r\n%b%b\r\n" % (line, sizes, block, payload))
    return b"".join(frames)


def plain_acks(
    messages: Sequence[Any], payloads: frozenset[bytes]
) -> dict[bytes, list[tuple[int, int]]] | None:
    """Return stream sequence and delivery number of each message if all are plain acks.

    Args:
        messages: as ``split_messages`` returns them.
        payloads: the payloads that a plain acknowledgement may have.

    Returns:
        The two numbers of each message, in order, by the part of the subject before its five last
        tokens. These must be numbers of at most 20 digits; the two are the second and the third.
        None if a message has a reply subject, another payload, or a subject without such numbers.
    """
    found: dict[bytes, list[tuple[int, int]]] = {}
    for subject, _, reply, _, payload in messages:
        beginning = subject.rsplit(b".", 5)[0]
        match = _ACK_NUMBERS.fullmatch(subject, len(beginning))
        if reply is not None or payload not in payloads or match is None:
            return None
        found.setdefault(beginning, []).append((int(match[1]), int(match[2])))
    return found

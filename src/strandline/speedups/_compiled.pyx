# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True
# cython: overflowcheck=True, embedsignature=True
"""The functions of ``pure``, compiled; see there what each of them is for.

Rules: bytes are read by checked indexing, or copied by ``_put``, which checks. Arguments of other
types than ``pure`` names raise TypeError.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcmp, memcpy


cdef Py_ssize_t _put(bytes target, Py_ssize_t at, bytes piece) except -1:
    """Copy a piece into bytes that are being built, at a position; return where it ends."""
    cdef Py_ssize_t size = len(piece)
    if at < 0 or size > len(target) - at:
        raise IndexError("a piece does not fit")
    memcpy(PyBytes_AS_STRING(target) + at, PyBytes_AS_STRING(piece), size)
    return at + size


cdef bytes _cut(bytes data, Py_ssize_t start, Py_ssize_t stop):
    """Return a copy of a part."""
    if not 0 <= start <= stop <= len(data):
        raise IndexError("no such part")
    return PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + start, stop - start)


cdef bint _is_at(bytes data, Py_ssize_t start, Py_ssize_t stop, bytes piece) except -1:
    """Return whether a part is equal to a piece."""
    if not 0 <= start <= stop <= len(data):
        raise IndexError("no such part")
    cdef Py_ssize_t size = stop - start
    return size == len(piece) and not memcmp(
        PyBytes_AS_STRING(data) + start, PyBytes_AS_STRING(piece), size
    )


cdef Py_ssize_t _put_number(bytes target, Py_ssize_t at, long long number) except -1:
    """Write a non-negative number in decimal digits; return where it ends."""
    cdef Py_ssize_t end = at + _digits(number)
    cdef Py_ssize_t place = end
    if at < 0 or end > len(target):
        raise IndexError("a number does not fit")
    while place > at:
        place -= 1
        PyBytes_AS_STRING(target)[place] = <char> (48 + number % 10)
        number //= 10
    return end


cdef Py_ssize_t _digits(long long number) except -1:
    """Return how many decimal digits a number has."""
    if number < 0:
        raise OverflowError("a negative number")
    cdef Py_ssize_t count = 1
    while number > 9:
        number //= 10
        count += 1
    return count


cdef enum:
    MAGIC = 0x314E5453
    VERSION = 1
    HEADER_BYTES = 72
    CRC_FROM = 8


cdef Py_ssize_t _put_integer(
    bytes target, Py_ssize_t at, unsigned long long value, Py_ssize_t width
) except -1:
    """Write the low bytes of an integer, the lowest first; return where it ends."""
    cdef Py_ssize_t end = at + width
    if at < 0 or end > len(target):
        raise IndexError("an integer does not fit")
    while at < end:
        PyBytes_AS_STRING(target)[at] = <char> (value & 255)
        value >>= 8
        at += 1
    return end


def encode_record(
    bytes value not None,
    bytes subject not None,
    checksum not None,
    *,
    long long base_offset,
    unsigned int leader_epoch,
    long long timestamp_ns,
):
    cdef Py_ssize_t named = len(subject), size = len(value), at
    cdef Py_ssize_t after_name = (8 - named % 8) % 8, after_value = (8 - size % 8) % 8
    cdef Py_ssize_t length = HEADER_BYTES + 16 + named + after_name + size + after_value
    cdef unsigned long long time = <unsigned long long> timestamp_ns
    cdef unsigned long long nobody = <unsigned long long> -1
    if length > 0x7FFFFFFF:
        raise OverflowError("a batch that long")
    cdef bytes batch = PyBytes_FromStringAndSize(NULL, length)
    at = _put_integer(batch, 0, MAGIC, 8)
    at = _put_integer(batch, at, length, 4)
    at = _put_integer(batch, at, VERSION, 4)  # no codec and no attributes
    at = _put_integer(batch, at, <unsigned long long> base_offset, 8)
    at = _put_integer(batch, at, 1, 8)  # one record, and no other offset
    at = _put_integer(batch, _put_integer(batch, at, leader_epoch, 4), named, 4)
    at = _put_integer(batch, _put_integer(batch, at, time, 8), time, 8)
    at = _put_integer(batch, _put_integer(batch, at, nobody, 8), nobody, 2)
    at = _put_integer(batch, _put_integer(batch, at, 1, 2), nobody, 4)  # one subject
    at = _put(batch, _put_integer(batch, at, time, 8), subject)
    at = _put_integer(batch, _put_integer(batch, at, 0, after_name), 0, 4)
    at = _put(batch, _put_integer(batch, at, size, 4), value)
    _put_integer(batch, at, 0, after_value)
    _put_integer(batch, 4, <unsigned int> checksum(memoryview(batch)[CRC_FROM:]), 4)
    return batch


def ack_lines(bytes operation not None, runs not None, sids):
    # Tuples cannot change between the two walks, of which the first finds out the size.
    cdef tuple walk = tuple(runs)
    cdef tuple by = tuple(sids) if sids is not None else None
    cdef tuple to
    cdef Py_ssize_t fixed = len(operation) + len(b" \r\n\r\n")
    cdef Py_ssize_t number = 0, size = 0, at = 0, around
    cdef long long sequence
    cdef bytes lines, before, after, reply, sid
    for before, after, sequence, replies in walk:
        around = len(before) + len(after)
        to = tuple(replies)
        for reply in to:
            sid = by[number] if by is not None else b""
            if reply is not None and sid is not None:
                size += 1 + len(sid) if by is not None else 0
                size += fixed + around + len(reply) + _digits(sequence)
                size += _digits(around + _digits(sequence))
            number += 1
            sequence += 1
    lines = PyBytes_FromStringAndSize(NULL, size)
    number = 0
    for before, after, sequence, replies in walk:
        around = len(before) + len(after)
        to = tuple(replies)
        for reply in to:
            sid = by[number] if by is not None else b""
            if reply is not None and sid is not None:
                at = _put(lines, _put(lines, at, operation), reply)
                if by is not None:
                    at = _put(lines, _put(lines, at, b" "), sid)
                at = _put_number(lines, _put(lines, at, b" "), around + _digits(sequence))
                at = _put(lines, _put(lines, at, b"\r\n"), before)
                at = _put_number(lines, at, sequence)
                at = _put(lines, _put(lines, at, after), b"\r\n")
            number += 1
            sequence += 1
    if at != size:
        raise ValueError("the replies of a run changed")
    return lines


cdef enum:
    WORDS_MAX = 5  # subject, sid, reply, header size, size
    DIGITS_MAX = 19
    ACK_NUMBERS = 5
    ACK_DIGITS_MAX = 20


cdef struct Words:
    Py_ssize_t count
    Py_ssize_t start[WORDS_MAX]
    Py_ssize_t stop[WORDS_MAX]


cdef Py_ssize_t _line_end(bytes data, Py_ssize_t position, Py_ssize_t line_max) except -2:
    """Return where a line that begins at a position ends; -1 if not within the limit."""
    cdef Py_ssize_t last = min(len(data) - 2, position + line_max)
    while position <= last:
        if data[position] == 13 and data[position + 1] == 10:
            return position
        position += 1
    return -1


cdef int _split_line(bytes data, Py_ssize_t position, Py_ssize_t stop, Words *words) except -1:
    """Find the words between two positions, as ``bytes.split`` does; return 0 if too many."""
    cdef unsigned char byte
    cdef bint is_within = False
    words.count = 0
    while position < stop:
        byte = data[position]
        if byte == 32 or 9 <= byte <= 13:
            if is_within:
                words.stop[words.count - 1] = position
                is_within = False
        elif not is_within:
            if words.count == WORDS_MAX:
                return 0
            words.start[words.count] = position
            words.count += 1
            is_within = True
        position += 1
    if is_within:
        words.stop[words.count - 1] = stop
    return 1


cdef long long _number(bytes data, Py_ssize_t start, Py_ssize_t stop) except -2:
    """Return a word's number; -1 if it is not a number, or too long."""
    cdef long long number = 0
    if not 0 < stop - start < DIGITS_MAX:
        return -1
    while start < stop:
        if not 48 <= data[start] <= 57:
            return -1
        number = number * 10 + (data[start] - 48)
        start += 1
    return number


def split_messages(
    bytes data not None,
    Py_ssize_t position,
    list messages not None,
    *,
    bint is_published,
    Py_ssize_t line_max,
    long long payload_max,
    Py_ssize_t count_max,
):
    cdef Py_ssize_t end = len(data), line_end, start, stop, split, extra, last
    cdef Py_ssize_t words_min = 2 if is_published else 3
    cdef bytes plain = b"PUB " if is_published else b"MSG "
    cdef bytes with_headers = b"HPUB " if is_published else b"HMSG "
    cdef bytes subject = None, sid = b"", reply, block
    cdef long long size, header_size
    cdef bint has_headers
    cdef Words words
    if position < 0:
        raise IndexError("no such position")
    while position < end and len(messages) < count_max:
        line_end = _line_end(data, position, line_max)
        if line_end < 0:
            break
        has_headers = False
        if line_end - position >= 4 and _is_at(data, position, position + 4, plain):
            start = position + 4
        elif line_end - position >= 5 and _is_at(data, position, position + 5, with_headers):
            start = position + 5
            has_headers = True
        else:
            break
        if not _split_line(data, start, line_end, &words):
            break
        extra = words.count - words_min - has_headers
        if not 0 <= extra <= 1:
            break
        last = words.count - 1
        size = _number(data, words.start[last], words.stop[last])
        header_size = 0
        if has_headers:
            header_size = _number(data, words.start[last - 1], words.stop[last - 1])
        start = line_end + 2
        if not 0 <= header_size <= size <= payload_max or size > end - start - 2:
            break
        stop = start + <Py_ssize_t> size
        if data[stop] != 13 or data[stop + 1] != 10:
            break
        # Most messages have the same subject and sid as the previous one: share the objects.
        if subject is None or not _is_at(data, words.start[0], words.stop[0], subject):
            subject = _cut(data, words.start[0], words.stop[0])
        if not is_published and not _is_at(data, words.start[1], words.stop[1], sid):
            sid = _cut(data, words.start[1], words.stop[1])
        last -= 1 + has_headers
        reply = _cut(data, words.start[last], words.stop[last]) if extra else None
        split = start + <Py_ssize_t> header_size
        block = _cut(data, start, split) if header_size else None
        messages.append((subject, sid, reply, block, _cut(data, split, stop)))
        position = stop + 2
    return position


def delivery_frames(
    tuple operations not None,
    lefts not None,
    rights not None,
    *,
    tuple columns not None,
    long long first,
    long long pending,
):
    cdef bytes plain, with_headers
    plain, with_headers = operations
    # The first walk computes the size. Tuples cannot change between the two walks.
    cdef tuple before = tuple(lefts)
    cdef tuple after = tuple(rights)
    cdef tuple sequences, times, blocks, payloads
    sequences, times, blocks, payloads = [tuple(column) for column in columns]
    cdef Py_ssize_t count = len(sequences)
    cdef Py_ssize_t number, at = 0, size = 0, whole
    cdef long long sequence, time_ns, left
    cdef bytes frames, block, payload, head, tail
    if not len(times) == len(blocks) == len(payloads) == count:
        raise ValueError("columns of different lengths")
    if count and not (before and after):
        raise ZeroDivisionError("nothing to take in turns")
    for number in range(count):
        head, tail = before[number % len(before)], after[number % len(after)]
        block, payload = blocks[number], payloads[number]
        sequence, time_ns = sequences[number], max(0, <long long> times[number])
        left = max(0, pending - number)
        whole = len(block) + len(payload)
        if block:
            size += len(with_headers) + 1 + _digits(len(block))
        else:
            size += len(plain)
        size += len(head) + _digits(sequence) + _digits(first + number) + _digits(time_ns)
        size += _digits(left) + len(tail) + _digits(whole) + whole + len(b"... \r\n\r\n")
    frames = PyBytes_FromStringAndSize(NULL, size)
    for number in range(count):
        block, payload = blocks[number], payloads[number]
        head, tail = before[number % len(before)], after[number % len(after)]
        sequence, time_ns = sequences[number], max(0, <long long> times[number])
        at = _put(frames, _put(frames, at, with_headers if block else plain), head)
        at = _put(frames, _put_number(frames, at, sequence), b".")
        at = _put(frames, _put_number(frames, at, first + number), b".")
        at = _put(frames, _put_number(frames, at, time_ns), b".")
        at = _put_number(frames, at, max(0, pending - number))
        at = _put(frames, _put(frames, at, tail), b" ")
        if block:
            at = _put(frames, _put_number(frames, at, len(block)), b" ")
        at = _put(frames, _put_number(frames, at, len(block) + len(payload)), b"\r\n")
        at = _put(frames, _put(frames, _put(frames, at, block), payload), b"\r\n")
    return frames


def plain_acks(messages not None, frozenset payloads not None):
    cdef dict found = {}
    cdef list several = None
    cdef bytes subject, beginning = None
    cdef Py_ssize_t position, end, number
    cdef Py_ssize_t starts[ACK_NUMBERS]
    cdef Py_ssize_t stops[ACK_NUMBERS]
    for subject, _, reply, _, payload in tuple(messages):
        if reply is not None or payload not in payloads:
            return None
        position, number = len(subject), ACK_NUMBERS
        while number:
            number -= 1
            end = position
            while position > 0 and 48 <= subject[position - 1] <= 57:
                position -= 1
            if not 0 < end - position <= ACK_DIGITS_MAX:
                return None
            if position == 0 or subject[position - 1] != 46:
                return None
            starts[number], stops[number] = position, end
            position -= 1
        # Most messages acknowledge the same consumer as the previous one.
        if beginning is None or not _is_at(subject, 0, position, beginning):
            beginning = _cut(subject, 0, position)
            several = found.setdefault(beginning, [])
        several.append((_whole(subject, starts[1], stops[1]), _whole(subject, starts[2], stops[2])))
    return found


cdef object _whole(bytes data, Py_ssize_t start, Py_ssize_t stop):
    """Return the number of some digits, however large."""
    cdef long long number = _number(data, start, stop)
    return number if number >= 0 else int(_cut(data, start, stop))

# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True
# cython: overflowcheck=True, embedsignature=True
"""The functions of ``pure``, compiled; see there what each of them is for.

Rules: bytes are read by checked indexing, or copied by ``_put``, which checks. Arguments of other
types than ``pure`` names raise TypeError.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcpy


cdef Py_ssize_t _put(bytes target, Py_ssize_t at, bytes piece) except -1:
    """Copy a piece into new bytes that nobody else has seen yet; return where it ends."""
    cdef Py_ssize_t size = len(piece)
    if at < 0 or size > len(target) - at:
        raise IndexError("a piece does not fit")
    memcpy(PyBytes_AS_STRING(target) + at, PyBytes_AS_STRING(piece), size)
    return at + size


cdef Py_ssize_t _put_number(bytes target, Py_ssize_t at, long long number) except -1:
    """Write a number that is not negative in decimal digits; return where it ends."""
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


def ack_lines(
    bytes operation not None,
    replies not None,
    sids,
    *,
    bytes before not None,
    bytes after not None,
    long long sequence,
):
    cdef Py_ssize_t count = len(replies)
    cdef Py_ssize_t around = len(before) + len(after)
    cdef Py_ssize_t fixed = len(operation) + len(b" \r\n\r\n") + around
    cdef Py_ssize_t number, size = 0, at = 0
    cdef bytes lines, reply, sid
    # Twice the same walk, to allocate once; both sequences are made tuples, which cannot change
    # between the walks.
    cdef tuple to = tuple(replies)
    cdef tuple by = tuple(sids) if sids is not None else None
    if by is not None and len(by) < count:
        raise IndexError("a sid for each reply")
    for number in range(count):
        reply = to[number]
        if reply is None:
            continue
        if by is not None:
            sid = by[number]
            if sid is None:
                continue
            size += 1 + len(sid)
        size += fixed + len(reply) + _digits(sequence + number)
        size += _digits(around + _digits(sequence + number))
    lines = PyBytes_FromStringAndSize(NULL, size)
    for number in range(count):
        reply = to[number]
        if reply is None:
            continue
        sid = by[number] if by is not None else None
        if by is not None and sid is None:
            continue
        at = _put(lines, _put(lines, at, operation), reply)
        if sid is not None:
            at = _put(lines, _put(lines, at, b" "), sid)
        at = _put_number(lines, _put(lines, at, b" "), around + _digits(sequence + number))
        at = _put(lines, _put(lines, at, b"\r\n"), before)
        at = _put_number(lines, at, sequence + number)
        at = _put(lines, _put(lines, at, after), b"\r\n")
    return lines

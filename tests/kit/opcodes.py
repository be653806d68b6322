"""The cost of code in executed Python opcodes: the same on every machine."""

import contextlib
import sys


class Count:
    """The number of opcodes of a block, in ``opcodes`` after the block."""

    opcodes = 0


@contextlib.contextmanager
def counted():
    """Count the opcodes that this thread executes within the block."""
    count = Count()

    def step(frame, event, _):
        frame.f_trace_opcodes = True
        count.opcodes += event == "opcode"
        return step

    before = sys.gettrace()
    # Python 3.12 traces opcodes only if a frame asked for that before the tracing began.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(step)
    try:
        yield count
    finally:
        sys.settrace(before)


def opcodes_of(action):
    """Return the number of opcodes that an action takes."""
    with counted() as count:
        action()
    return count.opcodes

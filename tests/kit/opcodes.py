"""How much work something is, counted in Python's own steps: the same on every machine."""

import contextlib
import sys


class Count:
    """The steps of a block: read ``opcodes`` after it."""

    opcodes = 0


@contextlib.contextmanager
def counted():
    """Count the steps of this thread within the block."""
    count = Count()

    def step(frame, event, _):
        frame.f_trace_opcodes = True
        count.opcodes += event == "opcode"
        return step

    before = sys.gettrace()
    # Python 3.12 has no such events unless a frame asked for them before tracing begins.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(step)
    try:
        yield count
    finally:
        sys.settrace(before)


def opcodes_of(action):
    """How many steps an action takes."""
    with counted() as count:
        action()
    return count.opcodes

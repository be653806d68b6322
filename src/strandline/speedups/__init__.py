"""Functions over bytes that run for each record or message, compiled where that was possible.

``pure`` has each function in plain Python, ``_compiled.pyx`` the same in Cython. Both return the
same for the same arguments, malformed ones included: tests/property/test_speedups.py compares them.
A new function is written in both, named twice below, and compared there.

Rules: built-in types in, built-in types out. Must not know the broker.
"""

import importlib
import os

from strandline.speedups import pure

IS_COMPILED = False
"""Whether the compiled functions are used."""

ack_lines = pure.ack_lines
delivery_frames = pure.delivery_frames
encode_record = pure.encode_record
plain_acks = pure.plain_acks
split_messages = pure.split_messages

if not os.environ.get("STRANDLINE_PURE_PYTHON"):
    try:
        # Imported by name, because linters and type checkers find no Python file of this module.
        _compiled = importlib.import_module("strandline.speedups._compiled")
        ack_lines, delivery_frames, encode_record, plain_acks, split_messages = (
            _compiled.ack_lines,
            _compiled.delivery_frames,
            _compiled.encode_record,
            _compiled.plain_acks,
            _compiled.split_messages,
        )
        IS_COMPILED = True
    except (ImportError, AttributeError):
        pass  # built without a compiler, or before one of the functions was added

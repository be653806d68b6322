"""Integers of requests and answers: those that fit into int64, as Go's clients decode them. Pure.

Rule: every integer of a body has one of these types. A larger one makes the body invalid JSON, as
    at
nats-server. So no integer is too large for a float, a file or an answer.
"""

from typing import Annotated, Final

import msgspec

INT64_MAX: Final = (1 << 63) - 1

Int64 = Annotated[int, msgspec.Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]

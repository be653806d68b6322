"""The stored state of a consumer: what comes back, and what is not one."""

import pytest

from strandline.core.consumers.state import ConsumerState, decode_state, encode_state
from strandline.errors import InvalidRecordError


def test_a_state_comes_back():
    """The empty one of a new consumer as well."""
    state = ConsumerState()
    assert decode_state(encode_state(state)) == state


@pytest.mark.parametrize("data", [b"", b"\xc1", b"nonsense", encode_state(ConsumerState())[:-1]])
def test_other_bytes_are_no_state(data):
    """They are not taken for an empty one: acknowledged records would be delivered again."""
    with pytest.raises(InvalidRecordError, match="not the state of a consumer"):
        decode_state(data)

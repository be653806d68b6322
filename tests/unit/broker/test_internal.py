"""Streams that only the broker changes."""

import pytest

from strandline.broker.internal import check_public
from strandline.errors import InvalidRequestError


def test_streams_of_the_broker_are_not_the_users():
    """Two underscores in front tell them."""
    check_public("_orders")
    check_public("orders__")
    with pytest.raises(InvalidRequestError, match=r"'__groups'.*broker's own"):
        check_public("__groups")

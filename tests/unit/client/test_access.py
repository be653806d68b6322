"""Tokens and rules at the client: what is refused before anybody is asked."""

import math

import pytest

from strandline.client.access import AccessControl
from strandline.errors import InvalidRequestError


@pytest.mark.parametrize("days", [math.inf, -math.inf, math.nan])
def test_days_that_no_clock_counts_are_rejected(days):
    """With a typed error that says what means for ever."""
    with pytest.raises(InvalidRequestError, match="give None for no expiry"):
        AccessControl(brokers=None).create_token("ann", days=days)

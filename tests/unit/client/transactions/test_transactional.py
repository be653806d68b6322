"""The end of prepared transactions by their ids."""

from unittest.mock import MagicMock, call

import pytest

from strandline.client.transactions.transactional import TransactionalClient
from strandline.errors import InvalidRequestError


class Calls(TransactionalClient):
    """A client of nothing but a coordinator whose calls are noted."""

    _known = _transactional_producer = group_coordinator = None

    def __init__(self):
        self.__dict__["_coordinator"] = MagicMock()


@pytest.mark.parametrize("way", ["commit", "abort"])
def test_a_prepared_transaction_is_ended_as_asked(way):
    """Both ids are passed on; one that is no text is refused before anybody is asked."""
    calls = Calls()
    end = getattr(calls, f"{way}_prepared")
    end("load", "3.4")
    asked = [call.end_prepared("load", "3.4", commit=way == "commit")]
    assert calls._coordinator.mock_calls == asked
    for wrong in ((None, "3.4"), ("load", None), (7, "3.4"), ("load", 3)):
        with pytest.raises(InvalidRequestError):
            end(*wrong)
    assert calls._coordinator.mock_calls == asked

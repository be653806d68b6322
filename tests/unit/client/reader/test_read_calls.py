"""How reads and subscriptions begin: at which offsets, and whether new partitions join them."""

from types import SimpleNamespace

import pytest

from strandline.client.reader.read_calls import ReadCalls

ENDS = {0: 10, 1: 20, 2: 30}


class Calls(ReadCalls):
    """Notes how a read begins; three partitions that end at 10, 20 and 30."""

    _brokers = _known = None

    def stream_info(self, name, *, of_leaders=True):
        raise AssertionError("not needed")

    def _offsets(self, stream, at, partitions=None):
        assert at == "latest" or isinstance(at, int)
        found = ENDS if at == "latest" else {each: max(0, ENDS[each] + at) for each in ENDS}
        return {each: found[each] for each in partitions or found if each in found}

    def _begin(self, request, **options):
        self.request, self.options = request, options
        return SimpleNamespace()


@pytest.mark.parametrize(
    ("given", "starts", "is_of_all"),
    [
        ({}, ENDS, True),
        ({"start": -4}, {0: 6, 1: 16, 2: 26}, True),
        ({"partition": 1}, {1: 20}, False),
        ({"partition": 1, "start": 7}, {1: 7}, False),
        ({"partition": 1, "start": 0}, {1: 0}, False),
        ({"partition": 1, "start": -4}, {1: 16}, False),
        ({"partition": 9}, {9: 0}, False),
        ({"starts": {0: 3, 2: 4}}, {0: 3, 2: 4}, False),
    ],
)
def test_a_subscription_begins_where_it_was_asked_to(given, starts, is_of_all):
    """Offsets are looked up once; partitions that are added join one of the whole stream."""
    calls = Calls()
    subscription = calls.subscribe("s", replica="this", reconnect_timeout_s=7.0, **given)
    subscription._begin(subscription._request)
    assert calls.request.starts == starts
    assert calls.request.follow
    assert calls.options == {"replica": "this", "timeout_s": 7.0, "is_of_all": is_of_all}

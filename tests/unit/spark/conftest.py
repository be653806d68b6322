"""A load of a stream by its schema, for the tests of both engines' tables."""

import pytest

import strandline
from strandline.spark.connection import forget_client
from tests.kit.local_loads import LocalLoad


@pytest.fixture
def load(strandline_url, tmp_path):
    """A load of ``orders`` whose file says only what the values are."""
    with strandline.connect(strandline_url.flight) as client:
        client.create_stream("orders")
        client.create_stream("bad")
        yield LocalLoad(strandline_url.flight, client, tmp_path, partitions=1, schema=None)
    forget_client(strandline_url.flight)

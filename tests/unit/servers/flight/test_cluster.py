"""The status of a cluster, as a broker knows it."""

from types import SimpleNamespace

import pytest

from strandline.core.metadata.image import MetadataImage
from strandline.errors import UnavailableError
from strandline.servers.flight.cluster import cluster_status

UNTOLD = UnavailableError("broker 1 has not heard from the cluster which streams there are")


@pytest.mark.parametrize(
    ("age_ms", "error", "shown_ms"), [(0, None, 0), (0, UNTOLD, 1), (4000, UNTOLD, 4000)]
)
def test_a_status_of_a_broker_that_was_not_told_is_not_current(age_ms, error, shown_ms):
    """Just after its start it has a controller, and no streams: that is not what there is."""
    membership = SimpleNamespace(
        me=1,
        machine=SimpleNamespace(image=MetadataImage()),
        quorum=SimpleNamespace(leader=2, members=SimpleNamespace(voters=(1, 2, 3))),
        image_age_ms=age_ms,
    )
    config = SimpleNamespace(cluster=SimpleNamespace(name="c"))
    broker = SimpleNamespace(membership=membership, config=config, metadata_error=error)
    assert cluster_status(broker).age_ms == shown_ms

"""Settings of every property test: how far Hypothesis searches (`make sim` raises it)."""

import os

from hypothesis import HealthCheck, settings

# Two shared cores are slow at times: a deadline per example would fail tests for the machine's sake.
settings.register_profile(
    "strandline",
    deadline=None,
    max_examples=int(os.environ.get("PROPERTY_EXAMPLES", "60")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("strandline")

"""Settings of every property test: the suite tries the same examples each time, so that it judges
the change and not the luck of a draw; `make fuzz` draws others, and more of them."""

import os

from hypothesis import HealthCheck, settings

EXAMPLES = os.environ.get("PROPERTY_EXAMPLES")

# Shared cores are slow at times: a deadline per example would fail tests for the machine's sake.
settings.register_profile(
    "strandline",
    deadline=None,
    derandomize=EXAMPLES is None,
    max_examples=60,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("strandline")


def pytest_collection_modifyitems(items):
    """With PROPERTY_EXAMPLES set, search that far in every property, whatever it says itself."""
    if EXAMPLES is None:
        return
    for item in items:
        test = getattr(item.obj, "__func__", item.obj)
        own = getattr(test, "_hypothesis_internal_use_settings", None)
        if own is not None:
            test._hypothesis_internal_use_settings = settings(own, max_examples=int(EXAMPLES))
        if item.cls is not None and isinstance(getattr(item.cls, "settings", None), settings):
            item.cls.settings = settings(item.cls.settings, max_examples=int(EXAMPLES))

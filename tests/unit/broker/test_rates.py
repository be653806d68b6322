"""Rates from sampled counters."""

from strandline.broker.rates import SAMPLES_MAX, RateMeter
from strandline.telemetry import Telemetry


def test_no_rates_before_two_samples():
    """A meter with nothing to compare shows zero, not an error."""
    meter = RateMeter()
    assert meter.rates().records_appended == 0
    meter.sample(Telemetry(), 0)
    meter.sample(Telemetry(), 0)
    assert meter.rates().records_appended == 0
    assert meter.rates().records_per_sync == 0


def test_rates_are_means_over_the_last_five_seconds():
    """Counters that grow evenly show their growth per second."""
    meter, telemetry = RateMeter(), Telemetry()
    for second in range(10):
        meter.sample(telemetry, second * 1000.0)
        telemetry.records_appended += 100
        telemetry.bytes_appended += 2048
        for _ in range(4):
            telemetry.sync_seconds.observe(0.002)
    rates = meter.rates()
    assert rates.records_appended == 100
    assert rates.bytes_appended == 2048
    assert rates.records_per_sync == 25
    assert meter.records_per_second() == [100.0] * 9


def test_the_history_is_bounded():
    """The meter keeps one minute, however long it runs."""
    meter = RateMeter()
    for second in range(1000):
        meter.sample(Telemetry(), second * 1000.0)
    assert len(meter.records_per_second()) == SAMPLES_MAX - 1

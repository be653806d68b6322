"""Reports of corruption: logged and counted once, and passed to the replica each time."""

import pytest

from strandline.broker.maintenance.corruption import CorruptionReports
from strandline.errors import CorruptBatchError
from strandline.telemetry import Telemetry
from strandline.types import PartitionName

NAME = PartitionName("s", 0)


@pytest.fixture
def world():
    """Reports, what is left to the loop, and what is repaired."""

    class World:
        telemetry, soon, repaired = Telemetry(), [], []

        def report(self, first, after, *, log_id=1):
            error = CorruptBatchError("bad", first_offset=first, next_offset=after)
            repair = lambda *found: self.repaired.append(found)  # noqa: E731
            self.reports.report(NAME, log_id, error, repair=repair)

        def run(self):
            soon, self.soon[:] = list(self.soon), []
            for call in soon:
                call()

    made = World()
    made.soon, made.repaired, made.telemetry = [], [], Telemetry()
    made.reports = CorruptionReports(made.soon.append, telemetry=made.telemetry)
    return made


def test_a_report_is_handled_on_the_loop(world):
    """The reader goes on at once."""
    world.report(3, 5)
    assert (world.repaired, world.telemetry.corrupt_batches) == ([], 0)
    world.run()
    assert (world.repaired, world.telemetry.corrupt_batches) == ([(3, 5)], 1)


def test_what_is_known_is_not_counted_again(world, caplog):
    """The replica hears of it each time: it asks for a copy once. Other places and logs count."""
    for first, log_id in ((3, 1), (3, 1), (4, 1), (3, 2)):
        world.report(first, 5, log_id=log_id)
    world.run()
    assert len(world.repaired) == 4
    assert world.telemetry.corrupt_batches == 3
    assert len(caplog.records) == 3
    world.reports.forget()
    world.report(3, 5)
    world.run()
    assert world.telemetry.corrupt_batches == 4


@pytest.mark.parametrize(
    ("first", "after", "is_known"),
    [(0, 1, True), (-1, 5, False), (5, 5, False), (5, 4, False)],
)
def test_only_a_known_range_is_repaired(world, first, after, is_known):
    """It is counted in any case."""
    world.report(first, after)
    world.run()
    assert world.repaired == ([(first, after)] if is_known else [])
    assert world.telemetry.corrupt_batches == 1

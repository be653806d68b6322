"""The clock of a simulated broker: its own rate, its own start, and jumps.

As monotonic clocks of real machines do, it never runs backwards: it is somewhat fast or slow, and
goes on much later after a machine was suspended. Brokers exchange no times; that nothing breaks
shows that none is compared with another's.
"""

import random

from simulation.world import World

RATES = (0.5, 0.9, 0.999, 1.001, 1.1, 2.0)
STARTS_MS = (0, 1_000, 10_000_000)
JUMPS_MS = (50, 400, 3_000, 600_000)


class BrokerClock:
    """Shows the world's time until it is told to drift.

    Args:
        world: has the true time.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._ahead_ms = 0.0
        self.rate = 1.0
        """Its milliseconds in a true one."""

    def drift(self, rng: random.Random) -> None:
        """Run at another pace, from another start; before anybody has read it."""
        self.rate, self._ahead_ms = rng.choice(RATES), rng.choice(STARTS_MS)

    def jump(self, jump_ms: float) -> None:
        """Show a later time at once."""
        self._ahead_ms += jump_ms

    @property
    def now_ms(self) -> float:
        """The time that the clock shows."""
        return self._ahead_ms + self.rate * self._world.now_ms

    def true_ms(self, shown_ms: float) -> float:
        """Convert a time of this clock to the world's time."""
        return (shown_ms - self._ahead_ms) / self.rate

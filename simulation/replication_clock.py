"""The clock of a simulated broker, with its own start, its own rate, and jumps.

Like a real machine's monotonic clock it never runs backwards. It is a little fast or slow, and
jumps ahead after the machine was suspended. Brokers must not compare each other's times: histories
with such clocks show that they do not.
"""

import random

from simulation.world import World

RATES = (0.5, 0.9, 0.999, 1.001, 1.1, 2.0)
STARTS_MS = (0, 1_000, 10_000_000)
JUMPS_MS = (50, 400, 3_000, 600_000)


class BrokerClock:
    """A broker's clock; it shows the world's time until ``drift`` is called.

    Args:
        world: has the true time.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._ahead_ms = 0.0
        self.rate = 1.0
        """How many milliseconds it counts in a true one."""

    def drift(self, rng: random.Random) -> None:
        """Run at another rate, from another start; call it before the clock is read."""
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

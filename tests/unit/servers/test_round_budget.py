"""The share of a round of the loop that clients' input may take."""

import asyncio
import time

from strandline.servers.round_budget import ROUND_S, SLICE_S, SPENT, RoundBudget


def busy(seconds):
    """Keep the loop busy."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def test_one_connection_has_a_slice_and_all_have_a_round():
    """A slice is shorter than a round; once the round is spent, all wait for the next."""
    budget, loop = RoundBudget(), asyncio.get_running_loop()
    end_s = budget.slice_end()
    assert end_s != SPENT
    assert end_s - loop.time() <= SLICE_S
    busy(ROUND_S)
    assert budget.slice_end() == SPENT
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert budget.slice_end() != SPENT


async def test_work_that_runs_later_counts_for_the_round():
    """A source that has scheduled a round's work gets no more time in it."""
    budget = RoundBudget()
    assert budget.slice_end() != SPENT
    budget.charge(ROUND_S)
    assert budget.slice_end() == SPENT


async def test_deferred_work_takes_turns_and_lets_the_loop_run():
    """Two connections with endless input alternate, and other tasks run in between."""
    budget, order = RoundBudget(), []

    def work(name):
        assert budget.slice_end() != SPENT
        order.append(name)
        busy(ROUND_S)
        if len(order) < 8:
            budget.defer(lambda: work(name))

    budget.defer(lambda: work("a"))
    budget.defer(lambda: work("b"))
    rounds = 0
    while len(order) < 8:
        await asyncio.sleep(0)
        rounds += 1
        assert len(order) <= rounds
    assert order == ["a", "b"] * 4


async def test_deferred_work_runs_although_the_rest_of_the_round_is_slow():
    """If other work takes the whole round, one piece of deferred work still runs."""
    budget, done = RoundBudget(), []

    def others():
        busy(2 * ROUND_S)
        if len(done) < 3:
            asyncio.get_running_loop().call_soon(others)

    others()
    for number in range(3):
        budget.defer(lambda number=number: done.append(number))
    for _ in range(5):
        await asyncio.sleep(0)
    assert done == [0, 1, 2]

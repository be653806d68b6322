"""Requests for the end wait until a new leader knows it."""

import asyncio

import pytest

from strandline.broker.read_path.ends import wait_until_caught_up
from strandline.errors import UnavailableError, UnknownStreamError


async def test_who_asks_for_the_end_waits_until_it_is_known(led_anew):
    """Not at the next commit, but at the one that covers all that was there."""
    asking = asyncio.create_task(wait_until_caught_up(led_anew))
    for offset in (2, 3):
        await asyncio.sleep(0)
        assert not asking.done()
        led_anew.commit(offset)
    await asyncio.wait_for(asking, 30)
    await wait_until_caught_up(led_anew)


async def test_nobody_waits_for_ever(led_anew):
    """Where too few replicas are left to find out, asking ends with an error that says retry."""
    with pytest.raises(UnavailableError, match="new leader of s/0 does not know its"):
        await wait_until_caught_up(led_anew, patience_s=0.01)


async def test_a_partition_that_goes_away_ends_the_wait(led_anew):
    """The caller finds it closed."""
    asking = asyncio.create_task(wait_until_caught_up(led_anew))
    await asyncio.sleep(0)
    led_anew.close(UnknownStreamError("deleted"))
    await asyncio.wait_for(asking, 30)


async def test_nothing_is_waited_for_where_another_broker_leads(led_anew):
    """Also if the leader changes during the wait: the new one knows more."""
    asking = asyncio.create_task(wait_until_caught_up(led_anew))
    await asyncio.sleep(0)
    led_anew.is_led = False
    led_anew.follow()
    await asyncio.wait_for(asking, 30)
    await wait_until_caught_up(led_anew)


async def test_a_leader_to_be_is_waited_for(led_anew):
    """Between its election and its start it knows less than its predecessor."""
    led_anew.follow()
    asking = asyncio.create_task(wait_until_caught_up(led_anew))
    await asyncio.sleep(0)
    led_anew.commit(3)
    await asyncio.sleep(0)
    assert not asking.done()
    led_anew.lead(3)
    await asyncio.wait_for(asking, 30)

"""Long polls that are notified, and cancelled."""

from __future__ import annotations

import asyncio

import pytest

from flyball_server.jobs.waiters import JobWaiters


@pytest.mark.parametrize("num_turns", range(6))
def test_a_poll_that_is_cancelled_just_after_a_notification_ends(num_turns: int) -> None:
    """Its caller has gone: nobody is left for the answer to a further wait."""
    waiters = JobWaiters()
    is_polled = asyncio.Event()

    async def never() -> None:
        is_polled.set()

    async def polled() -> None:
        poll = asyncio.create_task(waiters.until("job", never, wait_s=600.0))
        await is_polled.wait()
        await asyncio.sleep(0)
        waiters.notify("job")
        for _ in range(num_turns):
            await asyncio.sleep(0)
        poll.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert poll.cancelled()

    asyncio.run(polled())
    assert waiters.num_waiting == 0

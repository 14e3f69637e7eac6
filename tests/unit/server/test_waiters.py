"""Long polls inside the process: woken by changes, released by the end, never missing one."""

from __future__ import annotations

import asyncio

import pytest

from flyball_server.jobs.waiters import JobWaiters

pytestmark = pytest.mark.anyio

LONG_S = 600.0


class Value:
    """Something to wait for."""

    def __init__(self) -> None:
        self.value: str | None = None
        self.num_probes = 0

    async def probe(self) -> str | None:
        self.num_probes += 1
        return self.value


async def waiting(waiters: JobWaiters, number: int) -> None:
    while waiters.num_waiting != number:
        await asyncio.sleep(0)


@pytest.fixture
def waiters() -> JobWaiters:
    return JobWaiters()


@pytest.fixture
def value() -> Value:
    return Value()


async def test_a_change_of_another_job_wakes_nobody_and_a_wake_without_news_waits_on(
    waiters: JobWaiters, value: Value
) -> None:
    poll, cancelled = (
        asyncio.create_task(waiters.until("job", value.probe, wait_s=LONG_S)) for _ in range(2)
    )
    await waiting(waiters, 2)
    cancelled.cancel()
    await asyncio.wait({cancelled})
    assert waiters.num_waiting == 1
    waiters.notify("other")
    await asyncio.sleep(0)
    assert value.num_probes == 2
    waiters.notify("job")
    while value.num_probes < 3:
        await asyncio.sleep(0)
    assert not poll.done()
    value.value = "late"
    waiters.notify_all()
    assert await poll == "late"


async def test_notifying_all_wakes_every_job(waiters: JobWaiters, value: Value) -> None:
    polls = [
        asyncio.create_task(waiters.until(job_id, value.probe, wait_s=LONG_S))
        for job_id in ("job", "other")
    ]
    await waiting(waiters, 2)
    value.value = "new"
    waiters.notify_all()
    assert await asyncio.gather(*polls) == ["new"] * 2


async def test_a_change_during_the_probe_is_seen(waiters: JobWaiters, value: Value) -> None:
    async def probe() -> str | None:
        seen = await value.probe()
        if value.num_probes == 1:
            value.value = "meanwhile"
            waiters.notify("job")
        return seen

    assert await waiters.until("job", probe, wait_s=LONG_S) == "meanwhile"


async def test_closing_releases_all_until_opened_again(waiters: JobWaiters, value: Value) -> None:
    poll = asyncio.create_task(waiters.until("job", value.probe, wait_s=LONG_S))
    await waiting(waiters, 1)
    waiters.close()
    assert await poll is None
    assert await waiters.until("job", value.probe, wait_s=LONG_S) is None
    waiters.open()
    poll = asyncio.create_task(waiters.until("job", value.probe, wait_s=LONG_S))
    await waiting(waiters, 1)
    value.value = "again"
    waiters.notify("job")
    assert await poll == "again"

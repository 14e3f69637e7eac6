"""`flyball top`'s display, driven by keys without a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from tests.planner.jobs_to_show import READING
from tests.planner.patience import PATIENCE_S
from textual.pilot import Pilot

from flyball_client.cli.top.app import TopApp
from flyball_client.cli.top.reading import Read, Seen, local_time
from flyball_wire.read_models import Overview

pytestmark = pytest.mark.slow

ADDRESS = "http://planner:7787"
Script = Callable[[TopApp, Pilot[None]], Awaitable[None]]


def screen(app: TopApp) -> list[str]:
    """The lines on the screen, without what is blank at their ends."""
    return [
        "".join(segment.text for segment in strip).rstrip()
        for strip in app.screen._compositor.render_strips()
    ]


def is_foot(app: TopApp, text: str) -> bool:
    return screen(app)[-1] == text


async def wait_for(pilot: Pilot[None], is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await pilot.pause(0.02)


def shown(script: Script, *, read: Read = lambda: READING) -> None:
    """Follow the job while the script runs."""
    first = Seen(reading=READING, read_at=local_time())
    app = TopApp(read, first, ADDRESS, interval_s=0.2)

    async def run() -> None:
        async with app.run_test(size=(60, 15)) as pilot:
            await wait_for(pilot, lambda: "q ends" in screen(app)[-1])
            await script(app, pilot)

    asyncio.run(run())


def test_keys_move_the_body_below_the_head_by_lines_and_pages() -> None:
    """The page has four lines of head and 32 of body, the screen room for ten of these."""
    first_lines = {
        ("down", "j"): 3,
        ("down", "j", "up"): 2,
        ("down", "j", "k"): 2,
        ("up",): 1,
        ("pagedown",): 11,
        ("space", "space", "b"): 11,
        ("space", "pageup"): 1,
        ("end",): 23,
        ("G",): 23,
        ("G", "g"): 1,
    }

    async def script(app: TopApp, pilot: Pilot[None]) -> None:
        head = screen(app)[:3]
        for keys, first_line in first_lines.items():
            await pilot.press("home", *keys)
            where = f"lines {first_line} to {first_line + 9} of 32, arrows scroll   q ends"
            await wait_for(pilot, partial(is_foot, app, where))
            assert screen(app)[:3] == head

    shown(script)


def test_a_fault_of_ours_ends_it() -> None:
    def read() -> Overview:
        raise ZeroDivisionError("ours")

    async def script(app: TopApp, pilot: Pilot[None]) -> None:
        await wait_for(pilot, lambda: not app.is_running)

    with pytest.raises(ZeroDivisionError, match="ours"):
        shown(script, read=read)

"""`flyball top`'s display, driven by keys without a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import pytest
from tests.planner.jobs_to_show import READING
from tests.planner.patience import PATIENCE_S
from textual.pilot import Pilot
from textual.widgets import Static

from flyball_client.cli.top.app import TopApp
from flyball_client.cli.top.reading import FollowedJob, Read, Seen, local_time
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


def is_scrolled(app: TopApp, to: tuple[int, int]) -> bool:
    return (round(app.body.scroll_x), round(app.body.scroll_y)) == to


def text_of(app: TopApp) -> str:
    """All of the body's paragraphs, also those that are not on the screen."""
    return "\n".join(str(each.content) for each in app.body.query(Static) if each.display)


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
            # The tables, which are wider than the screen, are laid out after the first frame.
            await wait_for(pilot, lambda: "q ends" in screen(app)[-1] and app.body.max_scroll_x > 0)
            await script(app, pilot)

    asyncio.run(run())


def test_keys_move_the_body_below_the_head_by_lines_pages_and_columns() -> None:
    """The screen has room for four lines of head, and nine of the body's above its scroll bar."""

    async def script(app: TopApp, pilot: Pilot[None]) -> None:
        head, bottom = screen(app)[:3], round(app.body.max_scroll_y)
        page = app.body.scrollable_content_region.height
        assert page == 9
        for keys, to in {
            ("down", "j", "up"): (0, 1),
            ("down", "j", "k"): (0, 1),
            ("pagedown",): (0, page),
            ("space", "space", "b", "pageup"): (0, 0),
            ("end",): (0, bottom),
            ("G",): (0, bottom),
            ("G", "g"): (0, 0),
            ("right", "l", "l"): (3, 0),
            ("right", "l", "left", "h"): (0, 0),
        }.items():
            await pilot.press("home", *keys)
            await wait_for(pilot, partial(is_scrolled, app, to))
            assert screen(app)[:3] == head

    shown(script)


def test_a_frame_keeps_the_place_and_the_widgets_and_a_new_kind_of_block_is_put_in() -> None:
    moment = iter(range(1000))

    def read() -> FollowedJob:
        steps = READING.steps if next(moment) < 5 else ()
        return replace(READING, steps=steps)

    async def script(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("right", "right", "down", "down")
        await wait_for(pilot, lambda: "stages in steps" not in text_of(app))
        assert is_scrolled(app, (2, 2))
        assert "newest versions" in text_of(app)

    shown(script, read=read)


def test_a_fault_of_ours_ends_it() -> None:
    def read() -> Overview:
        raise ZeroDivisionError("ours")

    async def script(app: TopApp, pilot: Pilot[None]) -> None:
        await wait_for(pilot, lambda: not app.is_running)

    with pytest.raises(ZeroDivisionError, match="ours"):
        shown(script, read=read)

"""`flyball top`'s display, driven by keys without a terminal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import pytest
from tests.planner.jobs_to_show import NEW, PLANNED, READING
from tests.planner.patience import PATIENCE_S
from textual.pilot import Pilot

from flyball_client.api.errors import PlannerRefusedError, PlannerUnavailableError
from flyball_client.cli.top.app import TopApp
from flyball_client.cli.top.reading import Read, Seen, local_time
from flyball_wire.read_models import Overview

pytestmark = pytest.mark.slow

JOBS = Overview(jobs=(PLANNED, NEW))
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


def shown(
    script: Script,
    *,
    read: Read = lambda: READING,
    seen: Overview | None = None,
    size: tuple[int, int] = (60, 15),
) -> TopApp:
    """Follow the job, or these jobs, while the script runs."""
    first = Seen(reading=READING if seen is None else seen, read_at=local_time())
    app = TopApp(read, first, ADDRESS, interval_s=0.2)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await wait_for(pilot, lambda: "q ends" in screen(app)[-1])
            await script(app, pilot)

    asyncio.run(run())
    return app


@pytest.mark.parametrize("key", ["q", "Q", "ctrl+c"])
def test_a_key_ends_it_with_status_0(key: str) -> None:
    async def script(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press(key)

    app = shown(script)
    assert (app.is_running, app.return_code) == (False, 0)


def test_keys_move_the_body_below_the_head_by_lines_and_pages() -> None:
    """The page has four lines of head and 32 of body, the screen room for ten of these."""
    first_lines = {
        ("down", "j"): 3,
        ("down", "down", "up"): 2,
        ("j", "j", "k"): 2,
        ("up",): 1,
        ("pagedown",): 11,
        ("space",): 11,
        ("space", "b"): 1,
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


def test_a_page_is_drawn_for_the_width_that_a_window_is_given() -> None:
    async def script(app: TopApp, pilot: Pilot[None]) -> None:
        assert not any("[1.9900, 2.0100]" in line for line in screen(app))
        await pilot.resize_terminal(140, 50)
        await wait_for(pilot, lambda: any("[1.9900, 2.0100]" in line for line in screen(app)))
        assert screen(app)[-1] == "q ends"

    shown(script)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PlannerUnavailableError("it cannot be reached"), "planner away since"),
        (PlannerRefusedError("it has no such job", status=404), "refused since"),
    ],
)
def test_a_planner_that_does_not_answer_is_told_of_until_it_does(
    error: Exception, said: str
) -> None:
    is_away = threading.Event()

    def read() -> Overview:
        if is_away.is_set():
            raise error
        return JOBS

    async def script(app: TopApp, pilot: Pilot[None]) -> None:
        assert any("gpt3-night" in line for line in screen(app))
        is_away.set()
        await wait_for(pilot, lambda: screen(app)[0].startswith(said))
        assert str(error) in " ".join(screen(app)[:3])
        assert any("gpt3-night" in line for line in screen(app))
        is_away.clear()
        await wait_for(pilot, lambda: screen(app)[0].startswith("all jobs"))

    shown(script, read=read, seen=JOBS, size=(100, 30))


def test_what_is_read_anew_is_shown() -> None:
    later = Overview(jobs=(replace(NEW, state="planned"),))

    async def script(app: TopApp, pilot: Pilot[None]) -> None:
        await wait_for(pilot, lambda: not any("gpt3-night" in line for line in screen(app)))
        row = next(line for line in screen(app) if line.startswith("llama-70b"))
        assert "planned" in row

    shown(script, read=lambda: later, seen=JOBS, size=(100, 30))


def test_a_fault_of_ours_ends_it() -> None:
    def read() -> Overview:
        raise ZeroDivisionError("ours")

    async def script(app: TopApp, pilot: Pilot[None]) -> None:
        await wait_for(pilot, lambda: not app.is_running)

    with pytest.raises(ZeroDivisionError, match="ours"):
        shown(script, read=read)

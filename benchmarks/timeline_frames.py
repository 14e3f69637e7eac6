"""Time that the dashboard's timeline takes to draw a frame in a real browser."""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from benchmark_report import Limit, Report, at_most, run_benchmark, show_progress, table_of
from flyball_client.api.planner_client import PlannerClient
from flyball_profiles.examples import load_example_profile
from flyball_wire import routes
from flyball_wire.plan_options import Effort
from made_profiles import tile_profile
from measured_process import BenchmarkError
from served_planner import put_emulated_job, served_planner

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

NUM_STAGES, NUM_MICROBATCHES = 64, 256
SEED = 20
NUM_FRAMES = 60
WINDOW = {"width": 1440, "height": 1000}
PATIENCE_S = 300.0
NUM_FIRST_FRAMES = 10
# Sixty frames a second, and now and then one left out.
MAX_PROCESSOR_MS, MAX_P95_MS = 17.0, 34.0
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")

# Each frame has its own event, as a hand on the wheel makes them: it is drawn in the next frame,
# before `drawn` is asked for. A wheel's turn is undone by the one after it.
_FRAMES = """
async ({ keys, wheel, count, first }) => {
  const surface = document.querySelector(".timeline-surface");
  const box = surface.getBoundingClientRect();
  const frame = () => new Promise(requestAnimationFrame);
  for (const key of keys) {
    surface.dispatchEvent(new KeyboardEvent("keydown", { key }));
    await frame();
  }
  const place = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 4 };
  const drawn = [];
  const between = [];
  let last = null;
  for (let index = -first; index < count; index += 1) {
    const sign = index % 2 ? 1 : -1;
    const turn = { deltaX: sign * wheel[0], deltaY: sign * wheel[1], cancelable: true, ...place };
    surface.dispatchEvent(new WheelEvent("wheel", turn));
    const begin = await frame();
    if (index >= 0) drawn.push(performance.now() - begin);
    if (index > 0) between.push(begin - last);
    last = begin;
  }
  surface.dispatchEvent(new KeyboardEvent("keydown", { key: "0" }));
  await frame();
  return { drawn, between };
}
"""


@dataclass(frozen=True, kw_only=True)
class Look:
    """A zoom of the timeline, and how it is moved.

    Attributes:
        keys: pressed before.
        wheel: turned in each frame, px to the right and down.
    """

    name: str
    keys: tuple[str, ...]
    wheel: tuple[int, int]


LOOKS = (
    Look(name="all of it, zoomed by a hair", keys=(), wheel=(0, -8)),
    Look(name="zoomed 8 times, panned", keys=("+",) * 5, wheel=(40, 0)),
    Look(name="zoomed 38 times, panned", keys=("+",) * 9, wheel=(40, 0)),
)


@dataclass(frozen=True, kw_only=True)
class Frames:
    """Times of the frames of one look.

    Attributes:
        processor_ms: processor time of the page's main thread, mean of a frame.
        drawn_*_ms: from a frame's begin until the timeline is drawn.
        between_*_ms: from one frame to the next: what is seen.
    """

    ratio: float
    look: str
    processor_ms: float
    drawn_median_ms: float
    drawn_p95_ms: float
    between_median_ms: float
    between_p95_ms: float


def measure(_: argparse.Namespace) -> Report:
    """Plan a long pipeline, open its page, move the timeline."""
    with tempfile.TemporaryDirectory() as folder, served_planner(Path(folder)) as server:
        show_progress(f"planning {NUM_STAGES} x {NUM_MICROBATCHES}")
        _put_job(server.url)
        with _browser() as browser:
            frames = [
                each
                for ratio in (1.0, 2.0)
                for each in _frames(browser, f"{server.url}/#/jobs/long", ratio)
            ]
    columns = {
        f"{NUM_FRAMES} frames, ms": "{look}; {ratio:g} device px per px",
        "processor": "{processor_ms:.1f}",
        "drawn": "{drawn_median_ms:.1f}",
        "drawn, 95th %": "{drawn_p95_ms:.1f}",
        "between": "{between_median_ms:.1f}",
        "between, 95th %": "{between_p95_ms:.1f}",
    }
    return Report(
        figures={"frames": frames},
        text=table_of(frames, columns),
        limits=list(_limits(frames)),
    )


def _limits(frames: list[Frames]) -> Iterator[Limit]:
    for each in frames:
        if each.ratio == 1:
            yield at_most(f"{each.look}: processor, ms", each.processor_ms, MAX_PROCESSOR_MS)
            yield at_most(f"{each.look}: drawn, 95th %, ms", each.drawn_p95_ms, MAX_P95_MS)


def _put_job(address: str) -> None:
    """A job with a plan, whose clocks change at once."""
    profile = tile_profile(load_example_profile(), NUM_STAGES, SEED)
    with PlannerClient(address, timeout_s=PATIENCE_S) as client:
        put_emulated_job(
            client,
            "long",
            profile,
            num_microbatches=NUM_MICROBATCHES,
            transition_ms=0.0,
            effort=Effort.LOW,
        )
    # The page's own call finds it made.
    timeline = address + routes.fill(routes.TIMELINE, job_id="long")
    httpx.get(timeline, timeout=PATIENCE_S, trust_env=False).raise_for_status()


@contextmanager
def _browser() -> Iterator[Any]:
    """A headless one, drawn by the processor."""
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415 - said in one line
    except ImportError:
        raise BenchmarkError("playwright is missing: pip install '.[dev]'") from None
    path = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if path is None:
        raise BenchmarkError(f"there is no {', '.join(_BROWSERS)} on PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


def _frames(browser: Any, address: str, ratio: float) -> Iterator[Frames]:  # noqa: ANN401
    context = browser.new_context(viewport=WINDOW, device_scale_factor=ratio)
    page: Page = context.new_page()
    page.goto(address)
    page.locator(".timeline-surface").wait_for(timeout=1e3 * PATIENCE_S)
    page.locator(".timeline-surface").scroll_into_view_if_needed()
    # What scrolling began, and what opening the page leaves to do, is over then.
    page.wait_for_timeout(2000)
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    for look in LOOKS:
        show_progress(f"{look.name}, ratio {ratio:g}")
        values = {
            "keys": list(look.keys),
            "wheel": list(look.wheel),
            "count": NUM_FRAMES,
            "first": NUM_FIRST_FRAMES,
        }
        begin_s = _processor_s(session)
        found = page.evaluate(_FRAMES, values)
        used_s = _processor_s(session) - begin_s
        yield Frames(
            ratio=ratio,
            look=look.name,
            processor_ms=1e3 * used_s / (NUM_FRAMES + NUM_FIRST_FRAMES + len(look.keys)),
            drawn_median_ms=statistics.median(found["drawn"]),
            drawn_p95_ms=_p95(found["drawn"]),
            between_median_ms=statistics.median(found["between"]),
            between_p95_ms=_p95(found["between"]),
        )
    context.close()


def _processor_s(session: CDPSession) -> float:
    """Return what the page's main thread has used so far, s."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def _p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


if __name__ == "__main__":
    run_benchmark(argparse.ArgumentParser(description=__doc__), measure)

"""Take the pictures of the dashboard that the documentation shows, in Chromium.

Usage: python -m docs.scripts.take_screenshots [--into docs/images]

A planner of its own runs the jobs of `shown_jobs.py` on emulated GPUs; what is on the pictures is
what these measured. Some three minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from docs.scripts.shown_jobs import CHOSEN, SLOWED, STEADY, shown_jobs
from PIL import Image
from tests.browser.chromium import PATIENCE_S, chromium_path, private_chromium
from tests.browser.dashboard import Dashboard
from tests.browser.page_watch import PageWatch
from tests.debian_packages import MissingProgramError
from tests.planner.live import serve_process

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = Path(__file__).resolve().parent.parent / "images"
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
WIDTH_PX, HEIGHT_PX = 1440, 1000
NARROW_PX = (390, 844)
# Twice the pixels where the file stays below this.
MOST_BYTES = 400_000
# Canvases are drawn, and what is asked for on the way to the page has come.
SETTLE_MS = 1500.0


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One picture, taken in both themes.

    Attributes:
        name: in the file's name.
        show: opens the page.
        part: selector of what is shown; None: what fits on the screen.
        height_px: of the screen.
    """

    name: str
    show: Callable[[Dashboard], None]
    part: str | None = None
    height_px: int = HEIGHT_PX


def _show_jobs(dashboard: Dashboard) -> None:
    dashboard.open()
    for job_id in (CHOSEN, SLOWED, STEADY):
        # The planner has read all of its steps.
        dashboard.row(job_id).get_by_text("in all").wait_for()
        dashboard.row(job_id).get_by_text("still counting").wait_for(state="hidden")


def _show_chosen(dashboard: Dashboard) -> None:
    dashboard.open_job(CHOSEN).wait_for_pictures()


def _show_narrow(dashboard: Dashboard) -> None:
    """On a narrow screen the frontier is folded."""
    charts = dashboard.open_job(CHOSEN).page.locator("#panel-charts canvas")
    charts.first.wait_for()


def _show_slowed(dashboard: Dashboard) -> None:
    dashboard.open_job(SLOWED).wait_for_pictures()


PICTURES = (
    Picture(name="jobs", show=_show_jobs, height_px=640),
    Picture(name="job", show=_show_chosen),
    Picture(name="frontier", show=_show_chosen, part="#panel-frontier"),
    Picture(name="timeline", show=_show_chosen, part="#panel-timeline", height_px=1200),
    Picture(name="charts", show=_show_slowed, part="#panel-charts"),
)

NARROW = Picture(name="narrow", show=_show_narrow)


def main() -> int:
    """Take them all; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=IMAGES, metavar="DIR")
    into = parser.parse_args().into
    into.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            _take_all(Path(folder), into)
    except MissingProgramError as error:
        print(f"no screenshots: {error}", file=sys.stderr)
        return 2
    return 0


def _take_all(folder: Path, into: Path) -> None:
    chromium_path()  # before the jobs have trained for minutes
    with (
        serve_process(folder / "planner.sqlite") as served,
        shown_jobs(str(served.http.base_url), _say),
        private_chromium() as browser,
    ):
        planner_url = str(served.http.base_url)
        for theme in THEMES:
            for picture in PICTURES:
                with _page(browser, theme, (WIDTH_PX, picture.height_px)) as page:
                    path = into / f"dashboard-{picture.name}-{theme}.png"
                    _take(page, planner_url, picture, path)
        with _page(browser, "light", NARROW_PX) as page:
            _take(page, planner_url, NARROW, into / "dashboard-narrow-light.png")


@contextmanager
def _page(
    browser: Browser, theme: Literal["light", "dark"], size_px: tuple[int, int]
) -> Iterator[Page]:
    """An empty page; it fails at the end where a page was in trouble."""
    context = browser.new_context(
        viewport={"width": size_px[0], "height": size_px[1]},
        device_scale_factor=2,
        color_scheme=theme,
        reduced_motion="reduce",
        locale="en-GB",
    )
    context.set_default_timeout(1e3 * PATIENCE_S)
    watch = PageWatch(context)
    try:
        yield context.new_page()
    finally:
        context.close()
    if watch.unexpected():
        raise RuntimeError(f"the page is in trouble: {watch.unexpected()}")


def _take(page: Page, planner_url: str, picture: Picture, path: Path) -> None:
    picture.show(Dashboard(page, planner_url))
    page.wait_for_timeout(SETTLE_MS)
    shown = page if picture.part is None else page.locator(picture.part)
    content = _packed(shown.screenshot(scale="device"))
    if len(content) > MOST_BYTES:
        content = _packed(shown.screenshot(scale="css"))
    path.write_bytes(content)
    _say(f"{path}: {len(content) / 1000:.0f} kB")


def _packed(png: bytes) -> bytes:
    """The picture in 256 colours, of which rare ones, as those of clocks, are as near as any."""
    nearest = Image.Quantize.MAXCOVERAGE
    with Image.open(BytesIO(png)) as picture:
        few = picture.convert("RGB").quantize(256, nearest, kmeans=2, dither=Image.Dither.NONE)
    packed = BytesIO()
    few.save(packed, "PNG", optimize=True)
    return packed.getvalue()


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""Draws docs/images/flyball-top.svg: `flyball top` following a job with a slow and a capped GPU.

Usage: python -m docs.scripts.draw_top [FILE.svg]

A planner of its own runs the jobs of `shown_jobs.py` on emulated GPUs; the frame is drawn by the
command's own code from what the planner answers. Some minutes.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from functools import partial
from pathlib import Path

from docs.scripts.shown_jobs import SLOWED, shown_jobs
from tests.planner.live import serve_process

from flyball_client import PlannerClient
from flyball_client.cli.top.app import TopApp
from flyball_client.cli.top.pages import page_of
from flyball_client.cli.top.reading import Seen, local_time, read_job

PICTURE = Path(__file__).resolve().parents[1] / "images" / "flyball-top.svg"
WIDTH = 132
# The reader's own fonts: a picture asks no other host for one.
_FONT_FACE = re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL)


def main() -> int:
    """Draw it; the exit status."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_process(Path(folder) / "planner.sqlite") as served,
        shown_jobs(str(served.http.base_url), print),
        PlannerClient(str(served.http.base_url)) as planner,
    ):
        svg = _drawn(planner)
    path.write_text(svg, encoding="utf-8")
    print(f"{path}: {len(svg) / 1000:.0f} kB")
    return 0


def _drawn(planner: PlannerClient) -> str:
    read = partial(read_job, planner, SLOWED)
    seen = Seen(reading=read(), read_at=local_time())
    page = page_of(seen, planner.base_url, seen.read_at, WIDTH)
    app = TopApp(read, seen, planner.base_url, interval_s=3600.0)
    svg = asyncio.run(_picture(app, num_lines=len(page.text(WIDTH).splitlines()) + 1))
    # The same name for the same things each time.
    svg = re.sub(r"terminal-\d+-", "flyball-top-", _FONT_FACE.sub("", svg))
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


async def _picture(app: TopApp, *, num_lines: int) -> str:
    async with app.run_test(size=(WIDTH, num_lines)) as pilot:
        await pilot.pause(2.0)
        return app.export_screenshot(title=f"flyball top {SLOWED}")


if __name__ == "__main__":
    sys.exit(main())

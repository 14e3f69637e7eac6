"""Draws docs/images/flyball-top.svg: `flyball top` following a job with a slow and a capped GPU.

Usage: python -m docs.scripts.draw_top [FILE.svg]

A planner of its own runs the jobs of `shown_jobs.py` on emulated GPUs; the frame is drawn by the
command's own code from what the planner answers. Some minutes.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from docs.scripts.shown_jobs import SLOWED, shown_jobs
from rich.console import Console
from tests.planner.live import serve_process

from flyball_client import PlannerClient
from flyball_client.cli.top.marks import BLOCKS, Paper
from flyball_client.cli.top.polling import Seen
from flyball_client.cli.top.screen import text_of
from flyball_client.cli.top.views import OneJob, page_of

PICTURE = Path(__file__).resolve().parents[1] / "images" / "flyball-top.svg"
WIDTH = 112
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
    view = OneJob(planner, SLOWED)
    now = datetime.now().astimezone()
    seen = Seen(reading=view.read(), read_at=now)
    page = page_of(view, seen, planner.base_url, Paper(now=now, width=WIDTH, marks=BLOCKS))
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, color_system="truecolor"
    )
    console.print(text_of([*page.head, *page.body]))
    svg = console.export_svg(title=f"flyball top {SLOWED}", unique_id="flyball-top")
    return "\n".join(line.rstrip() for line in _FONT_FACE.sub("", svg).splitlines()) + "\n"


if __name__ == "__main__":
    sys.exit(main())

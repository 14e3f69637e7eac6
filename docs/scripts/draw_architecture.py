"""Draws docs/images/architecture.svg and docs/images/plan-life.svg.

python docs/scripts/draw_architecture.py [FOLDER]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parents[1] / "images"
INK, MUTED, LINE = "#1c2b30", "#51646b", "#8ea1a8"
PANEL, BOX, PROCESS, STORE = "#f1f5f6", "#ffffff", "#d9eef0", "#fbe3c4"
_LINE_PX = 17


def main(arguments: Sequence[str]) -> None:
    """Draw both into the folder that is named, else into the documentation."""
    folder = Path(arguments[0]) if arguments else IMAGES
    for name, drawn in (("architecture.svg", architecture()), ("plan-life.svg", plan_life())):
        (folder / name).write_text(drawn, encoding="utf-8")


def architecture() -> str:
    """Return the picture of the processes and of what they send to each other."""
    parts = [
        panel(16, 16, 400, 388, "Training node, one of many"),
        box(
            (40, 62, 352, 96),
            "Training rank",
            "hooks in the framework:",
            "forward and backward begin, end",
        ),
        box(
            (40, 196, 164, 84),
            "Governor, standby",
            "set the SM clock,",
            "always restore it",
            fill=PROCESS,
        ),
        box((228, 196, 164, 84), "Helper", "plans in,", "measured steps out", fill=PROCESS),
        box((40, 318, 164, 66), "GPU", "NVML or zeusd", fill=STORE),
        box((228, 318, 164, 66), "Guard, optional", "one per node", fill=PROCESS),
        arrow(122, 158, 122, 196, "clocks"),
        arrow(310, 158, 310, 196, "steps, plans", both=True),
        arrow(122, 280, 122, 318),
        arrow(228, 351, 204, 351),
        panel(560, 16, 384, 388, "Planner, one or several"),
        box((584, 62, 336, 66), "HTTP API", "page for people, live events, /metrics"),
        box((584, 166, 144, 84), "Jobs", "use cases and", "reconcile loop"),
        box((776, 166, 144, 84), "Planning", "in own processes:", "plans and bounds", fill=PROCESS),
        box((584, 318, 336, 66), "Database", "SQLite or PostgreSQL", fill=STORE),
        arrow(656, 128, 656, 166, both=True),
        arrow(728, 208, 776, 208, both=True),
        arrow(656, 250, 656, 318, both=True),
        path("M392,238 H476 V95 H584", both=True),
        label(476, 196, ["HTTP:", "registration,", "plans, steps"], backed=True),
        box((584, 428, 96, 48), "Browser"),
        box((690, 428, 96, 48), "flyball ..."),
        box((796, 428, 124, 48), "Prometheus"),
        path("M632,428 V414 H932 V95 H920"),
        line("M738,428 V414 M858,428 V414"),
    ]
    title = "Ranks with their governors on training nodes, and the planner that sends them plans"
    return picture(960, 492, title, parts)


def plan_life() -> str:
    """Return the picture of a plan version, from a profile to the next version."""
    parts = [
        panel(16, 16, 928, 150, "Planner"),
        panel(16, 226, 928, 134, "Ranks"),
        box((40, 62, 150, 84), "1 Plan", "profile, schedule,", "target: version n"),
        box((240, 252, 150, 84), "2 Fetch", "each rank its part", "(long poll)"),
        box((410, 252, 150, 84), "3 Acknowledge", "version n,", "current step"),
        box((486, 62, 150, 84), "4 Name a step", "when all ranks", "have version n"),
        box((600, 252, 150, 84), "5 Run", "all ranks, from", "that step on"),
        box((770, 252, 150, 84), "6 Post", "measured times,", "energies, clocks"),
        box((770, 62, 150, 84), "7 Watch", "target, timetable,", "drift, stragglers"),
        path("M140,146 V294 H240"),
        arrow(390, 294, 410, 294),
        path("M523,252 V146"),
        path("M600,146 V199 H675 V252"),
        arrow(750, 294, 770, 294),
        path("M845,252 V146"),
        path("M845,62 V46 H165 V62"),
        label(480, 46, ["something changed: version n + 1"], backed=True),
        label(340, 196, ["until that step, version n - 1 stays in force"]),
    ]
    title = "The life of a plan version between planner and ranks"
    return picture(960, 376, title, parts)


def picture(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """Return an SVG on a white card, legible on light and dark pages."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        ' font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif">'
    )
    marker = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto-start-reverse">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{MUTED}"/></marker></defs>'
    )
    card = f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", marker, card, *parts, "</svg>\n"])


def panel(x: int, y: int, width: int, height: int, title: str) -> str:
    """Return a group's background with its title."""
    rect = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{PANEL}"/>'
    return rect + text(x + 24, y + 30, title, size=16, weight=600, anchor="start")


def box(place: tuple[int, int, int, int], *lines: str, fill: str = BOX) -> str:
    """Return a box at x, y of a width and height; its first line is its name."""
    x, y, width, height = place
    rect = (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}"'
        f' stroke="{LINE}"/>'
    )
    top = y + (height - _LINE_PX * len(lines)) / 2 + 13
    told = [
        text(
            x + width / 2,
            top + _LINE_PX * row,
            line,
            size=15 if row == 0 else 13,
            weight=600 if row == 0 else 400,
        )
        for row, line in enumerate(lines)
    ]
    return "".join([rect, *told])


def text(
    x: float, y: float, line: str, *, size: int = 13, weight: int = 400, anchor: str = "middle"
) -> str:
    """Return one line of text."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}"'
        f' text-anchor="{anchor}" fill="{INK}">{escape(line)}</text>'
    )


def arrow(x1: int, y1: int, x2: int, y2: int, told: str = "", *, both: bool = False) -> str:
    """Return a straight arrow, with a label beside its middle."""
    beside = text(x1 + 8, (y1 + y2) / 2 + 5, told, anchor="start") if told else ""
    return path(f"M{x1},{y1} L{x2},{y2}", both=both) + beside


def path(route: str, *, both: bool = False) -> str:
    """Return an arrow along a route; with tips at both ends if data flow both ways."""
    start = ' marker-start="url(#tip)"' if both else ""
    return (
        f'<path d="{route}" fill="none" stroke="{MUTED}" stroke-width="1.6"'
        f' marker-end="url(#tip)"{start}/>'
    )


def line(route: str) -> str:
    """Return a line without tips."""
    return f'<path d="{route}" fill="none" stroke="{MUTED}" stroke-width="1.6"/>'


def label(x: int, y: int, lines: Sequence[str], *, backed: bool = False) -> str:
    """Return lines of text around a point, on white if something runs below."""
    width = max(len(line) for line in lines) * 7 + 12
    height = _LINE_PX * len(lines) + 6
    back = (
        f'<rect x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width}" height="{height}"'
        ' rx="4" fill="#ffffff"/>'
        if backed
        else ""
    )
    top = y - _LINE_PX * (len(lines) - 1) / 2 + 5
    return back + "".join(text(x, top + _LINE_PX * row, line) for row, line in enumerate(lines))


if __name__ == "__main__":
    main(sys.argv[1:])

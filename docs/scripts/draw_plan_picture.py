"""Draws docs/images/plan.svg: a pipeline at the highest clocks, and the same on its plan.

python docs/scripts/draw_plan_picture.py [FILE.svg]

Four stages of the shipped profile, six microbatches, as `flyball plan` and `flyball export` have
them. All of it is predicted.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from flyball_client.__main__ import main as flyball
from flyball_profiles.examples import load_example_profile
from flyball_profiles.stage_profile_csv import write_stage_profile

PICTURE = Path(__file__).parents[1] / "images" / "plan.svg"
STAGES = (0, 1, 2, 7)
NUM_MICROBATCHES = 6

WIDTH, LEFT, RIGHT = 960, 74, 24
ROW, GAP, PANEL_TOP, PANEL_BOTTOM = 34, 5, 46, 30
_AXIS_PX = WIDTH - LEFT - RIGHT
# From the slowest clock to the fastest, as on the planner's page and in plots: viridis, whose
# lightness rises evenly, so that grey print tells them.
_STOPS = ((71, 42, 122), (49, 104, 142), (30, 156, 137), (101, 203, 94), (241, 229, 29))


@dataclass(frozen=True, kw_only=True)
class Box:
    """One instruction: its stage, name, begin and time in s, and its clock."""

    stage: int
    name: str
    begin_s: float
    time_s: float
    sm_clock_mhz: int


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One plan's timeline and what it is predicted to take."""

    title: str
    boxes: Sequence[Box]
    iteration_time_s: float
    energy_j: float


def main(arguments: Sequence[str]) -> None:
    """Draw it into the file that is named, else into the documentation."""
    target = Path(arguments[0]) if arguments else PICTURE
    with TemporaryDirectory() as folder:
        profile = Path(folder) / "profile.csv"
        stages = load_example_profile().select_stages(STAGES)
        profile.write_text(write_stage_profile(stages), encoding="utf-8")
        panels = [
            _panel(profile, policy, title)
            for policy, title in (
                ("baseline", "Every instruction at the highest clock"),
                ("frontier", "On the plan"),
            )
        ]
    target.parent.mkdir(exist_ok=True)
    target.write_text("\n".join(_svg(panels)) + "\n", encoding="utf-8")


def _panel(profile: Path, policy: str, title: str) -> Panel:
    plan_file, trace_file = profile.with_suffix(".plan"), profile.with_suffix(".trace")
    plan = _printed(
        *(
            "plan",
            str(profile),
            "--microbatches",
            str(NUM_MICROBATCHES),
            "--gpu",
            "a100",
            "--no-transitions",
        ),
        *("--policy", policy, "-o", str(plan_file), "--json"),
    )
    _printed("export", str(profile), str(plan_file), "--chrome-trace", str(trace_file), "--json")
    events = json.loads(trace_file.read_text(encoding="utf-8"))["traceEvents"]
    boxes = [
        Box(
            stage=event["tid"],
            name=f"{event['name'][0].upper()}{event['args']['microbatch']}",
            begin_s=event["ts"] / 1e6,
            time_s=event["dur"] / 1e6,
            sm_clock_mhz=event["args"]["sm_clock_mhz"],
        )
        for event in events
        if event["ph"] == "X"
    ]
    lowest = min(box.stage for box in boxes)
    return Panel(
        title=title,
        boxes=[replace(box, stage=box.stage - lowest) for box in boxes],
        iteration_time_s=plan["iteration_time_s"],
        energy_j=plan["energy_j"],
    )


def _printed(*arguments: str) -> dict[str, float]:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = flyball(arguments)
    if status != 0:
        raise SystemExit(status)
    document: dict[str, float] = json.loads(printed.getvalue())
    return document


def _svg(panels: Sequence[Panel]) -> Iterator[str]:
    height_of_panel = PANEL_TOP + len(STAGES) * (ROW + GAP) + PANEL_BOTTOM
    height = len(panels) * height_of_panel + 34
    longest_s = max(panel.iteration_time_s for panel in panels)
    clocks = [box.sm_clock_mhz for panel in panels for box in panel.boxes]
    baseline, plan = panels
    saved = 100 * (1 - plan.energy_j / baseline.energy_j)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        ' font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif">'
    )
    yield f"<title>{escape(_description(baseline, plan, saved))}</title>"
    yield f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>'
    for number, panel in enumerate(panels):
        note = "" if number == 0 else f": {saved:.1f} % less energy, the same time"
        yield f'<g transform="translate(0 {number * height_of_panel})">'
        yield from _drawn(panel, note, longest_s, min(clocks), max(clocks))
        yield "</g>"
    yield from _legend(height - 30, min(clocks), max(clocks))
    yield "</svg>"


def _description(baseline: Panel, plan: Panel, saved: float) -> str:
    return (
        f"Predicted timelines of one iteration, {len(STAGES)} stages and {NUM_MICROBATCHES}"
        f" microbatches: {baseline.energy_j:.0f} J at the highest clocks, {plan.energy_j:.0f} J"
        f" on the plan ({saved:.1f} % less), both in {plan.iteration_time_s:.3f} s."
    )


def _drawn(
    panel: Panel, note: str, longest_s: float, lowest_mhz: int, highest_mhz: int
) -> Iterator[str]:
    yield (
        f'<text x="{LEFT}" y="28" font-size="17" font-weight="600" fill="#1c2b30">'
        f'{escape(panel.title)}<tspan font-weight="400">{escape(note)}</tspan></text>'
    )
    yield (
        f'<text x="{WIDTH - RIGHT}" y="28" font-size="15" text-anchor="end" fill="#1c2b30">'
        f"{panel.iteration_time_s:.3f} s, {panel.energy_j:.0f} J (predicted)</text>"
    )
    for stage in range(len(STAGES)):
        y = PANEL_TOP + stage * (ROW + GAP)
        yield (
            f'<text x="{LEFT - 10}" y="{y + 22}" font-size="14" text-anchor="end"'
            f' fill="#1c2b30">Stage {stage}</text>'
        )
        yield f'<rect x="{LEFT}" y="{y}" width="{_AXIS_PX}" height="{ROW}" fill="#eceff1"/>'
    for box in panel.boxes:
        yield from _drawn_box(box, longest_s, lowest_mhz, highest_mhz)


def _drawn_box(box: Box, longest_s: float, lowest_mhz: int, highest_mhz: int) -> Iterator[str]:
    x = LEFT + _AXIS_PX * box.begin_s / longest_s
    width = _AXIS_PX * box.time_s / longest_s
    y = PANEL_TOP + box.stage * (ROW + GAP)
    share = (box.sm_clock_mhz - lowest_mhz) / (highest_mhz - lowest_mhz)
    ink = "#ffffff" if share < 0.45 else "#1c2b30"
    yield (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW}" fill="{_colour(share)}"'
        ' stroke="#ffffff"/>'
    )
    middle = x + width / 2
    for text, size, down in ((box.name, 12, 15), (str(box.sm_clock_mhz), 9, 27)):
        yield (
            f'<text x="{middle:.1f}" y="{y + down}" font-size="{size}" text-anchor="middle"'
            f' fill="{ink}">{text}</text>'
        )


def _colour(share: float) -> str:
    place = share * (len(_STOPS) - 1)
    before = min(int(place), len(_STOPS) - 2)
    pairs = zip(_STOPS[before], _STOPS[before + 1], strict=True)
    mixed = (round(low + (high - low) * (place - before)) for low, high in pairs)
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _legend(y: float, lowest_mhz: int, highest_mhz: int) -> Iterator[str]:
    for number in range(24):
        yield (
            f'<rect x="{LEFT + 60 + 6 * number}" y="{y}" width="6" height="14"'
            f' fill="{_colour(number / 23)}"/>'
        )
    style = 'font-size="13" fill="#1c2b30"'
    yield f'<text x="{LEFT}" y="{y + 12}" {style}>{lowest_mhz} MHz</text>'
    yield f'<text x="{LEFT + 212}" y="{y + 12}" {style}>{highest_mhz} MHz</text>'
    yield f'<rect x="{LEFT + 320}" y="{y}" width="24" height="14" fill="#eceff1"/>'
    yield f'<text x="{LEFT + 352}" y="{y + 12}" {style}>waiting</text>'
    yield (
        f'<text x="{WIDTH - RIGHT}" y="{y + 12}" {style} text-anchor="end">'
        "F forward, B backward; below, the SM clock in MHz</text>"
    )


if __name__ == "__main__":
    main(sys.argv[1:])

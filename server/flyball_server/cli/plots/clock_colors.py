"""EnvPipe's rows in colour: each unit by its clock, for a terminal.

Slow is cool and fast is warm. Colour adds no information to the text: each unit contains its MHz,
and the critical path is in `[ ]`. rich, which detects terminal capabilities, is imported only if
colours are requested.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flyball_server.planning.documents.plan_text import Paint, plan_rows
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.simulated_plan import SimulatedPlan
from flyball_wire.command.command import Arguments, CommandError

if TYPE_CHECKING:
    from rich.color import ColorSystem


# From slow to fast, readable on a black and on a white background.
_STOPS = (
    (60, 125, 230),
    (20, 150, 165),
    (75, 150, 45),
    (190, 130, 0),
    (215, 85, 40),
    (205, 40, 95),
)
# The same for terminals with sixteen colours: blue, cyan, green, yellow, red.
_NUMBERS = (4, 6, 2, 3, 1)
_NUM_SWATCHES = 12


class ClockColors:
    """Colours of a range of clocks.

    Args:
        lowest_mhz, highest_mhz: range of clocks; a single clock has the highest's colour.
        system: colour support of the terminal.
    """

    def __init__(self, lowest_mhz: int, highest_mhz: int, system: ColorSystem) -> None:
        self._lowest_mhz = lowest_mhz
        self._highest_mhz = highest_mhz
        self._system = system

    def paint(self, text: str, clock_mhz: float, is_critical: bool) -> str:
        """Return the text in its clock's colour; bold on the critical path."""
        from rich.style import Style  # noqa: PLC0415

        span_mhz = self._highest_mhz - self._lowest_mhz
        share = (clock_mhz - self._lowest_mhz) / span_mhz if span_mhz else 1.0
        style = Style(color=self._color(share), bold=is_critical or None)
        return style.render(text, color_system=self._system)

    def legend(self, *, has_blocks: bool) -> str:
        """Return the range of clocks as a line; in `#` if the encoding has no blocks."""
        from rich.style import Style  # noqa: PLC0415

        block = "\N{LOWER FIVE EIGHTHS BLOCK}" if has_blocks else "#"
        step_mhz = (self._highest_mhz - self._lowest_mhz) / (_NUM_SWATCHES - 1)
        swatches = "".join(
            self.paint(block, self._lowest_mhz + i * step_mhz, False) for i in range(_NUM_SWATCHES)
        )
        critical = Style(bold=True).render("[critical path]", color_system=self._system)
        return f"MHz: {self._lowest_mhz} {swatches} {self._highest_mhz}   {critical}"

    def _color(self, share: float) -> str:
        from rich.color import ColorSystem  # noqa: PLC0415

        if self._system is ColorSystem.STANDARD:
            return f"color({_NUMBERS[round(share * (len(_NUMBERS) - 1))]})"
        return "rgb({},{},{})".format(*_between(share))


def _between(share: float) -> tuple[int, ...]:
    """Return red, green and blue at this share of the range from slow to fast."""
    place = share * (len(_STOPS) - 1)
    before = min(int(place), len(_STOPS) - 2)
    return tuple(
        round(low + (high - low) * (place - before))
        for low, high in zip(_STOPS[before], _STOPS[before + 1], strict=True)
    )


def add_color_argument(parser: Arguments) -> None:
    """Add the argument for coloured rows."""
    parser.add_argument(
        "--color",
        metavar="WHEN",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour instructions by clock: auto (on a terminal, unless NO_COLOR is set), always"
        " or never (default: %(default)s)",
    )


def color_system(when: str) -> ColorSystem | None:
    """Return the colour support for printing; None: no colours.

    Raises:
        CommandError: `always` was given, and rich is missing.
    """
    if when == "never" or (when == "auto" and not _takes_color()):
        return None
    try:
        from rich.color import ColorSystem  # noqa: PLC0415
        from rich.console import COLOR_SYSTEMS, Console  # noqa: PLC0415
    except ImportError:
        if when == "auto":
            return None
        raise CommandError(
            "--color always needs rich: pip install '.[server]' in a clone of Flyball"
        ) from None
    name = Console(force_terminal=True).color_system
    return ColorSystem.STANDARD if name is None else COLOR_SYSTEMS[name]


def row_colors(
    system: ColorSystem | None,
    models: Sequence[PipelineModel],
    assignments: Sequence[Assignment],
) -> tuple[Paint | None, list[str]]:
    """Return a painter for the instructions of these pipelines, and the lines of its legend.

    The range is as in the plot: from the plan's lowest clock to the highest available.
    """
    if system is None:
        return None, []
    chosen = [
        (points, choice)
        for model, assignment in zip(models, assignments, strict=True)
        for points, choice in zip(model.points, assignment, strict=True)
    ]
    lowest_mhz = min(points[choice].frequency_mhz for points, choice in chosen)
    highest_mhz = max(points[0].frequency_mhz for points, _ in chosen)
    colors = ClockColors(lowest_mhz, highest_mhz, system)
    has_blocks = "utf" in sys.stdout.encoding.lower()
    return colors.paint, [colors.legend(has_blocks=has_blocks)]


def _takes_color() -> bool:
    is_dumb = os.environ.get("TERM", "").lower() in {"dumb", "unknown"}
    return sys.stdout.isatty() and not is_dumb and not os.environ.get("NO_COLOR")


def painted_rows(timeline: SimulatedPlan, system: ColorSystem | None) -> list[str]:
    """Return the legend of the colours, and a row per stage with its instructions.

    Of separate pipelines there is one block each, by `dp_rank`, an empty line between them. Units
    in `[ ]` are on the pipeline's own longest path; `system` None: without colour.
    """
    models, assignments = timeline.models, timeline.assignments
    simulation = timeline.simulation
    paint, legend = row_colors(system, models, assignments)
    if not timeline.plan.is_separate:
        return [*legend, *plan_rows(models[0], assignments[0], simulation.whole, paint)]
    whole_s = simulation.whole.iteration_time_s
    blocks: list[str] = []
    for dp_rank, (model, assignment, own) in enumerate(
        zip(models, assignments, simulation.pipelines, strict=True)
    ):
        waits_ms = (whole_s - own.iteration_time_s) * 1e3
        heading = (
            f"dp_rank {dp_rank}: done at {own.iteration_time_s:.4f} s, then waits"
            f" {waits_ms:.1f} ms; {own.energy_j:.2f} J in all"
        )
        blocks.append("\n".join([heading, *plan_rows(model, assignment, own, paint)]))
    return [*legend, "\n\n".join(blocks)]

"""A job's stages as a table: what each took in the newest steps, its clock planned and measured."""

from __future__ import annotations

from flyball_client.cli.top.columns import MEASURED, Column, Table, emulated_columns, laid_out
from flyball_client.cli.top.figure_text import UNKNOWN, time_text, watts_text
from flyball_client.cli.top.lines import Line, Span, Tone
from flyball_client.cli.top.marks import Marks, Paper, bar, sparkline
from flyball_client.cli.top.reading import JobReading
from flyball_client.cli.top.stage_figures import StageFigures, Window, newest_window, whole_steps

_BAR_WIDTH = 10
_SPARK_WIDTH = 24

_COLUMNS = (
    Column(heading="stage"),
    Column(heading="MHz", group="planned"),
    Column(heading="MHz", group=MEASURED, rank=1),
    Column(heading="time, s", group=MEASURED),
    Column(heading="power, W", group=MEASURED),
    Column(heading="", group=MEASURED, is_text=True, rank=3),
    Column(heading="low clocks", group=MEASURED, rank=1),
    Column(heading="by power", group=MEASURED, rank=2),
    Column(heading="by heat", group=MEASURED, rank=2),
    Column(heading="power, newest steps", group=MEASURED, is_text=True, rank=4),
)


def stage_lines(reading: JobReading, paper: Paper) -> list[Line]:
    """The table under a line that says which steps it is of; nothing without a step."""
    job = reading.overview
    window = newest_window(job.measured, whole_steps(reading.steps, job.num_ranks))
    if window is None:
        return []
    clocks_mhz = _planned_mhz(reading, window.version)
    most_w = max((stage.power_w or 0.0 for stage in window.stages), default=0.0)
    # A column that is empty is left out.
    unread = UNKNOWN if any(stage.sm_clock_mhz is not None for stage in window.stages) else ""
    rows = tuple(_row(stage, most_w, clocks_mhz, unread, paper.marks) for stage in window.stages)
    columns = emulated_columns(_COLUMNS) if job.emulated else _COLUMNS
    table = Table(columns=columns, rows=rows)
    headings, lines = laid_out(table, paper.width, paper.marks)
    return [(), (Span(_title(reading, window), Tone.MUTED),), *headings, *lines]


def _title(reading: JobReading, window: Window) -> str:
    steps = f"stages in steps {window.first_step} to {window.last_step}"
    if window.version is None:
        return f"{steps}, without a plan"
    made = next((each for each in reading.history if each.version == window.version), None)
    if made is not None and made.kind == "comparison":
        return f"{steps}, on version {window.version}, some at the highest clocks to compare"
    return f"{steps}, on version {window.version}"


def _planned_mhz(reading: JobReading, version: int | None) -> tuple[float, ...]:
    for made in reading.history:
        if made.version == version:
            return made.stage_clock_mhz
    return ()


def _row(
    stage: StageFigures, most_w: float, clocks_mhz: tuple[float, ...], unread: str, marks: Marks
) -> tuple[Span, ...]:
    share = stage.power_w / most_w if stage.power_w and most_w else 0.0
    is_planned = stage.stage < len(clocks_mhz)
    return (
        Span(str(stage.stage)),
        Span(f"{clocks_mhz[stage.stage]:.0f}" if is_planned else UNKNOWN),
        Span(unread if stage.sm_clock_mhz is None else f"{stage.sm_clock_mhz:.0f}"),
        Span(time_text(stage.time_s)),
        Span(watts_text(stage.power_w)),
        Span(bar(share, _BAR_WIDTH, marks), Tone.ACCENT),
        _count(stage.num_clock_misses),
        _count(stage.num_power_capped),
        _count(stage.num_thermally_capped),
        Span(sparkline(stage.powers_w, _SPARK_WIDTH, marks), Tone.ACCENT),
    )


def _count(number: int) -> Span:
    return Span(str(number), Tone.WARN if number else Tone.PLAIN)

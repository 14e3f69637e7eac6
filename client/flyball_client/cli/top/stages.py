"""A job's measured steps and stages: sparklines of the newest steps, and a table of the stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flyball_client.cli.top.columns import MEASURED, Column, laid_out
from flyball_client.cli.top.lines import (
    CLOCK_MHZ,
    POWER_W,
    TIME_S,
    UNKNOWN,
    Line,
    Paper,
    Span,
    Tone,
    bar,
    number_text,
    sparkline,
    texts,
)
from flyball_client.cli.top.reading import JobReading
from flyball_wire.read_models import (
    JobOverview,
    MeasuredIteration,
    PlanKind,
    StageOfStep,
    StagesOfStep,
)

# Where the planner names no window.
_WINDOW_STEPS = 20
_FEWEST_SHOWN = 10
_LABEL_WIDTH = len("iteration time, s")
_HELD_DOWN = "P power, H heat, M other"
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

_ByStage = Mapping[int, StageOfStep]


def how(job: JobOverview) -> str:
    """Return the label of figures that the job's ranks posted."""
    return "measured (emulated)" if job.emulated else "measured"


def power_w(energy_j: float | None, time_s: float) -> float | None:
    """Return the mean power; None: the energy is not known."""
    return None if energy_j is None or time_s <= 0 else energy_j / time_s


def whole_steps(steps: Sequence[StagesOfStep], num_ranks: int) -> list[StagesOfStep]:
    """Return the steps that all ranks have posted."""
    return [step for step in steps if step.num_ranks >= num_ranks]


def step_lines(job: JobOverview, steps: Sequence[StagesOfStep], paper: Paper) -> list[Line]:
    """Draw the newest steps that all ranks have posted; no line without any."""
    room = max(_FEWEST_SHOWN, paper.width - _LABEL_WIDTH - len(_HELD_DOWN) - 4)
    shown = whole_steps(steps, job.num_ranks)[-room:]
    if not shown:
        return []
    times_s = [step.time_s for step in shown]
    powers_w = [power_w(step.energy_j, step.time_s) for step in shown]
    pictures = (
        ("iteration time, s", sparkline(times_s, room), Tone.ACCENT, _range(times_s, TIME_S)),
        ("power, W", sparkline(powers_w, room), Tone.ACCENT, _range(powers_w, POWER_W)),
        ("clocks held down", "".join(map(_held_down, shown)), Tone.WARN, _HELD_DOWN),
    )
    heading = f"steps {shown[0].step} to {shown[-1].step}, {how(job)}"
    lines: list[Line] = [
        (Span(f"{label:<{_LABEL_WIDTH}}  "), Span(picture, tone), Span(f"  {beside}"))
        for label, picture, tone, beside in pictures
        if picture.strip()
    ]
    return [(), (Span(heading, Tone.MUTED),), *lines]


def _range(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "not known"
    low, high = f"{min(known):{form}}", f"{max(known):{form}}"
    return low if low == high else f"{low} to {high}"


def _held_down(step: StagesOfStep) -> str:
    """Return a letter for the reason of low clocks, the rarest reason first."""
    if any(stage.num_thermally_capped for stage in step.stages):
        return "H"
    if any(stage.num_power_capped for stage in step.stages):
        return "P"
    return "M" if any(stage.num_clock_misses for stage in step.stages) else " "


@dataclass(frozen=True, kw_only=True)
class StageFigures:
    """Means of one stage over the window's steps.

    Attributes:
        time_s: time of its slowest rank in a step.
        power_w: power of all its ranks; None: an energy was not measured.
        powers_w: power in each of the steps that are kept, inside the window or before it.
        num_clock_misses, num_power_capped, num_thermally_capped: sums over the window.
        sm_clock_mhz: mean of the clocks that were read back; None: not measured.
    """

    stage: int
    time_s: float
    power_w: float | None
    powers_w: tuple[float | None, ...]
    num_clock_misses: int
    num_power_capped: int
    num_thermally_capped: int
    sm_clock_mhz: float | None


@dataclass(frozen=True, kw_only=True)
class Window:
    """Figures of some steps, all of one version; version None: default clocks, no plan."""

    first_step: int
    last_step: int
    version: int | None
    stages: tuple[StageFigures, ...]


def newest_window(
    measured: MeasuredIteration | None, whole: Sequence[StagesOfStep]
) -> Window | None:
    """Return the stages' figures in the planner's window, or in the newest steps; None: no step.

    Args:
        measured: the planner's mean.
        whole: steps that all ranks have posted, rising.
    """
    newest = [step for step in whole[-_WINDOW_STEPS:] if _is_of_one_plan(step)]
    steps = [step for step in newest if step.plan_versions == newest[-1].plan_versions]
    if measured is not None:
        same = [
            step
            for step in whole
            if _is_of_one_plan(step) and step.plan_versions == (measured.version,)
        ]
        window = range(measured.first_step, measured.last_step + 1)
        steps = [step for step in same if step.step in window] or steps
    if not steps:
        return None
    by_step = {step.step: {stage.stage: stage for stage in step.stages} for step in whole}
    stages_of = [by_step[step.step] for step in steps]
    numbers = sorted({number for stages in stages_of for number in stages})
    return Window(
        first_step=steps[0].step,
        last_step=steps[-1].step,
        version=steps[-1].plan_versions[0],
        stages=tuple(_figures(number, stages_of, list(by_step.values())) for number in numbers),
    )


def _is_of_one_plan(step: StagesOfStep) -> bool:
    return len(step.plan_versions) == 1 and not step.unknown_versions


def _figures(number: int, window: Sequence[_ByStage], whole: Sequence[_ByStage]) -> StageFigures:
    own = [stages[number] for stages in window if number in stages]
    time_s = sum(stage.time_s for stage in own)
    energies_j = [stage.energy_j for stage in own if stage.energy_j is not None]
    energy_j = sum(energies_j) if len(energies_j) == len(own) else None
    clocks_mhz = [stage.sm_clock_mhz for stage in own if stage.sm_clock_mhz is not None]
    kept = [stages.get(number) for stages in whole]
    return StageFigures(
        stage=number,
        time_s=time_s / len(own),
        power_w=power_w(energy_j, time_s),
        powers_w=tuple(
            None if each is None else power_w(each.energy_j, each.time_s) for each in kept
        ),
        num_clock_misses=sum(stage.num_clock_misses for stage in own),
        num_power_capped=sum(stage.num_power_capped for stage in own),
        num_thermally_capped=sum(stage.num_thermally_capped for stage in own),
        sm_clock_mhz=sum(clocks_mhz) / len(clocks_mhz) if clocks_mhz else None,
    )


def stage_lines(reading: JobReading, paper: Paper) -> list[Line]:
    """Draw the stages as a table; no line without a step."""
    job = reading.overview
    window = newest_window(job.measured, whole_steps(reading.steps, job.num_ranks))
    if window is None:
        return []
    made = next((each for each in reading.history if each.version == window.version), None)
    clocks_mhz = made.stage_clock_mhz if made else ()
    plan = "without a plan" if window.version is None else f"on version {window.version}"
    title = f"stages in steps {window.first_step} to {window.last_step}, {plan}"
    if made is not None and made.kind == PlanKind.COMPARISON:
        title += ", some at the highest clocks to compare"
    most_w = max((stage.power_w or 0.0 for stage in window.stages), default=0.0)
    # A column that is empty is left out.
    unread = UNKNOWN if any(stage.sm_clock_mhz is not None for stage in window.stages) else ""
    rows = tuple(_row(stage, most_w, clocks_mhz, unread) for stage in window.stages)
    table = laid_out(_COLUMNS, rows, paper.width, measured=how(job))
    return [(), (Span(title, Tone.MUTED),), *table]


def _row(stage: StageFigures, most_w: float, clocks_mhz: tuple[float, ...], unread: str) -> Line:
    share = stage.power_w / most_w if stage.power_w and most_w else 0.0
    planned_mhz = clocks_mhz[stage.stage] if stage.stage < len(clocks_mhz) else None
    counts = (stage.num_clock_misses, stage.num_power_capped, stage.num_thermally_capped)
    return (
        *texts(
            str(stage.stage),
            number_text(planned_mhz, CLOCK_MHZ),
            unread if stage.sm_clock_mhz is None else number_text(stage.sm_clock_mhz, CLOCK_MHZ),
            number_text(stage.time_s, TIME_S),
            number_text(stage.power_w, POWER_W),
        ),
        Span(bar(share, _BAR_WIDTH), Tone.ACCENT),
        *(Span(str(number), Tone.WARN if number else Tone.PLAIN) for number in counts),
        Span(sparkline(stage.powers_w, _SPARK_WIDTH), Tone.ACCENT),
    )

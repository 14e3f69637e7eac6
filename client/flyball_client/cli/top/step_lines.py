"""A job's newest steps as sparklines: iteration time, power, and where clocks were held down."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_client.cli.top.lines import Line, Span, Tone
from flyball_client.cli.top.marks import Marks, Paper, sparkline
from flyball_client.cli.top.stage_figures import power_w, whole_steps
from flyball_wire.read_models import JobOverview, StagesOfStep

_FEWEST_SHOWN = 10
_LABELS = ("iteration time, s", "power, W", "clocks held down")
_HELD_DOWN = "P power, H heat, M other"


def step_lines(job: JobOverview, steps: Sequence[StagesOfStep], paper: Paper) -> list[Line]:
    """Lines of the newest steps that all ranks have posted; none without any."""
    whole = whole_steps(steps, job.num_ranks)
    if not whole:
        return []
    room = paper.width - len(_LABELS[0]) - max(map(len, _ranges(whole))) - 4
    shown = whole[-max(_FEWEST_SHOWN, room) :]
    how = "measured (emulated)" if job.emulated else "measured"
    heading = f"steps {shown[0].step} to {shown[-1].step}, {how}"
    return [(), (Span(heading, Tone.MUTED),), *_pictured(shown, paper.marks)]


def _ranges(steps: Sequence[StagesOfStep]) -> tuple[str, str, str]:
    """Return what stands beside each picture."""
    times_s = [step.time_s for step in steps]
    return _range(times_s, ".4f"), _range(_powers_w(steps), ".1f"), _HELD_DOWN


def _powers_w(steps: Sequence[StagesOfStep]) -> list[float | None]:
    return [power_w(step.energy_j, step.time_s) for step in steps]


def _pictured(steps: Sequence[StagesOfStep], marks: Marks) -> list[Line]:
    """A line each, without one that is empty."""
    room = len(steps)
    pictures = (
        sparkline([step.time_s for step in steps], room, marks),
        sparkline(_powers_w(steps), room, marks),
        "".join(map(_held_down, steps)),
    )
    tones = (Tone.ACCENT, Tone.ACCENT, Tone.WARN)
    return [
        (
            Span(f"{label:<{len(_LABELS[0])}}  "),
            Span(f"{picture:<{room}}", tone),
            Span(f"  {text}"),
        )
        for label, picture, text, tone in zip(_LABELS, pictures, _ranges(steps), tones, strict=True)
        if picture.strip()
    ]


def _range(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "not known"
    low, high = f"{min(known):{form}}", f"{max(known):{form}}"
    return low if low == high else f"{low} to {high}"


def _held_down(step: StagesOfStep) -> str:
    """One letter for what kept clocks below those that were set, the rarest reason first."""
    if any(stage.num_thermally_capped for stage in step.stages):
        return "H"
    if any(stage.num_power_capped for stage in step.stages):
        return "P"
    return "M" if any(stage.num_clock_misses for stage in step.stages) else " "

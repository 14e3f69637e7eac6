"""What each stage took in the newest steps that ran alike, measured; no text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flyball_wire.read_models import MeasuredIteration, StageOfStep, StagesOfStep

# Where the planner names no window.
_WINDOW_STEPS = 20

_ByStage = Mapping[int, StageOfStep]


@dataclass(frozen=True, kw_only=True)
class StageFigures:
    """One stage, as the mean of the window's steps.

    Attributes:
        time_s: of its slowest rank in a step.
        power_w: of all its ranks; None: the energy of one cannot be read.
        powers_w: in each of the steps that are kept, rising, inside the window or before it.
        num_clock_misses, num_power_capped, num_thermally_capped: added up over the window.
        sm_clock_mhz: measured, the mean of those steps in which it was read back; None: in none.
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
    """The steps that the figures are of, all of one version.

    Attributes:
        version: of the plan; None: none, default clocks.
    """

    first_step: int
    last_step: int
    num_steps: int
    version: int | None
    stages: tuple[StageFigures, ...]


def whole_steps(steps: Sequence[StagesOfStep], num_ranks: int) -> list[StagesOfStep]:
    """Those that all ranks have posted."""
    return [step for step in steps if step.num_ranks >= num_ranks]


def power_w(energy_j: float | None, time_s: float) -> float | None:
    """The mean power; None where the energy is not known."""
    return None if energy_j is None or time_s <= 0 else energy_j / time_s


def newest_window(
    measured: MeasuredIteration | None, whole: Sequence[StagesOfStep]
) -> Window | None:
    """The stages in the steps that the planner took its mean of, or in the newest; None: no step.

    Args:
        measured: the planner's mean.
        whole: steps that all ranks have posted, rising.
    """
    steps = _same_as_measured(measured, whole) or _newest_alike(whole)
    if not steps:
        return None
    by_step = {step.step: {stage.stage: stage for stage in step.stages} for step in whole}
    window = [by_step[step.step] for step in steps]
    numbers = sorted({number for stages in window for number in stages})
    return Window(
        first_step=steps[0].step,
        last_step=steps[-1].step,
        num_steps=len(steps),
        version=steps[-1].plan_versions[0],
        stages=tuple(_figures(number, window, list(by_step.values())) for number in numbers),
    )


def _same_as_measured(
    measured: MeasuredIteration | None, whole: Sequence[StagesOfStep]
) -> list[StagesOfStep]:
    if measured is None:
        return []
    return [
        step
        for step in whole
        if measured.first_step <= step.step <= measured.last_step
        and step.plan_versions == (measured.version,)
    ]


def _newest_alike(whole: Sequence[StagesOfStep]) -> list[StagesOfStep]:
    newest = [step for step in whole[-_WINDOW_STEPS:] if len(step.plan_versions) == 1]
    return [step for step in newest if step.plan_versions == newest[-1].plan_versions]


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
            None if stage is None else power_w(stage.energy_j, stage.time_s) for stage in kept
        ),
        num_clock_misses=sum(stage.num_clock_misses for stage in own),
        num_power_capped=sum(stage.num_power_capped for stage in own),
        num_thermally_capped=sum(stage.num_thermally_capped for stage in own),
        sm_clock_mhz=sum(clocks_mhz) / len(clocks_mhz) if clocks_mhz else None,
    )

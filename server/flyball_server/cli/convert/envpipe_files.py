"""EnvPipe's output: rows of a plan in a log, and the printed profile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from flyball_pipeline.instruction import Instruction, InstructionKind
from flyball_pipeline.schedules.inputs import ExplicitOrder
from flyball_profiles.stage_profile import OperatingPoint, StageProfile
from flyball_profiles.stage_profile_csv import write_stage_profile
from flyball_server.cli.convert.foreign_plan import ForeignPlan, named_schedule
from flyball_server.planning.documents.plan_text import LETTERS
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.least_energy_clock import stage_least_energy

_KIND_OF = {letter: kind for kind, letter in LETTERS.items()}
_ROW = re.compile(r"Stage\s+(\d{1,6}) \| (.*)")
_UNIT = re.compile(r"([FBIWR])(\d{1,9}) (\d{1,9}) (-?\d{1,12}(?:\.\d{1,6})?)")
_MINIMUM = re.compile(r"\[ENVPIPE\] Minimum sm freq for stage (\d{1,6}) : (\d{1,9})")
_NUMBER = r"(\d{1,12}(?:\.\d{1,20})?(?:e-?\d{1,2})?)"
_TIMES = re.compile(rf"Forward: {_NUMBER} {_NUMBER} Backward {_NUMBER} {_NUMBER}")
_KINDS = (InstructionKind.FORWARD, InstructionKind.BACKWARD)


def has_plan(text: str) -> bool:
    """Return whether a log shows a plan."""
    return _ROW.search(text) is not None


def has_profile(text: str) -> bool:
    """Return whether a log has the lines at the end of EnvPipe's profiling."""
    return _MINIMUM.search(text) is not None


def plan_of_log(text: str) -> ForeignPlan:
    """Read the last plan that a log shows, a row `Stage S | F0 MHZ MS ...` for each stage.

    Raises:
        PlanningError: there is none, or its order is not complete.
    """
    stages: list[list[tuple[Instruction, int]]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        row = _ROW.search(line)
        if row is None:
            continue
        if int(row[1]) == 0:
            stages = []
        if int(row[1]) != len(stages):
            raise PlanningError(
                f"stage {row[1]} follows {len(stages)} stages", field=f"line {number}"
            )
        units = _UNIT.findall(row[2])
        if not units or _UNIT.sub("", row[2]).strip("[] \t"):
            raise PlanningError("must be units such as [F0 1410 0.0]", field=f"line {number}")
        stages.append(
            [
                (Instruction(_KIND_OF[letter], int(microbatch)), int(clock_mhz))
                for letter, microbatch, clock_mhz, _ in units
            ]
        )
    if not stages:
        raise PlanningError("has no rows of a plan (Stage 0 | ...)", field="log")
    order = ExplicitOrder(stages=tuple(tuple(unit for unit, _ in row) for row in stages))
    return ForeignPlan(
        schedule=named_schedule(order),
        clocks_mhz=tuple(tuple(clock_mhz for _, clock_mhz in row) for row in stages),
    )


def log_rows(plan: ForeignPlan) -> str:
    """Return EnvPipe's rows of a plan without a profile: waits are 0.0, no path is marked.

    Raises:
        PlanningError: stages hold several chunks, which EnvPipe has not.
    """
    if plan.schedule.num_chunks > 1:
        raise PlanningError("EnvPipe has no stages of several chunks", field="stages")
    return "".join(
        f"Stage {stage} | "
        + " ".join(
            f" {LETTERS[kind]}{microbatch} {clock_mhz} 0.0 "
            for (kind, microbatch, _), clock_mhz in zip(instructions, clocks, strict=True)
        )
        + "\n"
        for stage, (instructions, clocks) in enumerate(
            zip(plan.schedule.stages, plan.clocks, strict=True)
        )
    )


@dataclass(frozen=True, kw_only=True)
class _StageTimes:
    """Times of a stage that EnvPipe prints, ms: forward and backward, each at two clocks."""

    least_energy_mhz: int
    times_ms: tuple[float, float, float, float]


def profile_of_log(
    text: str, highest_mhz: int | None, computing_power_w: tuple[float, float] | None
) -> str:
    """Return the stage profile, CSV, of the two clocks that EnvPipe prints for each stage.

    Args:
        text: the log.
        highest_mhz: highest clock profiled; None: the highest of the plan in the log.
        computing_power_w: power of a GPU that computes at the highest clock, and at the clock of
            least energy, W: EnvPipe prints no energy.

    Raises:
        PlanningError: a part is missing or cannot be right.
    """
    stages = _stage_times(text)
    if computing_power_w is None:
        raise PlanningError(
            "EnvPipe prints no energy; give --computing-power W,W, a GPU's power while it computes"
            " at the highest clock and at the clock of least energy, or measure a profile with"
            " flyball profile run",
            field="log",
        )
    if highest_mhz is None:
        highest_mhz = max(max(clocks) for clocks in plan_of_log(text).clocks)
    points: dict[tuple[int, InstructionKind], tuple[OperatingPoint, ...]] = {}
    for stage, of_stage in enumerate(stages):
        clocks = ((highest_mhz, 0), (of_stage.least_energy_mhz, 1))
        if of_stage.least_energy_mhz > highest_mhz:
            raise PlanningError(
                f"stage {stage} has {of_stage.least_energy_mhz} MHz, above the highest clock"
                f" {highest_mhz} MHz; give --highest-clock MHZ",
                field="log",
            )
        for place, kind in enumerate(_KINDS):
            points[stage, kind] = tuple(
                OperatingPoint(
                    frequency_mhz=clock_mhz,
                    time_s=of_stage.times_ms[2 * place + at] / 1e3,
                    energy_j=computing_power_w[at] * of_stage.times_ms[2 * place + at] / 1e3,
                )
                for clock_mhz, at in clocks[: 1 if of_stage.least_energy_mhz == highest_mhz else 2]
            )
    return write_stage_profile(StageProfile(points=points, num_ranks_per_stage=(1,) * len(stages)))


def profile_log_text(profile: StageProfile) -> str:
    """Return what EnvPipe prints at the end of its profiling, for each stage.

    Raises:
        PlanningError: a stage has no whole backward.
    """
    lines: list[str] = []
    for stage in range(profile.num_stages):
        if (stage, InstructionKind.BACKWARD) not in profile.points:
            raise PlanningError(f"stage {stage} has no whole backward", field="profile")
        least = stage_least_energy(profile, stage, _KINDS)
        clock_mhz = max(point.frequency_mhz for point in least.values())
        times_ms = [
            point.time_s * 1e3
            for kind in _KINDS
            for point in (_highest(profile.points[stage, kind]), least[kind])
        ]
        forward, forward_least, backward, backward_least = times_ms
        lines += [
            f"[ENVPIPE] Minimum sm freq for stage {stage} : {clock_mhz}",
            f"Forward: {forward:.6f} {forward_least:.6f}"
            f" Backward {backward:.6f} {backward_least:.6f}",
        ]
    return "\n".join([*lines, ""])


def _highest(points: Sequence[OperatingPoint]) -> OperatingPoint:
    return max(points, key=lambda point: point.frequency_mhz)


def _stage_times(text: str) -> list[_StageTimes]:
    """Times by stage; ranks print in any order, each its two lines."""
    found: dict[int, _StageTimes] = {}
    stage: int | None = None
    clock_mhz = 0
    for line in text.splitlines():
        named, times = _MINIMUM.search(line), _TIMES.search(line)
        if named:
            stage, clock_mhz = int(named[1]), int(named[2])
        elif times and stage is not None:
            one, two, three, four = (float(times[group]) for group in range(1, 5))
            found[stage] = _StageTimes(least_energy_mhz=clock_mhz, times_ms=(one, two, three, four))
            stage = None
    if not found:
        raise PlanningError(
            "has no lines '[ENVPIPE] Minimum sm freq for stage 0 : MHZ' and 'Forward: ...'",
            field="log",
        )
    if sorted(found) != list(range(len(found))):
        missing = next(number for number in range(len(found) + 1) if number not in found)
        raise PlanningError(f"stage {missing} is missing", field="log")
    return [found[number] for number in range(len(found))]

"""A plan as plain data: what `flyball plan --json` prints, plan files hold and jobs store.

Reading is strict: a document that is not a plan is refused with the place that is wrong, and
nothing in it is ever evaluated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, cast

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.plan import (
    ConsideredSchedule,
    DataParallelPlan,
    FrequencyPlan,
    PlannedInstruction,
    PlannedPipeline,
    PlanPrediction,
)
from flyball_server.planning.planner import DEFAULT_TARGET


def plan_document(plan: FrequencyPlan, *, solve_s: float) -> dict[str, Any]:
    """The plan as JSON-ready data; `solve_s` is how long the planning took, s."""
    return {**_prediction(plan, plan.num_stages, solve_s), "stages": _stage_entries(plan.stages)}


def data_parallel_document(plan: DataParallelPlan, *, solve_s: float) -> dict[str, Any]:
    """Likewise for separate pipelines: `pipelines` in the place of `stages`."""
    return {
        **_prediction(plan, plan.num_stages, solve_s),
        "pipelines": [
            {
                "dp_rank": pipeline.dp_rank,
                "iteration_time_s": pipeline.iteration_time_s,
                "energy_j": pipeline.energy_j,
                "stages": _stage_entries(pipeline.stages),
            }
            for pipeline in plan.pipelines
        ],
    }


def instruction_entries(
    instructions: tuple[PlannedInstruction, ...],
) -> tuple[tuple[str | int, ...], ...]:
    """`[kind, microbatch, MHz]` of each, and a fourth element for a chunk other than 0."""
    return tuple(tuple(_entry(instruction)) for instruction in instructions)


def plan_from_document(document: object) -> FrequencyPlan:
    """The plan that `plan_document` wrote.

    Raises:
        PlanningError: the document is not a plan; `field` says where.
    """
    fields = _mapping(document, "plan")
    return FrequencyPlan(
        **_prediction_of(fields), stages=_planned_stages(fields.get("stages"), "stages")
    )


def is_data_parallel(document: object) -> bool:
    """Whether a document is of separate pipelines, for `data_parallel_plan_from_document`."""
    return isinstance(document, dict) and "pipelines" in document


def data_parallel_plan_from_document(document: object) -> DataParallelPlan:
    """The plan that `data_parallel_document` wrote.

    Raises:
        PlanningError: the document is not such a plan; `field` says where.
    """
    fields = _mapping(document, "plan")
    pipelines = _list(fields.get("pipelines"), "pipelines")
    if not pipelines:
        raise PlanningError("must hold at least one pipeline", field="pipelines")
    return DataParallelPlan(
        **_prediction_of(fields),
        pipelines=tuple(
            _planned_pipeline(entry, dp_rank) for dp_rank, entry in enumerate(pipelines)
        ),
    )


def _prediction(plan: PlanPrediction, num_stages: int, solve_s: float) -> dict[str, Any]:
    return {
        "policy": plan.policy,
        "reconfigure": plan.reconfigure,
        "schedule": plan.schedule,
        "target": plan.target,
        "num_stages": num_stages,
        "num_microbatches": plan.num_microbatches,
        "blocking_power_w": list(plan.blocking_power_w),
        "iteration_time_s": plan.iteration_time_s,
        "energy_j": plan.energy_j,
        "baseline": {
            "iteration_time_s": plan.baseline_iteration_time_s,
            "energy_j": plan.baseline_energy_j,
        },
        "saving_percent": plan.saving_percent,
        "slowdown_percent": plan.slowdown_percent,
        "lower_bound_j": plan.lower_bound_j,
        "gap_percent": plan.gap_percent,
        "solve_s": solve_s,
        **_shape(plan),
    }


def _shape(plan: PlanPrediction) -> dict[str, Any]:
    """Where chunks stand in the model, versions of weights, other orders: where there are some."""
    shape: dict[str, Any] = {}
    if plan.virtual_stages:
        shape["virtual_stages"] = [list(of_stage) for of_stage in plan.virtual_stages]
    if plan.weight_versions is not None:
        shape["weight_versions"] = list(plan.weight_versions)
    if plan.considered:
        shape["considered"] = [asdict(schedule) for schedule in plan.considered]
    return shape


def _prediction_of(fields: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `PlanPrediction` that the document holds."""
    baseline = _mapping(fields.get("baseline"), "baseline")
    bound = fields.get("lower_bound_j")
    return {
        "policy": _text(fields, "policy"),
        "reconfigure": _text(fields, "reconfigure"),
        "schedule": _text(fields, "schedule"),
        "target": _text(fields, "target") if "target" in fields else DEFAULT_TARGET,
        "num_microbatches": _count(fields.get("num_microbatches"), "num_microbatches"),
        "blocking_power_w": tuple(
            _number(power_w, "blocking_power_w")
            for power_w in _list(fields.get("blocking_power_w"), "blocking_power_w")
        ),
        "iteration_time_s": _positive(fields.get("iteration_time_s"), "iteration_time_s"),
        "energy_j": _positive(fields.get("energy_j"), "energy_j"),
        "baseline_iteration_time_s": _positive(
            baseline.get("iteration_time_s"), "baseline.iteration_time_s"
        ),
        "baseline_energy_j": _positive(baseline.get("energy_j"), "baseline.energy_j"),
        "lower_bound_j": None if bound is None else _positive(bound, "lower_bound_j"),
        "virtual_stages": tuple(
            _counts(of_stage, f"virtual_stages[{stage}]")
            for stage, of_stage in enumerate(
                _list(fields.get("virtual_stages", []), "virtual_stages")
            )
        ),
        "weight_versions": (
            _counts(fields["weight_versions"], "weight_versions")
            if "weight_versions" in fields
            else None
        ),
        "considered": tuple(
            _considered(entry, f"considered[{position}]")
            for position, entry in enumerate(_list(fields.get("considered", []), "considered"))
        ),
    }


def _considered(entry: object, where: str) -> ConsideredSchedule:
    fields = _mapping(entry, where)

    def figure(name: str) -> float | None:
        value = fields.get(name)
        return None if value is None else _number(value, f"{where}.{name}")

    name = _of_type(fields.get("schedule"), str, "text", f"{where}.schedule")
    return ConsideredSchedule(
        schedule=cast("str", name),
        lower_bound_j=figure("lower_bound_j"),
        iteration_time_s=figure("iteration_time_s"),
        energy_j=figure("energy_j"),
        why_not=None if fields.get("why_not") is None else _text(fields, "why_not"),
    )


def _planned_pipeline(entry: object, dp_rank: int) -> PlannedPipeline:
    where = f"pipelines[{dp_rank}]"
    fields = _mapping(entry, where)
    if _count(fields.get("dp_rank"), f"{where}.dp_rank") != dp_rank:
        raise PlanningError(
            f"must be {dp_rank}; pipelines stand by dp_rank, from 0", field=f"{where}.dp_rank"
        )
    return PlannedPipeline(
        dp_rank=dp_rank,
        iteration_time_s=_positive(fields.get("iteration_time_s"), f"{where}.iteration_time_s"),
        energy_j=_positive(fields.get("energy_j"), f"{where}.energy_j"),
        stages=_planned_stages(fields.get("stages"), f"{where}.stages"),
    )


def _stage_entries(
    stages: tuple[tuple[PlannedInstruction, ...], ...],
) -> list[list[list[str | int]]]:
    return [[_entry(instruction) for instruction in stage] for stage in stages]


def _planned_stages(value: object, where: str) -> tuple[tuple[PlannedInstruction, ...], ...]:
    return tuple(
        tuple(
            _instruction(entry, f"{where}[{stage}][{position}]")
            for position, entry in enumerate(_list(entries, f"{where}[{stage}]"))
        )
        for stage, entries in enumerate(_list(value, where))
    )


def _entry(instruction: PlannedInstruction) -> list[str | int]:
    entry: list[str | int] = [
        str(instruction.kind),
        instruction.microbatch,
        instruction.frequency_mhz,
    ]
    return [*entry, instruction.chunk] if instruction.chunk else entry


def _instruction(entry: object, where: str) -> PlannedInstruction:
    items = _list(entry, where)
    if len(items) not in (3, 4):
        raise PlanningError(
            "must be [kind, microbatch, MHz], with the chunk as a fourth where there are chunks",
            field=where,
        )
    kind = next((kind for kind in InstructionKind if kind == items[0]), None)
    if kind is None:
        raise PlanningError(
            f"unknown instruction; known: {', '.join(InstructionKind)}", field=where
        )
    return PlannedInstruction(
        kind=kind,
        microbatch=_count(items[1], where),
        frequency_mhz=_count(items[2], where),
        chunk=_count(items[3], where) if len(items) == 4 else 0,
    )


def _mapping(value: object, where: str) -> dict[str, Any]:
    return cast("dict[str, Any]", _of_type(value, dict, "an object", where))


def _list(value: object, where: str) -> list[object]:
    return cast("list[object]", _of_type(value, list, "a list", where))


def _text(fields: dict[str, Any], where: str) -> str:
    return cast("str", _of_type(fields.get(where), str, "text", where))


def _of_type(value: object, wanted: type, called: str, where: str) -> object:
    if not isinstance(value, wanted):
        raise PlanningError(f"must be {called}", field=where)
    return value


def _counts(value: object, where: str) -> tuple[int, ...]:
    return tuple(_count(item, where) for item in _list(value, where))


def _number(value: object, where: str) -> float:
    return float(
        _checked(value, (int, float), lambda number: number >= 0, "a number, not negative", where)
    )


def _positive(value: object, where: str) -> float:
    return float(
        _checked(value, (int, float), lambda number: number > 0, "a number above 0", where)
    )


def _count(value: object, where: str) -> int:
    return int(_checked(value, (int,), lambda number: number >= 0, "a count from 0 up", where))


def _checked(
    value: object,
    types: tuple[type, ...],
    accepts: Callable[[float], bool],
    called: str,
    where: str,
) -> float:
    if isinstance(value, bool) or not isinstance(value, types):
        raise PlanningError(f"must be {called}", field=where)
    number = cast("float", value)
    # An int compares exactly with a float; only converting a huge one to float would overflow.
    if not -sys.float_info.max <= number <= sys.float_info.max or not accepts(number):
        raise PlanningError(f"must be {called}", field=where)
    return number

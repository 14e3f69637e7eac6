"""A plan as plain data: what `flyball plan --json` prints, plan files hold and jobs store.

Reading is strict: a document that is not a plan is refused with the place that is wrong, and
nothing in it is ever evaluated.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar, cast

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.clock_transitions import ClockTransitions, TransitionsError
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.plan import (
    ConsideredSchedule,
    DataParallelPlan,
    FrequencyPlan,
    PipelineClocks,
    PlannedInstruction,
    PlannedPipeline,
    PlannedRequest,
    PlannedStages,
    PlanPrediction,
    Slowdown,
)
from flyball_wire.closed_loop import NO_RESERVE, ComparedPlan, Reserve, ReserveChoice
from flyball_wire.plan_options import DEFAULT_TARGET

ItemT = TypeVar("ItemT")


def mapping_of(value: object, where: str) -> dict[str, Any]:
    """An object."""
    return cast("dict[str, Any]", typed_of(value, dict, "an object", where))


def list_of(value: object, where: str) -> list[object]:
    """A list."""
    return cast("list[object]", typed_of(value, list, "a list", where))


def each_of(value: object, where: str, read: Callable[[object, str], ItemT]) -> tuple[ItemT, ...]:
    """A list whose items are read one by one, each with its place."""
    items = enumerate(list_of(value, where))
    return tuple(read(item, f"{where}[{position}]") for position, item in items)


def text_of(fields: dict[str, Any], where: str) -> str:
    """Return the text in this field."""
    return cast("str", typed_of(fields.get(where), str, "text", where))


def typed_of(value: object, wanted: type, called: str, where: str) -> object:
    """A value of this type, as it is called to people."""
    if not isinstance(value, wanted):
        raise PlanningError(f"must be {called}", field=where)
    return value


def counts_of(value: object, where: str) -> tuple[int, ...]:
    """A list of counts."""
    return tuple(count_of(item, where) for item in list_of(value, where))


def number_of(value: object, where: str) -> float:
    """A finite number, not negative."""
    return float(
        _checked(value, (int, float), lambda number: number >= 0, "a number, not negative", where)
    )


def positive_of(value: object, where: str) -> float:
    """A finite number above 0."""
    return float(
        _checked(value, (int, float), lambda number: number > 0, "a number above 0", where)
    )


def count_of(value: object, where: str) -> int:
    """A whole number from 0 up."""
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


# Far above any real job; a broken document must not fill the memory.
MAX_PIPELINES = 1_048_576
_BEGIN = "begin"
_KINDS = {str(kind): kind for kind in InstructionKind}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def plan_document(plan: FrequencyPlan, *, solve_s: float) -> dict[str, Any]:
    """Return the plan as JSON-ready data; `solve_s` is the planning time in s."""
    return {
        **_prediction(plan, solve_s),
        **_clocks_entry(plan),
    }


def data_parallel_document(plan: DataParallelPlan, *, solve_s: float) -> dict[str, Any]:
    """Likewise for separate pipelines: `pipelines` in the place of `stages`."""
    return {
        **_prediction(plan, solve_s),
        "pipelines": [_pipeline_entry(pipeline) for pipeline in plan.pipelines],
    }


def _pipeline_entry(pipeline: PlannedPipeline) -> dict[str, Any]:
    alike = {"dp_ranks": list(pipeline.dp_ranks)} if pipeline.dp_ranks else {}
    return {
        "dp_rank": pipeline.dp_rank,
        **alike,
        "iteration_time_s": pipeline.iteration_time_s,
        "energy_j": pipeline.energy_j,
        **_clocks_entry(pipeline),
    }


def _clocks_entry(clocks: PipelineClocks) -> dict[str, Any]:
    """Return a pipeline's stages, and where there are any, its requests and slowdown factors.

    A request is `[stage, position, after_position, "begin", offset_s]`, a slowdown factor
    `[stage, kind, factor]`, kind null for all kinds.
    """
    requests = [
        [stage, position, after_position, _BEGIN, offset_s]
        for stage, position, after_position, offset_s in clocks.requests
    ]
    slowdowns = [
        [slowed.stage, None if slowed.kind is None else _NAMES[slowed.kind], slowed.slowdown]
        for slowed in clocks.slowdowns
    ]
    return {
        **({"requests": requests} if requests else {}),
        **({"slowdowns": slowdowns} if slowdowns else {}),
        "stages": stage_entries(clocks.stages),
    }


def _clocks_of(fields: dict[str, Any], within: str = "") -> dict[str, Any]:
    """Return the arguments of `PipelineClocks` that `_clocks_entry` wrote."""
    stages = stages_from_entries(fields.get("stages"), f"{within}stages")
    return {
        "stages": stages,
        "requests": _requests(fields.get("requests", []), stages, f"{within}requests"),
        "slowdowns": _slowdowns(fields.get("slowdowns", []), len(stages), f"{within}slowdowns"),
    }


def _requests(
    value: object, stages: tuple[tuple[PlannedInstruction, ...], ...], where: str
) -> tuple[PlannedRequest, ...]:
    requests: list[PlannedRequest] = []
    for number, entry in enumerate(list_of(value, where)):
        here = f"{where}[{number}]"
        items = list_of(entry, here)
        if len(items) != 5 or items[3] != _BEGIN:
            raise PlanningError(
                'must be [stage, position, after_position, "begin", offset_s]', field=here
            )
        stage, position, after_position = (count_of(item, here) for item in items[:3])
        if stage >= len(stages) or not after_position < position <= len(stages[stage]):
            raise PlanningError(
                "must name a stage of the plan and a position of it, after an earlier one",
                field=here,
            )
        clocks_mhz = {
            instruction.frequency_mhz for instruction in stages[stage][after_position:position]
        }
        if len(clocks_mhz) > 1:
            raise PlanningError("the clock changes between the two positions", field=here)
        requests.append(PlannedRequest(stage, position, after_position, number_of(items[4], here)))
    return tuple(requests)


def _slowdowns(value: object, num_stages: int, where: str) -> tuple[Slowdown, ...]:
    def read(entry: object, here: str) -> Slowdown:
        row = list_of(entry, here)
        kind = _KINDS.get(str(row[1])) if len(row) == 3 else None
        if len(row) != 3 or (kind is None) is not (row[1] is None):
            raise PlanningError("must be [stage, kind or null, factor]", field=here)
        stage = count_of(row[0], here)
        if stage >= num_stages:
            raise PlanningError("must name a stage of the plan", field=here)
        try:
            return Slowdown(stage=stage, kind=kind, slowdown=number_of(row[2], here))
        except PipelineError as error:
            raise PlanningError(error.message, field=here) from None

    return each_of(value, where, read)


def instruction_entries(
    instructions: tuple[PlannedInstruction, ...],
) -> tuple[tuple[str | int, ...], ...]:
    """`[kind, microbatch, MHz]` of each, and a fourth element for a chunk other than 0."""
    return tuple(
        (_NAMES[kind], microbatch, clock_mhz, chunk)
        if chunk
        else (_NAMES[kind], microbatch, clock_mhz)
        for kind, microbatch, clock_mhz, chunk in instructions
    )


def plan_from_document(document: object) -> FrequencyPlan:
    """Return the plan that `plan_document` wrote.

    Raises:
        PlanningError: the document is not a plan; `field` says where.
    """
    fields = mapping_of(document, "plan")
    return FrequencyPlan(**_prediction_of(fields), **_clocks_of(fields))


def is_data_parallel(document: object) -> bool:
    """Return whether a document is one for `data_parallel_plan_from_document`."""
    return isinstance(document, dict) and "pipelines" in document


def data_parallel_plan_from_document(document: object) -> DataParallelPlan:
    """Return the plan that `data_parallel_document` wrote.

    Raises:
        PlanningError: the document is not such a plan; `field` says where.
    """
    fields = mapping_of(document, "plan")
    pipelines = list_of(fields.get("pipelines"), "pipelines")
    if not pipelines:
        raise PlanningError("must hold at least one pipeline", field="pipelines")
    return DataParallelPlan(**_prediction_of(fields), pipelines=_planned_pipelines(pipelines))


def _prediction(plan: FrequencyPlan | DataParallelPlan, solve_s: float) -> dict[str, Any]:
    return {
        "policy": plan.policy,
        "reconfigure": plan.reconfigure,
        "schedule": plan.schedule,
        "target": plan.target,
        "num_stages": plan.num_stages,
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
        "transition_ms": plan.transition_ms,
        "num_switches": plan.num_switches,
        "solve_s": solve_s,
        **_shape(plan),
    }


def _shape(plan: PlanPrediction) -> dict[str, Any]:
    """Return the fields of a plan that most plans have not."""
    shape: dict[str, Any] = {}
    if plan.virtual_stages:
        shape["virtual_stages"] = [list(of_stage) for of_stage in plan.virtual_stages]
    if plan.weight_versions is not None:
        shape["weight_versions"] = list(plan.weight_versions)
    if plan.reserve != NO_RESERVE:
        shape["reserve"] = asdict(plan.reserve)
    if plan.transition_ms is None:
        shape["transitions"] = asdict(cast("ClockTransitions", plan.transitions))
    if plan.tail_s:
        shape["tail_ms"] = plan.tail_s * 1e3
    if any(plan.transfer_s):
        shape["transfer_ms"] = [time_s * 1e3 for time_s in plan.transfer_s]
    if plan.considered:
        shape["considered"] = [asdict(schedule) for schedule in plan.considered]
    if plan.compared:
        shape["compared"] = [asdict(compared) for compared in plan.compared]
    return shape


def _prediction_of(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `PlanPrediction` that the document holds."""
    baseline = mapping_of(fields.get("baseline"), "baseline")
    bound = fields.get("lower_bound_j")
    return {
        "policy": text_of(fields, "policy"),
        "reconfigure": text_of(fields, "reconfigure"),
        "schedule": text_of(fields, "schedule"),
        "target": text_of(fields, "target") if "target" in fields else DEFAULT_TARGET,
        "num_microbatches": count_of(fields.get("num_microbatches"), "num_microbatches"),
        "blocking_power_w": tuple(
            number_of(power_w, "blocking_power_w")
            for power_w in list_of(fields.get("blocking_power_w"), "blocking_power_w")
        ),
        "iteration_time_s": positive_of(fields.get("iteration_time_s"), "iteration_time_s"),
        "energy_j": positive_of(fields.get("energy_j"), "energy_j"),
        "baseline_iteration_time_s": positive_of(
            baseline.get("iteration_time_s"), "baseline.iteration_time_s"
        ),
        "baseline_energy_j": positive_of(baseline.get("energy_j"), "baseline.energy_j"),
        "lower_bound_j": None if bound is None else positive_of(bound, "lower_bound_j"),
        "virtual_stages": each_of(fields.get("virtual_stages", []), "virtual_stages", counts_of),
        "weight_versions": (
            counts_of(fields["weight_versions"], "weight_versions")
            if "weight_versions" in fields
            else None
        ),
        "reserve": _reserve(fields["reserve"]) if "reserve" in fields else NO_RESERVE,
        "transitions": _transitions(fields),
        "tail_s": number_of(fields.get("tail_ms", 0.0), "tail_ms") / 1e3,
        "transfer_s": tuple(
            number_of(time_ms, "transfer_ms") / 1e3
            for time_ms in list_of(fields.get("transfer_ms", []), "transfer_ms")
        ),
        "considered": each_of(fields.get("considered", []), "considered", _considered),
        "compared": each_of(fields.get("compared", []), "compared", _compared),
    }


def _transitions(fields: dict[str, Any]) -> ClockTransitions | None:
    """Times of clock changes: one delay, which older documents have not, or `transitions`."""
    delay_ms = fields.get("transition_ms", 0.0)
    try:
        if delay_ms is not None:
            delay_s = number_of(delay_ms, "transition_ms") / 1e3
            return ClockTransitions.exact(delay_s) if delay_s else None
        values = mapping_of(fields.get("transitions"), "transitions")
        known = [field.name for field in dataclasses.fields(ClockTransitions)]
        if not set(known) >= set(values):
            raise PlanningError(f"known fields: {', '.join(known)}", field="transitions")
        given: dict[str, Any] = {name: _transition(name, values[name]) for name in values}
        return ClockTransitions(**given)
    except (TransitionsError, TypeError) as error:
        raise PlanningError(str(error), field="transitions") from None


def _transition(name: str, value: object) -> object:
    where = f"transitions.{name}"
    if value is None:
        return None
    if name.endswith("_s"):
        return number_of(value, where)
    return typed_of(value, bool, "true or false", where)


def _reserve(entry: object) -> Reserve:
    fields = mapping_of(entry, "reserve")
    share, choice = number_of(fields.get("share"), "reserve.share"), fields.get("choice")
    if choice is None:
        return Reserve(share=share)
    given = mapping_of(choice, "reserve.choice")
    names = [field.name for field in dataclasses.fields(ReserveChoice)]
    figures = {name: number_of(given.get(name), f"reserve.choice.{name}") for name in names}
    return Reserve(share=share, choice=ReserveChoice(**figures))


def _compared(entry: object, where: str) -> ComparedPlan:
    fields = mapping_of(entry, where)
    return ComparedPlan(
        name=cast("str", typed_of(fields.get("name"), str, "text", f"{where}.name")),
        iteration_time_s=positive_of(fields.get("iteration_time_s"), f"{where}.iteration_time_s"),
        energy_j=positive_of(fields.get("energy_j"), f"{where}.energy_j"),
    )


def _considered(entry: object, where: str) -> ConsideredSchedule:
    fields = mapping_of(entry, where)

    def figure(name: str) -> float | None:
        value = fields.get(name)
        return None if value is None else number_of(value, f"{where}.{name}")

    name = typed_of(fields.get("schedule"), str, "text", f"{where}.schedule")
    return ConsideredSchedule(
        schedule=cast("str", name),
        lower_bound_j=figure("lower_bound_j"),
        iteration_time_s=figure("iteration_time_s"),
        energy_j=figure("energy_j"),
        why_not=None if fields.get("why_not") is None else text_of(fields, "why_not"),
    )


def _planned_pipelines(entries: list[object]) -> tuple[PlannedPipeline, ...]:
    """Return pipelines that cover each data-parallel rank from 0 exactly once."""
    pipelines: list[PlannedPipeline] = []
    left: set[int] = set()  # ranks below the highest so far that no pipeline has stood for
    num_ranks = 0
    for position, entry in enumerate(entries):
        where = f"pipelines[{position}]"
        pipeline = _planned_pipeline(entry, where, min(left, default=num_ranks))
        stands_for = pipeline.stands_for
        left |= set(range(num_ranks, stands_for[-1] + 1))
        if not left.issuperset(stands_for):
            raise PlanningError("an earlier pipeline has some of them", field=f"{where}.dp_ranks")
        left -= set(stands_for)
        num_ranks = max(num_ranks, stands_for[-1] + 1)
        pipelines.append(pipeline)
    if left:
        raise PlanningError(f"no pipeline stands for dp_rank {min(left)}", field="pipelines")
    return tuple(pipelines)


def _planned_pipeline(entry: object, where: str, dp_rank: int) -> PlannedPipeline:
    fields = mapping_of(entry, where)
    if count_of(fields.get("dp_rank"), f"{where}.dp_rank") != dp_rank:
        raise PlanningError(
            f"must be {dp_rank}; pipelines are ordered by dp_rank, from 0", field=f"{where}.dp_rank"
        )
    dp_ranks = counts_of(fields.get("dp_ranks", []), f"{where}.dp_ranks")
    if dp_ranks and (dp_ranks[0] != dp_rank or list(dp_ranks) != sorted(set(dp_ranks))):
        raise PlanningError(f"must increase, from {dp_rank} on", field=f"{where}.dp_ranks")
    if dp_ranks and dp_ranks[-1] >= MAX_PIPELINES:
        raise PlanningError(f"must be below {MAX_PIPELINES}", field=f"{where}.dp_ranks")
    clocks = _clocks_of(fields, f"{where}.")
    return PlannedPipeline(
        dp_rank=dp_rank,
        iteration_time_s=positive_of(fields.get("iteration_time_s"), f"{where}.iteration_time_s"),
        energy_j=positive_of(fields.get("energy_j"), f"{where}.energy_j"),
        dp_ranks=dp_ranks,
        **clocks,
    )


def stage_entries(stages: PlannedStages) -> list[list[list[str | int]]]:
    """Per stage, `[kind, microbatch, MHz]` of each instruction, and a chunk other than 0."""
    return [list(map(list, instruction_entries(stage))) for stage in stages]


def stages_from_entries(value: object, where: str) -> PlannedStages:
    """Return what `stage_entries` wrote.

    Raises:
        PlanningError: it is something else; `field` says where, from `where` on.
    """
    return each_of(value, where, lambda stage, place: each_of(stage, place, _instruction))


def _instruction(entry: object, where: str) -> PlannedInstruction:
    items = list_of(entry, where)
    if len(items) not in (3, 4):
        raise PlanningError(
            "must be [kind, microbatch, MHz], with the chunk as a fourth where there are chunks",
            field=where,
        )
    name, *counts = items
    if not isinstance(name, str) or name not in _KINDS:
        raise PlanningError(
            f"unknown instruction; known: {', '.join(InstructionKind)}", field=where
        )
    return PlannedInstruction(_KINDS[name], *(count_of(count, where) for count in counts))

"""A plan as plain data: what `flyball plan --json` prints, plan files hold and jobs store.

Reading is strict: a document that is not a plan is refused with the place that is wrong, and
nothing in it is ever evaluated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar, cast

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.clock_transitions import ClockTransitions, TransitionsError
from flyball_server.planning.errors import PlanningError
from flyball_wire.closed_loop import NO_RESERVE, ComparedPlan, Reserve
from flyball_wire.codec import decode
from flyball_wire.errors import CodecError
from flyball_wire.plan_options import DEFAULT_TARGET
from flyball_wire.plans.plan import (
    PROBE_POLICY,
    ConsideredSchedule,
    CycleClocks,
    PipelinePlan,
    Plan,
    PlannedInstruction,
    PlannedRequest,
    PlannedStages,
    Prediction,
    Slowdown,
    StagePrediction,
    check_cycle,
)
from flyball_wire.read_models import SavingSources

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


def finite_of(value: object, where: str) -> float:
    """A finite number."""
    return float(_checked(value, (int, float), lambda _: True, "a number", where))


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


def plan_document(plan: Plan, *, solve_s: float) -> dict[str, Any]:
    """Return the plan as JSON-ready data; `solve_s` is the planning time in s.

    Separate pipelines stand in `pipelines`, in the place of `stages`. A probe has no prediction; of
    its cycle each distinct row of clocks of a stage is written once: `cycle` holds, per step and
    stage, an index into `rows_mhz` of the stage.
    """
    return {
        "policy": plan.policy,
        "reconfigure": plan.reconfigure,
        "schedule": plan.schedule,
        "target": plan.target,
        "num_stages": plan.num_stages,
        "num_microbatches": plan.num_microbatches,
        "blocking_power_w": list(plan.blocking_power_w),
        "iteration_time_s": plan.iteration_time_s,
        **_prediction(plan),
        "solve_s": solve_s,
        **_shape(plan),
        **_pipelines(plan),
        **_cycle(plan.cycle_mhz),
    }


def _pipelines(plan: Plan) -> dict[str, Any]:
    if not plan.is_separate:
        return _clocks_entry(plan.pipelines[0])
    return {"pipelines": [_pipeline_entry(pipeline) for pipeline in plan.pipelines]}


def _pipeline_entry(pipeline: PipelinePlan) -> dict[str, Any]:
    dp_ranks = pipeline.dp_ranks
    return {
        "dp_rank": dp_ranks[0],
        **({"dp_ranks": list(dp_ranks)} if len(dp_ranks) > 1 else {}),
        "iteration_time_s": pipeline.iteration_time_s,
        "energy_j": pipeline.energy_j,
        **_clocks_entry(pipeline),
    }


def _cycle(cycle_mhz: CycleClocks) -> dict[str, Any]:
    if not cycle_mhz:
        return {}
    indices: list[dict[tuple[int, ...], int]] = [{} for _ in cycle_mhz[0]]
    cycle = [
        [index.setdefault(row, len(index)) for index, row in zip(indices, clocks_mhz, strict=True)]
        for clocks_mhz in cycle_mhz
    ]
    return {"rows_mhz": [[list(row) for row in index] for index in indices], "cycle": cycle}


def _clocks_entry(clocks: PipelinePlan) -> dict[str, Any]:
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
        "stages": [[_instruction_entry(item) for item in stage] for stage in clocks.stages],
    }


def _clocks_of(fields: dict[str, Any], within: str = "") -> dict[str, Any]:
    """Return the arguments of `PipelinePlan` that `_clocks_entry` wrote."""
    stages = each_of(
        fields.get("stages"),
        f"{within}stages",
        lambda stage, place: each_of(stage, place, _instruction),
    )
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


def _instruction_entry(instruction: PlannedInstruction) -> list[str | int]:
    """`[kind, microbatch, MHz]`, and a fourth element for a chunk other than 0."""
    kind, microbatch, clock_mhz, chunk = instruction
    entry: list[str | int] = [_NAMES[kind], microbatch, clock_mhz]
    return [*entry, chunk] if chunk else entry


def plan_from_document(document: object) -> Plan:
    """Return the plan that `plan_document` wrote.

    Raises:
        PlanningError: the document is not a plan; `field` says where.
    """
    fields = mapping_of(document, "plan")
    is_probe = fields.get("policy") == PROBE_POLICY
    prediction = None if is_probe else _prediction_of(fields)
    header = _header_of(fields)
    pipelines: tuple[PipelinePlan, ...]
    if "pipelines" in fields:
        pipelines = _planned_pipelines(list_of(fields["pipelines"], "pipelines"))
    else:
        pipelines = (PipelinePlan(**_clocks_of(fields)),)
    return Plan(
        **header,
        pipelines=pipelines,
        prediction=prediction,
        cycle_mhz=_cycle_of(fields, pipelines[0].stages) if is_probe else (),
    )


def _cycle_of(fields: dict[str, Any], stages: PlannedStages) -> CycleClocks:
    rows_mhz = each_of(
        fields.get("rows_mhz"), "rows_mhz", lambda rows, place: each_of(rows, place, counts_of)
    )

    def step(entry: object, where: str) -> tuple[tuple[int, ...], ...]:
        indices = counts_of(entry, where)
        if len(indices) != len(rows_mhz) or any(
            index >= len(rows) for index, rows in zip(indices, rows_mhz, strict=True)
        ):
            raise PlanningError("must name one row of rows_mhz per stage", field=where)
        return tuple(rows[index] for index, rows in zip(indices, rows_mhz, strict=True))

    cycle_mhz = each_of(fields.get("cycle"), "cycle", step)
    check_cycle(cycle_mhz, [len(stage) for stage in stages])
    return cycle_mhz


def _prediction(plan: Plan) -> dict[str, Any]:
    prediction = plan.prediction
    if prediction is None:
        return {}
    return {
        "energy_j": prediction.energy_j,
        "baseline": {
            "iteration_time_s": prediction.baseline_iteration_time_s,
            "energy_j": prediction.baseline_energy_j,
        },
        "saving_percent": prediction.saving_percent,
        "slowdown_percent": plan.slowdown_percent,
        "lower_bound_j": prediction.lower_bound_j,
        "gap_percent": prediction.gap_percent,
        "transition_ms": plan.transition_ms,
        "num_switches": plan.num_switches,
        **_account(prediction),
    }


def _account(prediction: Prediction) -> dict[str, Any]:
    """Return where the plan's energy goes and what saves it."""
    account: dict[str, Any] = {}
    if prediction.saving_sources is not None:
        account["saving_sources"] = asdict(prediction.saving_sources)
    if prediction.late_changes_j:
        account["late_changes_j"] = prediction.late_changes_j
    if prediction.stragglers_s:
        account["stragglers_s"] = prediction.stragglers_s
    if prediction.stages:
        account["stage_predictions"] = [asdict(stage) for stage in prediction.stages]
    return account


def _shape(plan: Plan) -> dict[str, Any]:
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
    if plan.prediction is not None and plan.prediction.compared:
        shape["compared"] = [asdict(compared) for compared in plan.prediction.compared]
    return shape


def _prediction_of(fields: dict[str, Any]) -> Prediction:
    baseline = mapping_of(fields.get("baseline"), "baseline")
    bound, sources = fields.get("lower_bound_j"), fields.get("saving_sources")
    return Prediction(
        energy_j=positive_of(fields.get("energy_j"), "energy_j"),
        baseline_iteration_time_s=positive_of(
            baseline.get("iteration_time_s"), "baseline.iteration_time_s"
        ),
        baseline_energy_j=positive_of(baseline.get("energy_j"), "baseline.energy_j"),
        lower_bound_j=None if bound is None else positive_of(bound, "lower_bound_j"),
        compared=_parts_of(ComparedPlan, fields, "compared"),
        saving_sources=None
        if sources is None
        else _part_of(SavingSources, sources, "saving_sources"),
        late_changes_j=finite_of(fields.get("late_changes_j", 0.0), "late_changes_j"),
        stragglers_s=finite_of(fields.get("stragglers_s", 0.0), "stragglers_s"),
        stages=_parts_of(StagePrediction, fields, "stage_predictions"),
    )


def _part_of(kind: type[ItemT], entry: object, where: str) -> ItemT:
    """Return a part whose form follows from its type."""
    try:
        return decode(kind, entry)
    except CodecError as error:
        raise PlanningError(str(error), field=where) from None


def _parts_of(kind: type[ItemT], fields: dict[str, Any], where: str) -> tuple[ItemT, ...]:
    return each_of(fields.get(where, []), where, lambda entry, at: _part_of(kind, entry, at))


def _header_of(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the other arguments of `Plan` that the document holds."""
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
        "virtual_stages": each_of(fields.get("virtual_stages", []), "virtual_stages", counts_of),
        "weight_versions": (
            counts_of(fields["weight_versions"], "weight_versions")
            if "weight_versions" in fields
            else None
        ),
        "reserve": _part_of(Reserve, fields.get("reserve", {}), "reserve"),
        "transitions": _transitions(fields),
        "tail_s": number_of(fields.get("tail_ms", 0.0), "tail_ms") / 1e3,
        "transfer_s": tuple(
            number_of(time_ms, "transfer_ms") / 1e3
            for time_ms in list_of(fields.get("transfer_ms", []), "transfer_ms")
        ),
        "considered": _parts_of(ConsideredSchedule, fields, "considered"),
    }


def _transitions(fields: dict[str, Any]) -> ClockTransitions | None:
    """Times of clock changes: one delay, which older documents have not, or `transitions`."""
    delay_ms = fields.get("transition_ms", 0.0)
    if delay_ms is None:
        return _part_of(ClockTransitions, fields.get("transitions"), "transitions")
    delay_s = number_of(delay_ms, "transition_ms") / 1e3
    try:
        return ClockTransitions.exact(delay_s) if delay_s else None
    except TransitionsError as error:
        raise PlanningError(str(error), field="transitions") from None


def _planned_pipelines(entries: list[object]) -> tuple[PipelinePlan, ...]:
    """Return pipelines that cover each data-parallel rank from 0 exactly once."""
    if not entries:
        raise PlanningError("must hold at least one pipeline", field="pipelines")
    pipelines: list[PipelinePlan] = []
    left: set[int] = set()  # ranks below the highest so far that no pipeline has stood for
    num_ranks = 0
    for position, entry in enumerate(entries):
        where = f"pipelines[{position}]"
        pipeline = _planned_pipeline(entry, where, min(left, default=num_ranks))
        dp_ranks = pipeline.dp_ranks
        left |= set(range(num_ranks, dp_ranks[-1] + 1))
        if not left.issuperset(dp_ranks):
            raise PlanningError("an earlier pipeline has some of them", field=f"{where}.dp_ranks")
        left -= set(dp_ranks)
        num_ranks = max(num_ranks, dp_ranks[-1] + 1)
        pipelines.append(pipeline)
    if left:
        raise PlanningError(f"no pipeline stands for dp_rank {min(left)}", field="pipelines")
    return tuple(pipelines)


def _planned_pipeline(entry: object, where: str, dp_rank: int) -> PipelinePlan:
    fields = mapping_of(entry, where)
    if count_of(fields.get("dp_rank"), f"{where}.dp_rank") != dp_rank:
        raise PlanningError(
            f"must be {dp_rank}; pipelines are ordered by dp_rank, from 0", field=f"{where}.dp_rank"
        )
    dp_ranks = counts_of(fields.get("dp_ranks", [dp_rank]), f"{where}.dp_ranks")
    if list(dp_ranks[:1]) != [dp_rank] or list(dp_ranks) != sorted(set(dp_ranks)):
        raise PlanningError(f"must increase, from {dp_rank} on", field=f"{where}.dp_ranks")
    if dp_ranks[-1] >= MAX_PIPELINES:
        raise PlanningError(f"must be below {MAX_PIPELINES}", field=f"{where}.dp_ranks")
    return PipelinePlan(
        dp_ranks=dp_ranks,
        iteration_time_s=positive_of(fields.get("iteration_time_s"), f"{where}.iteration_time_s"),
        energy_j=positive_of(fields.get("energy_j"), f"{where}.energy_j"),
        **_clocks_of(fields, f"{where}."),
    )


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

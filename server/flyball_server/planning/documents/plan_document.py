"""A plan as plain data: what `flyball plan --json` prints, plan files hold and jobs store.

The types below declare the document; its reader follows from them. A document that is not a plan is
refused with the place that is wrong, and nothing in it is ever evaluated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, cast

from annotated_types import Ge, Gt

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.clock_transitions import ClockTransitions, TransitionsError
from flyball_server.kit.checked_documents import adapter_of, first_fault
from flyball_server.planning.errors import PlanningError
from flyball_wire.closed_loop import NO_RESERVE, Reserve
from flyball_wire.codec import encode
from flyball_wire.plan_options import DEFAULT_TARGET
from flyball_wire.plans.plan import (
    PROBE_POLICY,
    ConsideredSchedule,
    CycleClocks,
    PipelinePlan,
    Plan,
    PlannedRequest,
    PlannedStages,
    Prediction,
    Slowdown,
    StagePrediction,
    check_cycle,
)
from flyball_wire.predictions import PredictedFigures

T = TypeVar("T")

Count = Annotated[int, Ge(0)]
NotNegative = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]


class _RequestRow(NamedTuple):
    stage: Count
    position: Count
    after_position: Count
    event: Literal["begin"]
    offset_s: NotNegative


class _SlowdownRow(NamedTuple):
    """A slowdown factor; the kind is null for all kinds."""

    stage: Count
    kind: InstructionKind | None
    slowdown: float


@dataclass(frozen=True, kw_only=True)
class _Strict:
    """A part of a document: numbers are no text, and finite."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"strict": True, "allow_inf_nan": False}


@dataclass(frozen=True, kw_only=True)
class _Baseline(_Strict):
    iteration_time_s: Positive
    energy_j: Positive


@dataclass(frozen=True, kw_only=True)
class _Clocks(_Strict):
    """Clocks of a pipeline.

    An instruction is `[kind, microbatch, MHz]`, with a fourth element for a chunk other than 0.
    """

    requests: tuple[_RequestRow, ...] = ()
    slowdowns: tuple[_SlowdownRow, ...] = ()
    stages: PlannedStages


@dataclass(frozen=True, kw_only=True)
class _Share(_Strict):
    """Data-parallel ranks of a pipeline; `dp_ranks` is left out where `dp_rank` alone runs it."""

    dp_rank: Count
    dp_ranks: tuple[Count, ...] = ()
    iteration_time_s: Positive
    energy_j: Positive


@dataclass(frozen=True, kw_only=True)
class _Pipeline(_Clocks, _Share):
    """Pipeline of a plan of separate pipelines."""


@dataclass(frozen=True, kw_only=True)
class _Header(_Strict):
    """Header of every plan; fields of type `object` follow from others and are not read.

    Times of clock changes are one delay, or `transitions` where `transition_ms` is null.
    """

    policy: str
    reconfigure: str
    schedule: str
    target: str = DEFAULT_TARGET
    num_stages: object = None
    num_microbatches: Count
    blocking_power_w: tuple[NotNegative, ...]
    iteration_time_s: Positive
    transition_ms: NotNegative | None = 0.0
    num_switches: object = None
    solve_s: object = None
    virtual_stages: tuple[tuple[Count, ...], ...] = ()
    weight_versions: tuple[Count, ...] | None = None
    reserve: Reserve = NO_RESERVE
    transitions: ClockTransitions | None = None
    tail_ms: NotNegative = 0.0
    transfer_ms: tuple[NotNegative, ...] = ()
    considered: tuple[ConsideredSchedule, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Figures(PredictedFigures, _Strict):
    """Prediction of a plan that is no probe."""

    energy_j: Positive
    baseline: _Baseline
    saving_percent: object = None
    slowdown_percent: object = None
    lower_bound_j: Positive | None = None
    gap_percent: object = None
    stage_predictions: tuple[StagePrediction, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Cycle(_Strict):
    """Clocks of a probe: per step and stage, an index into the stage's distinct rows of clocks."""

    rows_mhz: tuple[tuple[tuple[Count, ...], ...], ...]
    cycle: tuple[tuple[Count, ...], ...]


@dataclass(frozen=True, kw_only=True)
class _PlanDocument(_Clocks, _Figures, _Header):
    """A plan of one pipeline."""


@dataclass(frozen=True, kw_only=True)
class _SeparateDocument(_Figures, _Header):
    """A plan of separate pipelines."""

    pipelines: tuple[_Pipeline, ...]


@dataclass(frozen=True, kw_only=True)
class _ProbeDocument(_Cycle, _Clocks, _Header):
    """A probe, which has no prediction."""


# Written at their defaults too, as readers of `flyball plan --json` expect; others are left out.
_ALWAYS_WRITTEN = {"target", "lower_bound_j", "gap_percent", "transition_ms"}


def plan_document(plan: Plan, *, solve_s: float) -> dict[str, Any]:
    """Return the plan as JSON-ready data; `solve_s` is the planning time in s."""
    header = _shared(_Header, plan) | {
        "solve_s": solve_s,
        "transitions": plan.transitions if plan.transition_ms is None else None,
        "tail_ms": plan.tail_s * 1e3,
        "transfer_ms": [time_s * 1e3 for time_s in plan.transfer_s] if any(plan.transfer_s) else (),
    }
    prediction, clocks = plan.prediction, _clocks(plan.pipelines[0])
    if prediction is None:
        return _written(_ProbeDocument, header | clocks | _cycle(plan.cycle_mhz))
    figures = _shared(_Figures, prediction) | {
        "baseline": {
            "iteration_time_s": prediction.baseline_iteration_time_s,
            "energy_j": prediction.baseline_energy_j,
        },
        "slowdown_percent": plan.slowdown_percent,
        "stage_predictions": prediction.stages,
    }
    if not plan.is_separate:
        return _written(_PlanDocument, header | figures | clocks)
    pipelines = [_pipeline_document(pipeline) for pipeline in plan.pipelines]
    return _written(_SeparateDocument, header | figures | {"pipelines": pipelines})


def _pipeline_document(pipeline: PipelinePlan) -> dict[str, Any]:
    first, *others = pipeline.dp_ranks
    of_ranks = {"dp_rank": first, "dp_ranks": pipeline.dp_ranks if others else ()}
    return _written(_Pipeline, _shared(_Share, pipeline) | of_ranks | _clocks(pipeline))


def _clocks(pipeline: PipelinePlan) -> dict[str, Any]:
    return {
        "requests": tuple(
            _RequestRow(stage, position, after_position, "begin", offset_s)
            for stage, position, after_position, offset_s in pipeline.requests
        ),
        "slowdowns": tuple(
            _SlowdownRow(slowed.stage, slowed.kind, slowed.slowdown)
            for slowed in pipeline.slowdowns
        ),
        "stages": [
            [[str(item.kind), *(item[1:] if item.chunk else item[1:3])] for item in stage]
            for stage in pipeline.stages
        ],
    }


def _cycle(cycle_mhz: CycleClocks) -> dict[str, Any]:
    indices: list[dict[tuple[int, ...], int]] = [{} for _ in cycle_mhz[0]]
    cycle = [
        [index.setdefault(row, len(index)) for index, row in zip(indices, clocks_mhz, strict=True)]
        for clocks_mhz in cycle_mhz
    ]
    return {"rows_mhz": tuple(map(tuple, indices)), "cycle": cycle}


def _shared(kind: type[object], source: object) -> dict[str, Any]:
    """Return the values of a type's fields that the source has under the same names."""
    names = [field.name for field in fields(cast("Any", kind))]
    return {name: getattr(source, name) for name in names if hasattr(source, name)}


def _written(kind: type[object], values: dict[str, Any]) -> dict[str, Any]:
    # Lists are plain data already: there may be tens of thousands of instructions.
    return {
        field.name: value if isinstance(value, list) else encode(value)
        for field in fields(cast("Any", kind))
        if (value := values[field.name]) != field.default or field.name in _ALWAYS_WRITTEN
    }


def plan_from_document(document: object) -> Plan:
    """Return the plan that `plan_document` wrote.

    Raises:
        PlanningError: the document is not a plan; `field` says where.
    """
    given = _members(document)
    if given.get("policy") == PROBE_POLICY:
        probe = read_part(_ProbeDocument, document, "plan")
        return _plan(probe, (_pipeline(probe),), None, cycle_mhz=_cycle_of(probe))
    if "pipelines" in given:
        separate = read_part(_SeparateDocument, document, "plan")
        return _plan(separate, _separate(separate.pipelines), _prediction(separate))
    plan = read_part(_PlanDocument, document, "plan")
    return _plan(plan, (_pipeline(plan),), _prediction(plan))


def _members(document: object) -> dict[str, Any]:
    return cast("dict[str, Any]", document) if isinstance(document, dict) else {}


def read_part(kind: type[T], document: object, whole: str) -> T:
    """Return a document, called `whole`, as an instance of its type.

    Raises:
        PlanningError: it does not fit; `field` says where.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - as in `adapter_of`

    try:
        # As JSON: a strict check of Python's objects takes no list for a tuple.
        return cast(
            "T", adapter_of(cast("Any", kind)).validate_json(json.dumps(document), strict=True)
        )
    except ValidationError as error:
        place, message = first_fault(error)
        raise PlanningError(message, field=place or whole) from None


def _plan(
    read: _Header,
    pipelines: tuple[PipelinePlan, ...],
    prediction: Prediction | None,
    cycle_mhz: CycleClocks = (),
) -> Plan:
    own: dict[str, Any] = _shared(Plan, read) | {
        "pipelines": pipelines,
        "prediction": prediction,
        "cycle_mhz": cycle_mhz,
        "transitions": _transitions(read),
        "tail_s": read.tail_ms / 1e3,
        "transfer_s": tuple(time_ms / 1e3 for time_ms in read.transfer_ms),
    }
    return Plan(**own)


def _prediction(read: _Figures) -> Prediction:
    own: dict[str, Any] = _shared(Prediction, read) | {
        "baseline_iteration_time_s": read.baseline.iteration_time_s,
        "baseline_energy_j": read.baseline.energy_j,
        "stages": read.stage_predictions,
    }
    return Prediction(**own)


def _transitions(read: _Header) -> ClockTransitions | None:
    if read.transition_ms is None and read.transitions is None:
        raise PlanningError("is missing, and transition_ms is null", field="transitions")
    if read.transition_ms is None:
        return read.transitions
    try:
        return ClockTransitions.exact(read.transition_ms / 1e3) if read.transition_ms else None
    except TransitionsError as error:
        raise PlanningError(str(error), field="transition_ms") from None


def _pipeline(read: _Clocks, within: str = "", **own: object) -> PipelinePlan:
    return PipelinePlan(
        stages=read.stages,
        requests=tuple(
            _request(row, read.stages, f"{within}requests[{number}]")
            for number, row in enumerate(read.requests)
        ),
        slowdowns=tuple(
            _slowdown(row, len(read.stages), f"{within}slowdowns[{number}]")
            for number, row in enumerate(read.slowdowns)
        ),
        **cast("Any", own),
    )


def _request(row: _RequestRow, stages: PlannedStages, where: str) -> PlannedRequest:
    stage, position, after_position, _, offset_s = row
    if stage >= len(stages) or not after_position < position <= len(stages[stage]):
        raise PlanningError(
            "must name a stage of the plan and a position of it, after an earlier position",
            field=where,
        )
    if len({item.frequency_mhz for item in stages[stage][after_position:position]}) > 1:
        raise PlanningError("the clock changes between the two positions", field=where)
    return PlannedRequest(stage, position, after_position, offset_s)


def _slowdown(row: _SlowdownRow, num_stages: int, where: str) -> Slowdown:
    if row.stage >= num_stages:
        raise PlanningError("must name a stage of the plan", field=where)
    try:
        return Slowdown(**row._asdict())
    except PipelineError as error:
        raise PlanningError(error.message, field=where) from None


def _cycle_of(probe: _ProbeDocument) -> CycleClocks:
    rows_mhz = probe.rows_mhz
    for step, indices in enumerate(probe.cycle):
        if len(indices) != len(rows_mhz) or any(
            index >= len(rows) for index, rows in zip(indices, rows_mhz, strict=True)
        ):
            raise PlanningError("must name one row of rows_mhz per stage", field=f"cycle[{step}]")
    cycle_mhz = tuple(
        tuple(rows[index] for index, rows in zip(indices, rows_mhz, strict=True))
        for indices in probe.cycle
    )
    check_cycle(cycle_mhz, [len(stage) for stage in probe.stages])
    return cycle_mhz


def _separate(entries: Iterable[_Pipeline]) -> tuple[PipelinePlan, ...]:
    """Return pipelines that run each data-parallel rank from 0 exactly once."""
    pipelines: list[PipelinePlan] = []
    for number, entry in enumerate(entries):
        where = f"pipelines[{number}]"
        dp_ranks = entry.dp_ranks or (entry.dp_rank,)
        if dp_ranks[0] != entry.dp_rank or list(dp_ranks) != sorted(set(dp_ranks)):
            raise PlanningError(f"must rise from {entry.dp_rank} on", field=f"{where}.dp_ranks")
        own = {"iteration_time_s": entry.iteration_time_s, "energy_j": entry.energy_j}
        pipelines.append(_pipeline(entry, f"{where}.", dp_ranks=dp_ranks, **own))
    by_first = sorted(pipelines, key=lambda pipeline: pipeline.dp_ranks[0])
    run = sorted(rank for pipeline in pipelines for rank in pipeline.dp_ranks)
    if not pipelines or pipelines != by_first or run != list(range(len(run))):
        raise PlanningError(
            "must be ordered by dp_rank, and run each dp_rank from 0 once", field="pipelines"
        )
    return tuple(pipelines)

"""Announced work of a job: its factors from timed steps, and what a version's ranks get of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flyball_pipeline.clock_rounding import ChangeDelays
from flyball_pipeline.dag import AlikeNodes
from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.retiming import MAX_INSTRUCTIONS
from flyball_pipeline.work import StepWork, WorkCoefficients, work_factors
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.measurements.timed_steps import ReadSteps, StepReports
from flyball_server.jobs.planning_inputs import (
    PlanningInputs,
    StepPower,
    WorkModel,
    deadline_factor,
)
from flyball_server.planning.documents.predicted_timeline import planned_models
from flyball_server.planning.model.array_dag import FloatArray
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.profiling.work_fit import (
    FEWEST_MICROBATCHES,
    WorkFit,
    WorkTimes,
    fit_work,
    work_reserve,
)
from flyball_wire.measurements import InstructionReport
from flyball_wire.messages import JobSpec
from flyball_wire.plan_options import DEFAULT_TARGET, Policy
from flyball_wire.plans.plan import Plan

# Root mean square change of a factor, and change of a reserve, above which ranks get new ones; the
# first halves where the known factors are nearly exact. Both double with each time, so that factors
# that vary from one version to the next end it soon.
LEAST_FACTOR_CHANGE, LEAST_RESERVE_CHANGE = 0.02, 0.005
# A100's p95 up, V100's p5 down, and V100's median call.
_SLOWEST_KNOWN, _SLOWEST_CALL_S = ChangeDelays(up_s=0.0092, down_s=0.0026), 0.0048
# An error may exceed its limit by this factor before step plans that exist end; it has to be as far
# below it, once for each earlier model, before they begin again.
_ENDS_ABOVE = 1.25
# Number of models after which a model that fails on new steps is not replaced, but ends step plans.
_MOST_MODELS = 3
# Ratio of the largest to the least sum of lengths below which a fit says nothing of other lengths,
# and that by which lengths outside the range are other ones; the latter grows with each model.
_NARROW, _OTHER_LENGTHS = 1.5, 1.5
_VARY = "what it takes varies from one plan version to the next"
_COEFFICIENT_DIGITS, _ERROR_DIGITS = 4, 4


def no_step_plans(plan: Plan, policy: Policy = Policy.FRONTIER) -> str | None:
    """Return why steps of a plan get no plans of their own, in one line; None: they may."""
    if policy == Policy.BASELINE:
        return f"policy {policy} keeps the highest clocks"
    if plan.weight_versions is not None:
        return f"the order {plan.schedule} never flushes, so it has no steps"
    num_instructions = max(sum(map(len, pipeline.stages)) for pipeline in plan.pipelines)
    if num_instructions > MAX_INSTRUCTIONS:
        return (
            f"its pipeline has {num_instructions} instructions, and ranks choose clocks of at most"
            f" {MAX_INSTRUCTIONS} in time"
        )
    return None


def coefficients_of(work: WorkModel) -> dict[AlikeNodes, WorkCoefficients]:
    """Return the coefficients by stage, kind and chunk; empty: there are none."""
    both = zip(work.places, work.coefficients, strict=True)
    return {
        (stage, InstructionKind(kind), chunk): WorkCoefficients(*coefficients)
        for (stage, kind, chunk), coefficients in both
    }


def deadline_ratio(plan: Plan, step_power: StepPower | None = None) -> float:
    """Return a step's time by a plan over the one at the highest clocks, at least 1.

    It is 1 for `fastest`, whose steps take no longer than at the highest clocks. `step_power`
    corrects a target `power:`; None: no correction was measured.
    """
    baseline_s = plan.predicted.baseline_iteration_time_s
    if plan.target == DEFAULT_TARGET or not baseline_s:
        return 1.0
    factor = deadline_factor(step_power, plan.target)
    return max(1.0, factor * plan.iteration_time_s / baseline_s)


def change_delays(plan: Plan, work: WorkModel) -> ChangeDelays | None:
    """Return the delays of clock changes that steps' plans count with; None: they take none.

    Those up are as late as one in twenty is, after the calls for all other GPUs of the node. Where
    nothing is known they are those of the slowest GPU of the table.
    """
    times = plan.transitions
    if times is None:
        unknown = _SLOWEST_KNOWN.in_node(_SLOWEST_CALL_S, 1 + work.num_queued)
        return unknown if work.has_unknown_changes else None
    delays = ChangeDelays(up_s=times.up_p95_s, down_s=times.down_p5_s)
    return delays.in_node(times.call_mean_s, 1 + work.num_queued) if times.is_queued else delays


def with_changes(
    model: WorkModel,
    plan: Plan,
    spec: JobSpec,
    inputs: PlanningInputs,
    *,
    are_given: bool,
    num_in_node: int,
) -> WorkModel:
    """Return the model with what is known of clock changes.

    `are_given` is true if the job gives their times; `num_in_node` is the largest number of the
    job's GPUs in a node.
    """
    measured = inputs.delays is not None and inputs.delays.up_s is not None
    if plan.transitions is None and not are_given and not measured:
        return replace(model, num_queued=num_in_node - 1, has_unknown_changes=True)
    in_node = spec.gpus_in_node or inputs.gpus_in_node or 1
    # The plan's times have the calls for GPUs of the same stage.
    at_once = spec.gpus_at_once or inputs.gpus_at_once or 1
    return replace(model, num_queued=max(0, in_node - at_once), has_unknown_changes=False)


@dataclass(frozen=True, kw_only=True)
class MeasuredWork:
    """Announced work of timed steps.

    Attributes:
        model: factors that fit, with errors and reserve.
        factors: predicted factors of the steps' instructions, shape (num_nodes, num_steps,
            num_pipelines); None: they cannot be predicted.
    """

    model: WorkModel
    factors: FloatArray | None


def measured_work(
    version: int, plan: Plan, read: ReadSteps, *, profile: StageProfile, spec: JobSpec
) -> MeasuredWork | None:
    """Return how much longer announced work makes instructions; None: no work was announced."""
    if not read.has_work:
        return None
    model = WorkModel(version=version)
    problem = no_step_plans(plan, spec.policy)
    if problem is not None:
        return MeasuredWork(model=replace(model, problem=problem), factors=None)
    try:
        models = _models(profile, plan, read.dp_ranks)
    except PipelineError:
        problem = "the plan does not fit the profile"
        return MeasuredWork(model=replace(model, problem=problem), factors=None)
    samples = _Samples(models)
    for reports, works in zip(read.reports, read.works, strict=True):
        samples.add_step(reports, works)
    places = models[0].dag.alike[0]
    times = samples.times()
    fit = None if times is None else fit_work(times, len(places))
    if times is None or fit is None:
        return MeasuredWork(model=model, factors=None)
    model = _model_of_fit(model, fit, times, places, spec, num_pipelines=len(models))
    return MeasuredWork(model=model, factors=_factors(model, models, read))


def _model_of_fit(
    model: WorkModel,
    fit: WorkFit,
    times: WorkTimes,
    places: Sequence[AlikeNodes],
    spec: JobSpec,
    *,
    num_pipelines: int,
) -> WorkModel:
    reserve = work_reserve(
        fit,
        num_pipelines=max(num_pipelines, math.ceil(spec.num_expected_ranks / spec.num_stages)),
        num_microbatches=spec.num_microbatches,
        num_stages=spec.num_stages,
    )
    return replace(
        _with_lengths(model, times),
        num_microbatches=fit.num_microbatches,
        places=tuple((stage, str(kind), chunk) for stage, kind, chunk in places)
        if fit.coefficients
        else (),
        coefficients=tuple((_rounded(a), _rounded(b), _rounded(c)) for a, b, c in fit.coefficients),
        shared_error=round(fit.shared_error, _ERROR_DIGITS),
        own_error=round(fit.own_error, _ERROR_DIGITS),
        reserve=(reserve.of_step, reserve.of_instruction),
        problem=error_problem(fit.error, spec.max_work_error),
    )


def _with_lengths(model: WorkModel, times: WorkTimes) -> WorkModel:
    """Return the model with the lengths that it was fitted to."""
    has_lengths = np.isnan(times.factor)
    if not has_lengths.any():
        return model
    lengths, squares = times.lengths[has_lengths], times.squares[has_lengths]
    of_lengths, of_both, of_squares = (
        float(values.mean()) for values in (lengths**2, lengths * squares, squares**2)
    )
    return replace(
        model,
        mean_work=(float(lengths.mean()), float(squares.mean())),
        mean_products=(of_lengths, of_both, of_squares),
        lengths_range=(float(lengths.min()), float(lengths.max())),
    )


def known_lengths(model: WorkModel) -> tuple[float, float] | None:
    """Return the sums of a microbatch's lengths that the factors hold for; None: any.

    Measured lengths that are nearly alike tell no slope, and say nothing of lengths far outside.
    """
    least, most = model.lengths_range
    if not 0 < most <= _NARROW * least:
        return None
    ratio: float = _OTHER_LENGTHS ** (model.num_before + 1)
    return least / ratio, ratio * most


def forgotten(model: WorkModel) -> WorkModel:
    """Return a model of which no factors are known yet, so that steps run at the highest clocks."""
    return WorkModel(
        num_queued=model.num_queued,
        has_unknown_changes=model.has_unknown_changes,
        num_before=model.num_before,
        num_drifts=model.num_drifts,
    )


def error_problem(error: float, limit: float) -> str | None:
    """Return why times predicted with this error, a share, give no step plans; None: they do."""
    if error <= limit:
        return None
    return (
        f"times differ from those predicted from it by {100 * error:.1f} %, and at most"
        f" {100 * limit:g} % are allowed (max_work_error)"
    )


def following(before: WorkModel | None, after: WorkModel, *, limit: float) -> WorkModel | None:
    """Return the model to plan with after a newer measurement; None: the earlier model stays.

    Args:
        before: model that the job is planned with; None: none.
        after: newer model, of the newest version's steps.
        limit: error above which steps get no plans of their own, a share.
    """
    if before is None:
        return after
    if not (before.num_microbatches or after.num_microbatches or after.problem):
        after = replace(after, problem="too few instructions could be measured as planned")
    if after.num_microbatches == 0 and after.problem is None and before.num_microbatches:
        return None  # too few steps to say anything new
    if after.problem is not None and before.problem is None and before.num_microbatches:
        # Hysteresis, for what is measured about the limit.
        is_slight = 0 < after.error <= _ENDS_ABOVE * limit
        after = replace(after, problem=None) if is_slight else after
    has_failed = before.problem is not None and before.num_microbatches > 0
    if has_failed and (
        before.num_before > _MOST_MODELS or after.error > limit / _ENDS_ABOVE**before.num_before
    ):
        return None
    if not _matters(before, after):
        error = math.hypot(_difference(before, after), after.error)
        if after.problem is not None or error <= max(_ENDS_ABOVE * limit, 2 * before.error):
            return None
        if before.num_before >= _MOST_MODELS:
            after = replace(after, problem=f"{_VARY}; {error_problem(error, limit)}")
    return replace(after, num_before=before.num_before + 1, num_drifts=before.num_drifts)


def _matters(before: WorkModel, after: WorkModel) -> bool:
    """Return whether steps' plans made with the one or the other differ by enough."""
    if (before.problem is None) is not (after.problem is None) or (
        before.places,
        before.num_queued,
        before.has_unknown_changes,
        bool(before.num_microbatches),
    ) != (
        after.places,
        after.num_queued,
        after.has_unknown_changes,
        bool(after.num_microbatches),
    ):
        return True
    if after.problem is not None:
        return False
    factor: int = 2 ** (before.num_before + 1)
    reserves = zip(before.reserve, after.reserve, strict=True)
    if any(abs(one - other) > factor * LEAST_RESERVE_CHANGE for one, other in reserves):
        return True
    least = min(LEAST_FACTOR_CHANGE, max(2 * before.error, LEAST_FACTOR_CHANGE / 2))
    return _difference(before, after) > factor * least


def _difference(before: WorkModel, after: WorkModel) -> float:
    """Return the root mean square by which the factors of a place differ at most, as a share.

    The mean is over the microbatches that the later model was fitted to, the share of a place's
    earlier factor of their mean work.
    """
    known, found = coefficients_of(before), coefficients_of(after)
    lengths, squares = after.mean_work
    (of_lengths, of_both, of_squares), most = after.mean_products, 0.0
    for place, coefficients in found.items():
        a, b, c = (new - old for new, old in zip(coefficients, known[place], strict=True))
        mean = a + b * lengths + c * squares
        square = a * (2 * mean - a) + b * b * of_lengths + 2 * b * c * of_both + c * c * of_squares
        root = math.sqrt(max(square, mean * mean))
        most = max(most, root / known[place].factor(after.mean_work))
    return most


def _factors(
    work: WorkModel, models: Sequence[PipelineModel], read: ReadSteps
) -> FloatArray | None:
    coefficients = coefficients_of(work)
    found: list[list[list[float]]] = []
    for works in read.works:
        of_step = [
            None if of_pipeline is None else work_factors(model.dag, of_pipeline, coefficients)
            for model, of_pipeline in zip(models, works, strict=True)
        ]
        whole = [of_pipeline for of_pipeline in of_step if of_pipeline is not None]
        if len(whole) < len(of_step):
            return None
        found.append(whole)
    return np.array(found).transpose(2, 0, 1)


def _models(
    profile: StageProfile, plan: Plan, dp_ranks: Sequence[int]
) -> tuple[PipelineModel, ...]:
    """Return the model of each of these pipelines, with the plan's slowdown factors."""
    models = planned_models(profile, plan)
    return tuple(models[plan.pipelines.index(plan.pipeline_of(rank))][0] for rank in dp_ranks)


def _rounded(value: float) -> float:
    return float(f"{value:.{_COEFFICIENT_DIGITS}g}")


class _Samples:
    """Times of instructions with the work of their microbatches.

    An instruction whose clock is another than that of the instruction before it on its stage
    may run at the earlier clock for a while; it counts only where its kind has too few others.
    """

    def __init__(self, models: Sequence[PipelineModel]) -> None:
        self._models = models
        self._planned_s = {id(model): _planned_times(model) for model in models}
        self._rows: list[tuple[float, int, int, int, float, float, float]] = []
        self._is_steady: list[bool] = []
        self._num_microbatches = 0

    def add_step(
        self,
        reports: StepReports,
        works: Sequence[StepWork | None],
    ) -> None:
        """Add the instructions of a step, by pipeline and stage."""
        of_pipelines = zip(self._models, reports, works, strict=True)
        for pipeline, (model, stages, work) in enumerate(of_pipelines):
            if work is None or len(work) != model.schedule.num_microbatches:
                continue
            for stage, of_stage in enumerate(stages):
                self._add_stage(pipeline, stage, of_stage, work)
            self._num_microbatches += len(work)

    def _add_stage(
        self,
        pipeline: int,
        stage: int,
        reports: Sequence[InstructionReport],
        work: StepWork,
    ) -> None:
        model = self._models[pipeline]
        places, planned_s = model.dag.alike[0], self._planned_s[id(model)]
        clocks = [report[-1] for report in reports]
        both = zip(model.schedule.stages[stage], reports, strict=True)
        for position, ((kind, microbatch, chunk), report) in enumerate(both):
            _, _, _, _, computed_s, _, _, clock_mhz = report
            place = places.index((stage, kind, chunk))
            time_s = None if clock_mhz is None else planned_s[place].get(clock_mhz)
            if time_s is None:
                continue
            of_microbatch = work[microbatch]
            lengths, squares = of_microbatch if len(of_microbatch) == 2 else (0.0, 0.0)
            factor = of_microbatch[0] if len(of_microbatch) == 1 else math.nan
            self._rows.append(
                (
                    computed_s / time_s,
                    place,
                    self._num_microbatches + microbatch,
                    pipeline,
                    lengths,
                    squares,
                    factor,
                )
            )
            self._is_steady.append(clocks[position - 1] == clock_mhz)

    def times(self) -> WorkTimes | None:
        """Return what was added; None: nothing."""
        if not self._rows:
            return None
        ratio, place, microbatch, pipeline, lengths, squares, factor = np.array(self._rows).T
        is_steady = np.array(self._is_steady)
        num_steady = np.bincount(place[is_steady].astype(int), minlength=int(place.max()) + 1)
        few = num_steady[place.astype(int)] < FEWEST_MICROBATCHES
        kept = (is_steady | few) & (ratio > 0)
        return WorkTimes(
            ratio=ratio[kept],
            place=place[kept].astype(np.int64),
            microbatch=microbatch[kept].astype(np.int64),
            pipeline=pipeline[kept].astype(np.int64),
            lengths=lengths[kept],
            squares=squares[kept],
            factor=factor[kept],
        )


def _planned_times(model: PipelineModel) -> list[Mapping[int, float]]:
    """Return the planned time by clock in MHz of each place, s."""
    of_places: dict[int, Mapping[int, float]] = {}
    for node, place in enumerate(model.dag.alike[1]):
        if place not in of_places:
            of_places[place] = {point.frequency_mhz: point.time_s for point in model.points[node]}
    return [of_places[place] for place in range(len(of_places))]

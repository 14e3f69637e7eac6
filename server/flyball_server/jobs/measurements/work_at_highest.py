"""Times of steps' announced work at the highest clocks, to compare steps at equal work."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.paths import earliest_finish_s
from flyball_pipeline.work import StepWork, work_factors
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.measurements.announced_work import coefficients_of, known_lengths
from flyball_server.jobs.measurements.step_pairs import WorkAtHighest
from flyball_server.jobs.planning_inputs import WorkModel
from flyball_server.jobs.records import PlanRecord
from flyball_server.jobs.step_records import StepTotals
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.kit.lru import Lru
from flyball_server.planning.documents.predicted_timeline import planned_models
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_wire.plans.plan import Plan

# Instructions of all pipelines in a step above which steps are compared without their work: the
# longest paths of as many take a tenth of a second.
_MOST_INSTRUCTIONS = 100_000


def works_at_highest(
    reader: JobReader, job_id: str, steps: Sequence[StepTotals]
) -> dict[int, WorkAtHighest]:
    """Return by step what its announced work takes at the highest clocks, predicted.

    The steps are in rising order; those of which a pipeline's work is not known are missing.
    """
    work = reader.find_loop_state(job_id).step_work if steps else None
    if work is None or not work.num_microbatches:
        return {}
    pipelines = {
        rank.rank: rank.dp_rank
        for rank in reader.list_ranks(job_id)
        if (rank.stage, rank.tp_rank, rank.cp_rank) == (0, 0, 0)
    }
    announced: dict[int, dict[int, StepWork]] = {}
    limit = len(pipelines) * (1 + steps[-1].step - steps[0].step)
    details = reader.list_step_details(job_id, steps[0].step, limit=limit, ranks=pipelines)
    for detail in details:
        if detail.work is not None:
            announced.setdefault(detail.step, {})[pipelines[detail.rank]] = detail.work
    found: dict[int, WorkAtHighest] = {}
    predictors: dict[int, WorkPredictor | None] = {}
    for step in steps:
        works, version = announced.get(step.step, {}), step.newest_version
        if len(works) < len(pipelines) or version is None or step.is_mixed:
            continue
        if version not in predictors:
            predictors[version] = _predictor(reader, job_id, version, work)
        predictor = predictors[version]
        predicted = None if predictor is None else predictor.predicted(works)
        if predicted is not None:
            found[step.step] = predicted
    return found


class WorkPredictor:
    """Prediction of steps of a plan from their work, at the highest clocks.

    Raises:
        PipelineError: the plan does not fit the profile.
    """

    def __init__(self, profile: StageProfile, plan: Plan, work: WorkModel) -> None:
        self._plan = plan
        self._models = [model for model, _ in planned_models(profile, plan)]
        self._coefficients, self._lengths_range = coefficients_of(work), known_lengths(work)
        self._number = zlib.crc32(repr((work.places, work.coefficients)).encode())

    def predicted(self, works: Mapping[int, StepWork]) -> WorkAtHighest | None:
        """Return time and energy of a step; None: they cannot be predicted.

        Args:
            works: work of the step by data-parallel rank.
        """
        own: list[tuple[PipelineModel, list[float]]] = []
        for dp_rank, work in sorted(works.items()):
            model = self._models[self._plan.pipelines.index(self._plan.pipeline_of(dp_rank))]
            factors = work_factors(
                model.dag, work, self._coefficients, lengths_range=self._lengths_range
            )
            if factors is None or len(works) * model.dag.num_nodes > _MOST_INSTRUCTIONS:
                return None
            own.append((model, factors))
        time_s = max(
            max(earliest_finish_s(model.dag, _times_s(model, factors))) for model, factors in own
        )
        energy_j = math.fsum(_energy_j(model, factors, time_s) for model, factors in own)
        return WorkAtHighest(time_s=time_s, energy_j=energy_j, model=self._number)


def _times_s(model: PipelineModel, factors: Iterable[float]) -> list[float]:
    both = zip(factors, model.points, strict=True)
    return [factor * points[0].time_s for factor, points in both]


def _energy_j(model: PipelineModel, factors: Sequence[float], time_s: float) -> float:
    """Return the energy of a pipeline in a step of this time, waiting included, J."""
    power_w = model.stage_blocking_power_w
    busy_j = math.fsum(
        factor * (points[0].energy_j - power_w[stage] * points[0].time_s)
        for factor, points, stage in zip(factors, model.points, model.dag.stage, strict=True)
    )
    return busy_j + time_s * math.fsum(power_w)


_PREDICTORS = Lru[tuple[object, ...], WorkPredictor](32)


def _predictor(
    reader: JobReader, job_id: str, version: int, work: WorkModel
) -> WorkPredictor | None:
    record: PlanRecord | None = reader.find_plan(job_id, version)
    profile = reader.find_profile(job_id)
    if record is None or profile is None or record.plan.is_probe:
        return None
    key = (job_id, version, record.plan_id, work)
    known = _PREDICTORS.get(key)
    if known is None:
        try:
            known = WorkPredictor(profile, record.plan, work)
        except PipelineError:
            return None
        _PREDICTORS.put(key, known)
    return known

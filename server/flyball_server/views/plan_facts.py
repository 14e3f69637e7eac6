"""Facts about a plan version, read from its document once, since it never changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.measurements.step_pairs import StepKinds
from flyball_server.jobs.measurements.step_reading import step_kinds
from flyball_server.jobs.records import PlanRecord
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.documents.stage_clocks import mean_stage_clocks_mhz
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.probe_plan import ProbePlan

# The sum of the stages' energies is the plan's, unless the profile is not the one it was made of.
_RELATIVE_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted iteration, on the plan and at the highest clocks.

    As in PlanPrediction, without what the plan was made with.
    """

    iteration_time_s: float
    energy_j: float
    baseline_iteration_time_s: float
    baseline_energy_j: float
    saving_percent: float
    gap_percent: float | None

    @property
    def gap(self) -> float | None:
        """Return the optimality gap: the share of energy above the lower bound; None if unknown."""
        return None if self.gap_percent is None else self.gap_percent / 100


_PREDICTION_FIELDS = tuple(field.name for field in fields(Prediction))


@dataclass(frozen=True, kw_only=True)
class StagePrediction:
    """Predicted iteration of one stage.

    Attributes:
        busy_s: what its instructions take together at the plan's clocks, s.
        energy_j: theirs, and that of waiting for the rest of the iteration, J.
    """

    busy_s: float
    energy_j: float


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """A plan version, without its instructions.

    Attributes:
        kinds: which of its steps run at the highest clocks, as if its first step were 0.
        prediction: None: it was made to learn from.
        stages: by stage; empty where that is not known.
        stage_clocks_mhz: the mean clock that it asks of each stage, MHz.
        highest_mhz: per stage, of the first row of a cycle that was made to learn from; else
            empty.
    """

    kinds: StepKinds
    prediction: Prediction | None = None
    stages: tuple[StagePrediction, ...] = ()
    stage_clocks_mhz: tuple[float, ...]
    highest_mhz: tuple[int, ...] = ()

    def kinds_from(self, first_step: int | None) -> StepKinds:
        """Return which of its steps run at the highest clocks, with the named first step."""
        return replace(self.kinds, first_step=first_step or 0)


def plan_facts(
    record: PlanRecord, profile: StageProfile | None, highest_mhz: Sequence[int] = ()
) -> PlanFacts:
    """The facts of a version.

    Args:
        record: the version.
        profile: the job's newest; None: it has none.
        highest_mhz: per stage the highest clock that profiling ran, MHz; empty: it ran none.
    """
    plan = record.plan
    if isinstance(plan, ProbePlan):
        highest = tuple(highest_mhz) or tuple(
            max(clocks_mhz, default=0) for clocks_mhz in plan.cycle_mhz[0]
        )
        return PlanFacts(
            kinds=step_kinds(record, highest),
            stage_clocks_mhz=mean_stage_clocks_mhz(plan, profile),
            highest_mhz=highest,
        )
    is_alike = isinstance(plan, FrequencyPlan) and profile is not None
    return PlanFacts(
        kinds=step_kinds(record),
        prediction=Prediction(**{name: getattr(plan, name) for name in _PREDICTION_FIELDS}),
        stages=_stages(plan, profile) if is_alike else (),  # type: ignore[arg-type]  # so checked
        stage_clocks_mhz=mean_stage_clocks_mhz(plan, profile),
        highest_mhz=tuple(highest_mhz),
    )


def _stages(plan: FrequencyPlan, profile: StageProfile) -> tuple[StagePrediction, ...]:
    """By stage; none where the plan was made of another profile, or for other slowdown factors."""
    try:
        model, assignment = model_of_plan(profile, plan)
    except PlanningError:
        return ()
    busy_s = [0.0] * plan.num_stages
    energy_j = [plan.iteration_time_s * power_w for power_w in model.stage_blocking_power_w]
    for node, choice in enumerate(assignment):
        stage, point = model.dag.stage[node], model.points[node][choice]
        busy_s[stage] += point.time_s
        energy_j[stage] += point.energy_j - model.stage_blocking_power_w[stage] * point.time_s
    if abs(sum(energy_j) - plan.energy_j) > _RELATIVE_TOLERANCE * plan.energy_j:
        return ()
    return tuple(
        StagePrediction(busy_s=busy, energy_j=energy)
        for busy, energy in zip(busy_s, energy_j, strict=True)
    )

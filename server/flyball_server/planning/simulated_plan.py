"""A plan with the simulation of an iteration, so that nothing that shows it evaluates it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import JointSimulation, simulate_jointly
from flyball_wire.plans.plan import Plan


@dataclass(frozen=True, kw_only=True)
class SimulatedPlan:
    """Plan with one iteration, predicted on a profile.

    Attributes:
        models, assignments: model and assignment of each pipeline, by `dp_rank`.
        simulation: simulated times; for one pipeline, whole and pipeline are the same.
    """

    plan: Plan
    models: tuple[PipelineModel, ...]
    assignments: tuple[Assignment, ...]
    simulation: JointSimulation

    @property
    def model(self) -> PipelineModel:
        """Model of the one pipeline."""
        [model] = self.models
        return model

    @property
    def assignment(self) -> Assignment:
        """Assignment of the one pipeline."""
        [assignment] = self.assignments
        return assignment

    def baseline(self) -> SimulatedPlan:
        """Return the same instructions in the same order, each at its highest profiled clock."""
        at_highest = [(model.with_requests({}), model.baseline()) for model in self.models]
        return simulated_plan(self.plan, at_highest)


def simulated_plan(
    plan: Plan, pipelines: Sequence[tuple[PipelineModel, Assignment]]
) -> SimulatedPlan:
    """Return a plan with the simulation of its pipelines, given by model and assignment."""
    models, assignments = zip(*pipelines, strict=True)
    return SimulatedPlan(
        plan=plan,
        models=models,
        assignments=assignments,
        simulation=simulate_jointly(models, assignments),
    )

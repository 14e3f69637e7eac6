"""One iteration of a plan on a profile, predicted: when everything runs, and at which clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flyball_server.planning.model.data_parallel import JointSimulation, simulate_jointly
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.plan import DataParallelPlan, FrequencyPlan


@dataclass(frozen=True, kw_only=True)
class PredictedTimeline:
    """One iteration of a plan, predicted on a profile.

    Attributes:
        plan: the plan as it was read.
        models, assignments: of each pipeline, by `dp_rank`; of a plan for one, just that.
        simulation: when all of it runs; for one pipeline, whole and pipeline are the same.
    """

    plan: FrequencyPlan | DataParallelPlan
    models: tuple[PipelineModel, ...]
    assignments: tuple[Assignment, ...]
    simulation: JointSimulation

    @property
    def is_data_parallel(self) -> bool:
        """Whether each pipeline has clocks of its own."""
        return isinstance(self.plan, DataParallelPlan)

    def baseline(self) -> PredictedTimeline:
        """The same instructions in the same order, each at its highest profiled clock."""
        return predicted_timeline(self.plan, [(model, model.baseline()) for model in self.models])


def predicted_timeline(
    plan: FrequencyPlan | DataParallelPlan, pipelines: Sequence[tuple[PipelineModel, Assignment]]
) -> PredictedTimeline:
    """The pipelines of a plan simulated: all together if it is data-parallel, else the one."""
    models, assignments = zip(*pipelines, strict=True)
    if isinstance(plan, DataParallelPlan):
        simulation = simulate_jointly(models, assignments)
    else:
        own = simulate(models[0], assignments[0])
        simulation = JointSimulation(whole=own, pipelines=(own,))
    return PredictedTimeline(
        plan=plan, models=models, assignments=assignments, simulation=simulation
    )

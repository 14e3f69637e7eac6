"""The clocks of a plan that runs, as plain numbers: little to hand to the process that plans."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flyball_profiles.stage_profile import OperatingPoint
from flyball_server.planning.documents.planned_instructions import PlannedInstruction
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.plan import DataParallelPlan, FrequencyPlan


@dataclass(frozen=True, kw_only=True)
class RunningClocks:
    """Clocks that a job's pipelines run at now.

    Attributes:
        schedule, num_microbatches: that it runs.
        iteration_time_s: that it was planned for, s.
        clocks_mhz: of each pipeline that is planned apart, MHz, stage after stage in the order of
            execution.
        pipeline_of: by `dp_rank`, the index of its pipeline; the last one's counts for any more.
    """

    schedule: str
    num_microbatches: int
    iteration_time_s: float
    clocks_mhz: tuple[array[int], ...]
    pipeline_of: tuple[int, ...]

    def alike(self, dp_ranks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The ranks by the pipeline whose clocks they run, by the first of each."""
        of_pipeline: dict[int, tuple[int, ...]] = {}
        for dp_rank in dp_ranks:
            pipeline = self._pipeline_of(dp_rank)
            of_pipeline[pipeline] = (*of_pipeline.get(pipeline, ()), dp_rank)
        return tuple(of_pipeline.values())

    def assignment(self, dp_rank: int, model: PipelineModel) -> Assignment | None:
        """The clocks of a pipeline as an assignment; None: the model has other instructions."""
        if self.num_microbatches != model.schedule.num_microbatches or model.schedule.is_periodic:
            return None
        clocks_mhz = self.clocks_mhz[self._pipeline_of(dp_rank)]
        if len(clocks_mhz) != model.dag.num_nodes:
            return None
        choices: dict[int, Mapping[int, int]] = {}
        assignment: Assignment = []
        for points, clock_mhz in zip(model.points, clocks_mhz, strict=True):
            by_clock = choices.get(id(points))
            if by_clock is None:
                by_clock = choices[id(points)] = _choice_by_clock(points)
            choice = by_clock.get(clock_mhz)
            if choice is None:
                return None
            assignment.append(choice)
        return assignment

    def _pipeline_of(self, dp_rank: int) -> int:
        return self.pipeline_of[min(dp_rank, len(self.pipeline_of) - 1)]


def running_clocks(plan: FrequencyPlan | DataParallelPlan) -> RunningClocks:
    """The clocks of a plan."""
    if isinstance(plan, FrequencyPlan):
        pipelines, pipeline_of = [plan.stages], [0]
    else:
        pipelines = [pipeline.stages for pipeline in plan.pipelines]
        by_dp_rank = {
            dp_rank: index
            for index, pipeline in enumerate(plan.pipelines)
            for dp_rank in pipeline.stands_for
        }
        pipeline_of = [by_dp_rank[dp_rank] for dp_rank in sorted(by_dp_rank)]
    return RunningClocks(
        schedule=plan.schedule,
        num_microbatches=plan.num_microbatches,
        iteration_time_s=plan.iteration_time_s,
        clocks_mhz=tuple(_clocks_mhz(stages) for stages in pipelines),
        pipeline_of=tuple(pipeline_of),
    )


def _clocks_mhz(stages: tuple[tuple[PlannedInstruction, ...], ...]) -> array[int]:
    return array("q", [item.frequency_mhz for item in itertools.chain(*stages)])


def _choice_by_clock(points: tuple[OperatingPoint, ...]) -> Mapping[int, int]:
    return {point.frequency_mhz: choice for choice, point in enumerate(points)}

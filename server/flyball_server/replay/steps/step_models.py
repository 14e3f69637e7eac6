"""Recorded pipelines as pipelines to retime: order, curves from a profile, a static plan."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from flyball_pipeline.clock_rounding import ChangeDelays
from flyball_pipeline.dag import DependencyDag, build_dag
from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import Instruction, InstructionKind
from flyball_pipeline.retiming import RetimedPipeline
from flyball_pipeline.schedule import Schedule, VirtualStages
from flyball_pipeline.schedules.explicit import EXPLICIT
from flyball_pipeline.step_curves import ClockPoint
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.stage_profile import OperatingPoint, ProfileError, StageProfile
from flyball_server.planning.planner import PlanRequest, make_plan_only
from flyball_server.replay.recorded_runs import RecordingError
from flyball_server.replay.steps.recorded_steps import RecordedPipeline, RecordedStep
from flyball_wire.plan_options import PlanOptions

Place = tuple[int, InstructionKind, int]
"""Stage, kind and chunk."""

_Order = tuple[tuple[Instruction, ...], ...]

# Kinds whose curves others have that the profile lacks: only proportions matter.
_CURVES_LIKE = {
    InstructionKind.BACKWARD_INPUT: InstructionKind.BACKWARD,
    InstructionKind.BACKWARD_WEIGHT: InstructionKind.BACKWARD,
    InstructionKind.RECOMPUTE: InstructionKind.FORWARD,
}


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """Pipelines of one order."""

    #: What waits for what.
    dag: DependencyDag
    #: The pipeline to retime; its plan in force is the static one.
    retimed: RetimedPipeline
    #: Per node, its points at factor 1: the median of the recorded times.
    points: tuple[tuple[ClockPoint, ...], ...]
    #: Power of each stage's GPUs while they wait, W.
    power_w: tuple[float, ...]
    #: Least time from a step's end, where next first clocks are requested, to the next begin, s.
    gap_s: float = 0.0

    @functools.cached_property
    def by_clock(self) -> tuple[Mapping[int, tuple[float, float]], ...]:
        """Per node, time and energy net of waiting by clock, at factor 1, s and J."""
        both = list(zip(self.dag.stage, self.points, strict=True))
        shared = {
            (stage, id(points)): {
                point.clock_mhz: (point.time_s, point.energy_j - self.power_w[stage] * point.time_s)
                for point in points
            }
            for stage, points in both
        }
        return tuple(shared[stage, id(points)] for stage, points in both)

    @property
    def waiting_power_w(self) -> float:
        """Power of all its GPUs while they wait, W."""
        return sum(self.power_w)

    @property
    def highest_mhz(self) -> tuple[int, ...]:
        """Highest clock of each node."""
        return tuple(max(by_clock) for by_clock in self.by_clock)


@dataclass(frozen=True, kw_only=True)
class PipelineStep:
    """One pipeline in one step, as it was recorded."""

    dp_rank: int
    model: StepModel
    #: Per node, its recorded time over the median.
    factors: tuple[float, ...]


Steps = tuple[tuple[PipelineStep, ...], ...]
"""Per step, its pipelines."""


def pipeline_steps(
    steps: Sequence[RecordedStep],
    profile: StageProfile,
    blocking_power_w: Sequence[float],
    *,
    curve_stage: int | None = None,
    transitions: ClockTransitions | None = None,
    delays: ChangeDelays | None = None,
    gap_s: float = 0.0,
) -> Steps:
    """Return recorded pipelines, with a static plan made of each stage's and kind's median.

    Args:
        steps: recorded steps; times are those at the highest clock.
        profile: how times and energies change with the clock; of several ranks of a stage the
            mean.
        blocking_power_w: power of a waiting GPU in W, one value for all stages or one per stage.
        curve_stage: stage of the profile whose curves all stages have; None: each has its own.
        transitions: times of clock changes that the static plan counts; None: it counts none.
        delays: delays that a step's plan counts; None: those of the transitions.
        gap_s: least time between the request of a step's first clock and its begin, s.

    Raises:
        RecordingError: the profile lacks a curve, an order cannot run, or times are no such times;
            names the place.
    """
    models = _StepModels(steps, profile, blocking_power_w, curve_stage)
    models.transitions, models.delays, models.gap_s = transitions, delays, gap_s
    if delays is None and transitions is not None:
        models.delays = ChangeDelays(up_s=transitions.up_p95_s, down_s=transitions.down_p5_s)
        if transitions.starts_settled:
            models.gap_s = transitions.up_p95_s
    return tuple(
        tuple(models.step_of(pipeline, recorded.step) for pipeline in recorded.pipelines)
        for recorded in steps
    )


class _StepModels:
    transitions: ClockTransitions | None
    delays: ChangeDelays | None
    gap_s: float

    def __init__(
        self,
        steps: Sequence[RecordedStep],
        profile: StageProfile,
        blocking_power_w: Sequence[float],
        curve_stage: int | None,
    ) -> None:
        times_s: dict[Place, list[float]] = {}
        for recorded in steps:
            for pipeline in recorded.pipelines:
                for stage, of_stage in enumerate(pipeline.stages):
                    for (kind, _, chunk), time_s in of_stage:
                        times_s.setdefault((stage, kind, chunk), []).append(time_s)
        num_stages = 1 + max(stage for stage, _, _ in times_s)
        if len(blocking_power_w) not in {1, num_stages}:
            raise RecordingError(
                f"{len(blocking_power_w)} values of blocking power for {num_stages} stages; give"
                " one, or one per stage"
            )
        self._power_w = tuple(blocking_power_w) * (num_stages // len(blocking_power_w))
        self._points = {
            place: self._scaled(profile, place, curve_stage, median(times_s[place]))
            for place in sorted(times_s)
        }
        self._models: dict[tuple[_Order, VirtualStages], StepModel] = {}

    def step_of(self, recorded: RecordedPipeline, step: int) -> PipelineStep:
        """Return a pipeline in a step."""
        order = tuple(tuple(timed.instruction for timed in stage) for stage in recorded.stages)
        key = (order, recorded.virtual_stages)
        try:
            if key not in self._models:
                self._models[key] = self._model(*key)
        except (PipelineError, ProfileError) as error:
            raise RecordingError(
                f"{recorded.source}: step {step}, dp_rank {recorded.dp_rank}: {error.message}"
            ) from None
        model = self._models[key]
        times_s = [time_s for stage in recorded.stages for _, time_s in stage]
        medians_s = (points[0].time_s for points in model.points)
        return PipelineStep(
            dp_rank=recorded.dp_rank,
            model=model,
            factors=tuple(
                time_s / median_s for time_s, median_s in zip(times_s, medians_s, strict=True)
            ),
        )

    def _scaled(
        self, profile: StageProfile, place: Place, curve_stage: int | None, time_s: float
    ) -> tuple[ClockPoint, ...]:
        """Return the profile's curve as one GPU's, so that the highest clock takes this time."""
        stage, kind, _ = place
        source = stage if curve_stage is None else curve_stage
        kinds = (kind, _CURVES_LIKE.get(kind, kind))
        points = next(filter(None, (profile.points.get((source, each)) for each in kinds)), None)
        if points is None:
            advice = "; give one stage's curve to all stages with --curve STAGE"
            raise RecordingError(
                f"the profile has no {kind} of stage {source}"
                + (advice if curve_stage is None else "")
            )
        scale, num_ranks = time_s / points[0].time_s, profile.num_ranks_per_stage[source]
        power_w = self._power_w[stage]
        return tuple(
            ClockPoint(
                point.frequency_mhz,
                scale * point.time_s,
                scale * (point.energy_j + power_w * point.rank_waiting_s) / num_ranks,
            )
            for point in points
        )

    def _model(self, order: _Order, virtual_stages: VirtualStages) -> StepModel:
        num_microbatches = 1 + max(
            instruction.microbatch for stage in order for instruction in stage
        )
        dag = build_dag(
            Schedule(
                name=EXPLICIT,
                num_microbatches=num_microbatches,
                stages=order,
                virtual_stages=virtual_stages,
            )
        )
        places = [
            (stage, kind, chunk)
            for stage, (kind, _, chunk) in zip(dag.stage, dag.instruction, strict=True)
        ]
        points = tuple(self._points[place] for place in places)
        retimed = RetimedPipeline(
            dag=dag,
            points=points,
            waiting_power_w=self._power_w,
            plan_mhz=self._static_mhz(order, virtual_stages),
            delays=self.delays,
        )
        return StepModel(
            dag=dag,
            retimed=retimed,
            points=points,
            power_w=self._power_w,
            gap_s=self.gap_s,
        )

    def _static_mhz(self, order: _Order, virtual_stages: VirtualStages) -> tuple[int, ...]:
        """Return the clocks of the plan `fastest` of the medians, without a reserve."""
        plan = make_plan_only(
            PlanRequest(
                profile=self._profile(len(virtual_stages[0])),
                num_microbatches=1
                + max(instruction.microbatch for stage in order for instruction in stage),
                options=PlanOptions(
                    schedule=EXPLICIT,
                    order=tuple(
                        tuple((kind.value, microbatch, chunk) for kind, microbatch, chunk in stage)
                        for stage in order
                    ),
                    virtual_stages=virtual_stages,
                    blocking_power_w=self._power_w,
                    transitions=self.transitions,
                    early_requests=False,
                    reserve=0.0,
                ),
            )
        )
        return tuple(planned.frequency_mhz for stage in plan.stages for planned in stage)

    def _profile(self, num_chunks: int) -> StageProfile:
        """Return the profile of the medians; of several chunks, whole stages take their sum."""
        chunks = tuple(
            self._profile_of(
                {
                    (stage, kind): [points]
                    for (stage, kind, of_chunk), points in self._points.items()
                    if of_chunk == chunk
                }
            )
            for chunk in range(num_chunks)
        )
        if num_chunks == 1:
            return chunks[0]
        whole: dict[tuple[int, InstructionKind], list[tuple[ClockPoint, ...]]] = {}
        for (stage, kind, _), points in self._points.items():
            whole.setdefault((stage, kind), []).append(points)
        return self._profile_of(whole, chunks)

    def _profile_of(
        self,
        of_places: Mapping[tuple[int, InstructionKind], Sequence[tuple[ClockPoint, ...]]],
        chunks: tuple[StageProfile, ...] = (),
    ) -> StageProfile:
        return StageProfile(
            points={
                place: tuple(
                    OperatingPoint(
                        frequency_mhz=at_clock[0].clock_mhz,
                        time_s=sum(point.time_s for point in at_clock),
                        energy_j=sum(point.energy_j for point in at_clock),
                    )
                    for at_clock in zip(*curves, strict=True)
                )
                for place, curves in of_places.items()
            },
            num_ranks_per_stage=(1,) * len(self._power_w),
            chunks=chunks,
        )

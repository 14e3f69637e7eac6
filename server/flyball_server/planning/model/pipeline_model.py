"""A pipeline to be planned: a schedule's DAG with the operating points of every instruction."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from flyball_pipeline.dag import build_dag
from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.schedule import Schedule
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.stage_profile import OperatingPoint, ProfileError, StageProfile
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.array_dag import ArrayDag, array_dag
from flyball_server.planning.model.clocked_instructions import (
    ClockedInstructions,
    ClockRequest,
    PointGroups,
    clocked_instructions,
)

# No GPU comes near it; beyond it is another unit, and sums could overflow.
MAX_BLOCKING_POWER_W = 100_000

# A GPU that computes at its highest clock draws more than one that waits in communication; what
# draws less than this share of it was given in another unit, a thousand times as large or small.
LEAST_DRAW_SHARE = 0.05
# No GPU draws more on average, W; GPUs of 2026 draw up to 1400.
MAX_DRAW_W = 10_000.0

Assignment = list[int]
"""Per node of the DAG, an index into its operating points; 0 is the highest frequency."""


@dataclass(frozen=True, kw_only=True)
class PipelineModel:
    """Everything a policy decides on.

    Attributes:
        points: per node, its operating points in falling frequency, with the energy of ranks that
            wait within an instruction for the slowest of their stage; nodes of the same stage,
            chunk and kind share one tuple. Where a node stands for all microbatches of a
            steady-state period, of all of them.
        blocking_power_w: per stage, W of one of its GPUs while it waits, at any clock.
        num_ranks: per stage, the number of ranks whose energy the points hold.
        transitions: times of clock changes; None: they take none.
        requests: by instruction of `clocked`, the requests of a plan's clocks that are not made
            as the instruction before ends; those of instructions whose clock does not change have
            no effect.
    """

    schedule: Schedule
    dag: ArrayDag
    points: tuple[tuple[OperatingPoint, ...], ...]
    blocking_power_w: tuple[float, ...]
    num_ranks: tuple[int, ...]
    transitions: ClockTransitions | None = None
    requests: Mapping[int, ClockRequest] = field(default_factory=dict[int, ClockRequest])

    @functools.cached_property
    def groups(self) -> PointGroups:
        """The nodes by stage and points."""
        keys = list(zip(self.dag.stage, map(id, self.points), strict=True))
        of_keys = dict(zip(keys, zip(self.dag.stage, self.points, strict=True), strict=True))
        number = {key: index for index, key in enumerate(of_keys)}
        return tuple(of_keys.values()), tuple(map(number.__getitem__, keys))

    @functools.cached_property
    def clocked(self) -> ClockedInstructions:
        """The instructions with their time and energy at every clock of their stage."""
        return clocked_instructions(self.schedule, self.dag, self.groups)

    def without_transitions(self) -> PipelineModel:
        """Return the pipeline as if clock changes took no time."""
        return replace(self, transitions=None, requests={}) if self.transitions else self

    def with_requests(self, requests: Mapping[int, ClockRequest]) -> PipelineModel:
        """Return the pipeline with these requests of a plan's clocks instead of its own."""
        return self if requests == self.requests else replace(self, requests=requests)

    def with_delays(self, tail_s: float, hops_s: Sequence[float]) -> PipelineModel:
        """Return the pipeline with a tail and transfers; see `ArrayDag.with_delays`."""
        if not (tail_s or any(hops_s)):
            return self
        return replace(self, dag=self.dag.with_delays(tail_s, hops_s))

    @functools.cached_property
    def stage_blocking_power_w(self) -> tuple[float, ...]:
        """Per stage, W of all its ranks together while they wait: `r_s P_s`."""
        return tuple(
            ranks * power_w
            for ranks, power_w in zip(self.num_ranks, self.blocking_power_w, strict=True)
        )

    def durations_s(self, assignment: Sequence[int]) -> list[float]:
        """Per node, its duration at the assigned point, s."""
        return [
            points[choice].time_s for points, choice in zip(self.points, assignment, strict=True)
        ]

    def baseline(self) -> Assignment:
        """Every instruction at its highest profiled frequency."""
        return [0] * self.dag.num_nodes


def build_model(
    profile: StageProfile,
    schedule: Schedule,
    blocking_power_w: Sequence[float],
) -> PipelineModel:
    """Join profile and schedule.

    Args:
        profile: measured operating points.
        schedule: an order whose instructions the profile has.
        blocking_power_w: one value for all stages, or one per stage, W, 0 to 1e5.

    Raises:
        PlanningError: the profile lacks an instruction or a stage of the schedule, or the
            blocking power does not fit.
    """
    if schedule.num_stages != profile.num_stages:
        raise PlanningError(
            f"has {schedule.num_stages} stages, the profile {profile.num_stages}", field="schedule"
        )
    try:
        chunks = profile.by_chunk(schedule.num_chunks)
    except ProfileError as error:
        raise PlanningError(error.message.removeprefix("the profile "), field="profile") from None
    dag = array_dag(build_dag(schedule))
    alike, alike_of_node = dag.alike
    power_w = _per_stage(blocking_power_w, profile.num_stages)
    of_alike = [
        _with_waiting(_points_of(chunks, stage, kind, chunk), power_w[stage])
        for stage, kind, chunk in alike
    ]
    if schedule.is_periodic:
        of_alike = [_repeated(points, schedule.num_microbatches) for points in of_alike]
    return PipelineModel(
        schedule=schedule,
        dag=dag,
        points=tuple(map(of_alike.__getitem__, alike_of_node)),
        blocking_power_w=power_w,
        num_ranks=profile.num_ranks_per_stage,
    )


def check_draw(model: PipelineModel) -> None:
    """Check that no stage draws so little or so much that a unit must be wrong.

    Raises:
        PlanningError: at the highest clocks a stage's instructions draw far less power than its
            GPUs draw while they wait, or more than any GPU does.
    """
    time_s, energy_j = [0.0] * len(model.num_ranks), [0.0] * len(model.num_ranks)
    for stage, points in zip(model.dag.stage, model.points, strict=True):
        time_s[stage] += points[0].time_s
        energy_j[stage] += points[0].energy_j
    for stage, num_ranks in enumerate(model.num_ranks):
        drawn_w = energy_j[stage] / (num_ranks * time_s[stage])
        waiting_w = model.blocking_power_w[stage]
        if drawn_w < LEAST_DRAW_SHARE * waiting_w:
            raise PlanningError(
                f"a GPU of stage {stage} draws {drawn_w:.3g} W at its highest clocks, but"
                f" {waiting_w:g} W while it waits; check the units: energy in J (not kJ), time in s"
                " (not ms), blocking power in W (not mW)",
                field="profile",
            )
        if drawn_w > MAX_DRAW_W:
            raise PlanningError(
                f"a GPU of stage {stage} draws {drawn_w:.6g} W at its highest clocks; check the"
                " units: energy in J (not mJ), time in s",
                field="profile",
            )


def _points_of(
    chunks: Sequence[StageProfile], stage: int, kind: InstructionKind, chunk: int
) -> tuple[OperatingPoint, ...]:
    points = chunks[chunk].points.get((stage, kind))
    if points is None:
        where = f"stage {stage}" + (f", chunk {chunk}" if len(chunks) > 1 else "")
        raise PlanningError(f"has no {kind} of {where}, which the schedule runs", field="profile")
    return points


def _with_waiting(
    points: tuple[OperatingPoint, ...], blocking_power_w: float
) -> tuple[OperatingPoint, ...]:
    """Return the points with the energy of ranks that wait for the slowest of their stage."""
    if not any(point.rank_waiting_s for point in points):
        return points
    try:
        return tuple(
            replace(
                point,
                energy_j=point.energy_j + blocking_power_w * point.rank_waiting_s,
                rank_waiting_s=0.0,
            )
            for point in points
        )
    except ProfileError as error:
        raise PlanningError(
            f"with ranks that wait for the slowest: {error.message}", field="profile"
        ) from None


def _repeated(points: Sequence[OperatingPoint], times: int) -> tuple[OperatingPoint, ...]:
    """Return the points of this many of the instruction together, all at the same clock."""
    try:
        return tuple(
            replace(
                point,
                time_s=times * point.time_s,
                energy_j=times * point.energy_j,
                time_error_s=times * point.time_error_s,
                jitter=point.jitter / math.sqrt(times),
            )
            for point in points
        )
    except ProfileError:
        raise PlanningError(
            f"{times} of them take longer, or more energy, than can be planned as one period",
            field="num_microbatches",
        ) from None


def _per_stage(blocking_power_w: Sequence[float], num_stages: int) -> tuple[float, ...]:
    for power_w in blocking_power_w:
        if not 0 <= power_w <= MAX_BLOCKING_POWER_W:
            raise PlanningError(
                f"must be from 0 to {MAX_BLOCKING_POWER_W} W, not {power_w:g}",
                field="blocking_power_w",
            )
    if len(blocking_power_w) == 1:
        return (float(blocking_power_w[0]),) * num_stages
    if len(blocking_power_w) != num_stages:
        raise PlanningError(
            f"{len(blocking_power_w)} values for {num_stages} stages; give one, or one per stage",
            field="blocking_power_w",
        )
    return tuple(float(power_w) for power_w in blocking_power_w)

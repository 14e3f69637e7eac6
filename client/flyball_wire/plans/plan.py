"""A plan: the clock of every instruction of one or several pipelines, with its prediction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import Instruction, InstructionKind
from flyball_pipeline.schedule import Schedule, VirtualStages, one_chunk_each
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_wire.closed_loop import NO_RESERVE, Reserve
from flyball_wire.predictions import PredictedFigures

MIN_SLOWDOWN, MAX_SLOWDOWN = 0.01, 100.0
"""Bounds of a slowdown factor; beyond them the GPU is another, or has stopped."""

PROBE_POLICY = "probe"
"""Policy of a plan that measures instructions at changing clocks."""


class Purpose(StrEnum):
    """Purpose of a plan version.

    `probe`: to measure instructions at changing clocks. `raise`: to run, and to measure which
    clocks to raise. `comparison`: to run in turn with the highest clocks.
    """

    PLAN = "plan"
    PROBE = "probe"
    RAISE = "raise"
    COMPARISON = "comparison"


class PlannedInstruction(NamedTuple):
    """Instruction of a stage with its SM clock."""

    kind: InstructionKind
    microbatch: int
    frequency_mhz: int
    chunk: int = 0


class PlannedRequest(NamedTuple):
    """Request of an instruction's clock before the instruction before it ends.

    It is made `offset_s` after the begin of another instruction of the stage, but no later than
    the instruction begins. `position` and `after_position` count the stage's instructions from 0;
    a `position` of their number is the first instruction of the next iteration.
    """

    stage: int
    position: int
    after_position: int
    offset_s: float


PlannedStages = tuple[tuple[PlannedInstruction, ...], ...]
"""Instructions of each stage in the order of execution."""

CycleClocks = tuple[tuple[tuple[int, ...], ...], ...]
"""Clock in MHz of each instruction, by step of a cycle and stage."""


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """Slowdown factor of a stage's instructions against its profile.

    Attributes:
        stage: from 0.
        slowdown: slowdown factor, MIN_SLOWDOWN to MAX_SLOWDOWN; below 1 they are faster.
        dp_rank: data-parallel rank of the pipeline; None: all pipelines.
        kind: kind of instruction; None: all kinds.

    Raises:
        PipelineError: the slowdown is out of its bounds.
    """

    stage: int
    slowdown: float
    dp_rank: int | None = None
    kind: InstructionKind | None = None

    def __post_init__(self) -> None:
        if not MIN_SLOWDOWN <= self.slowdown <= MAX_SLOWDOWN:
            raise PipelineError(
                f"must be a factor from {MIN_SLOWDOWN:g} to {MAX_SLOWDOWN:g}, not"
                f" {self.slowdown:g}",
                field="slowdown",
            )


@dataclass(frozen=True, kw_only=True)
class ConsideredSchedule:
    """Order that schedule `auto` compared.

    Attributes:
        lower_bound_j: no plan of this order needs less at the target, J; None: not known, or
            it cannot run.
        iteration_time_s, energy_j: of its plan, predicted; None where none was made, since the
            bound is above the plan that was chosen.
        why_not: why it cannot run or meet the target; None where it can.
    """

    schedule: str
    lower_bound_j: float | None
    iteration_time_s: float | None
    energy_j: float | None
    why_not: str | None


@dataclass(frozen=True, kw_only=True)
class StagePrediction:
    """Predicted iteration of one stage.

    Attributes:
        busy_s: total time of its instructions at the plan's clocks, s.
        energy_j: energy of these and of waiting for the rest of the iteration, J.
    """

    busy_s: float
    energy_j: float


@dataclass(frozen=True, kw_only=True)
class Prediction(PredictedFigures):
    """Predicted iteration of a plan, all its pipelines together, and its baseline.

    Attributes:
        baseline_iteration_time_s: iteration time of the baseline, s.
        baseline_energy_j: energy of the baseline, J.
        stages: predictions by stage, of several pipelines the one's after the other's; empty:
            unknown.
    """

    baseline_iteration_time_s: float
    baseline_energy_j: float
    stages: tuple[StagePrediction, ...] = ()

    @property
    def saving_percent(self) -> float:
        """Energy saved against the baseline, %."""
        return 100 * (1 - self.energy_j / self.baseline_energy_j)

    @property
    def gap_percent(self) -> float | None:
        """Energy above the lower bound, %; None: the bound is unknown."""
        if self.lower_bound_j is None:
            return None
        return 100 * (self.energy_j / self.lower_bound_j - 1)


@dataclass(frozen=True, kw_only=True)
class PipelinePlan:
    """Clocks of one pipeline.

    Attributes:
        stages: per stage, its instructions in the order of execution.
        requests: requests of clocks that are made early, in the order of stages.
        slowdowns: slowdown factors that it was planned with, of any pipeline.
        dp_ranks: data-parallel ranks that run it, rising; empty: all of them.
        iteration_time_s: predicted end of its own iteration, s; it then waits for the slowest
            pipeline. None: the plan has no other pipeline.
        energy_j: energy of one iteration of all `dp_ranks`, waiting for the slowest included, J;
            None: the plan has no other pipeline.
    """

    stages: PlannedStages
    requests: tuple[PlannedRequest, ...] = ()
    slowdowns: tuple[Slowdown, ...] = ()
    dp_ranks: tuple[int, ...] = ()
    iteration_time_s: float | None = None
    energy_j: float | None = None

    @property
    def stands_for(self) -> tuple[int, ...]:
        """Data-parallel ranks whose energies the plan counts; where all run it, that of one."""
        return self.dp_ranks or (0,)

    @property
    def order(self) -> tuple[tuple[Instruction, ...], ...]:
        """Instructions of each stage without their clocks."""
        return tuple(
            tuple(Instruction(kind, microbatch, chunk) for kind, microbatch, _, chunk in stage)
            for stage in self.stages
        )

    @property
    def clocks_mhz(self) -> tuple[tuple[int, ...], ...]:
        """Clock of each instruction by stage, MHz."""
        return tuple(tuple(item.frequency_mhz for item in stage) for stage in self.stages)

    @property
    def num_switches(self) -> int:
        """Number of clock changes of an iteration, that to each stage's first clock too."""
        return sum(
            before_mhz != mhz
            for of_stage in self.clocks_mhz
            for before_mhz, mhz in zip([*of_stage[-1:], *of_stage[:-1]], of_stage, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of one pipeline that all data-parallel ranks run, or of separate pipelines.

    The iteration takes as long as the slowest pipeline; energies are of all pipelines together,
    each of them waiting until then.

    Attributes:
        num_microbatches: microbatches of an iteration of one pipeline.
        blocking_power_w: per stage, W of one of its GPUs while it waits; of several pipelines
            the one's stages after the other's, as in `pipelines`.
        iteration_time_s: predicted iteration time, s; of a cycle's longest step, which is a guess
            before anything was measured.
        pipelines: at least one, by the lowest of their data-parallel ranks; all of the same
            number of stages. Of several, each data-parallel rank from 0 runs one.
        prediction: predicted energies and baseline; None: a probe, which has none.
        cycle_mhz: per step of a cycle that ranks run over and over, the clocks of the one
            pipeline, whose instructions then have their highest clocks of the cycle; empty: all
            steps are equal.
        virtual_stages: as in `Schedule` if stages hold several chunks; else empty.
        weight_versions: as in `Schedule`.
        reserve: possible lengthening of each instruction; the bound is then on plans that keep it,
            and take no less time without using it.
        transitions: times of clock changes that time and energy are predicted with; None: clocks
            change at once.
        tail_s: part of an iteration outside its instructions, s.
        transfer_s: time of a transfer between neighbouring stages, one for all or one for each
            pair, s; empty: none.
        considered: orders that schedule `auto` compared, `schedule` being its choice; else empty.
    """

    policy: str
    reconfigure: str
    schedule: str
    target: str
    num_microbatches: int
    blocking_power_w: tuple[float, ...]
    iteration_time_s: float
    pipelines: tuple[PipelinePlan, ...]
    prediction: Prediction | None
    cycle_mhz: CycleClocks = ()
    virtual_stages: VirtualStages = ()
    weight_versions: tuple[int, ...] | None = None
    reserve: Reserve = NO_RESERVE
    transitions: ClockTransitions | None = None
    tail_s: float = 0.0
    transfer_s: tuple[float, ...] = ()
    considered: tuple[ConsideredSchedule, ...] = ()

    @property
    def is_probe(self) -> bool:
        """True if it was made to measure instructions: its clocks change from step to step."""
        return self.prediction is None

    @property
    def is_separate(self) -> bool:
        """True if data-parallel pipelines have clocks of their own."""
        return bool(self.pipelines[0].dp_ranks)

    @property
    def predicted(self) -> Prediction:
        """The prediction of a plan that is no probe."""
        assert self.prediction is not None  # noqa: S101 - callers have excluded probes
        return self.prediction

    @property
    def stages(self) -> PlannedStages:
        """Instructions of each stage of the first pipeline."""
        return self.pipelines[0].stages

    @property
    def num_stages(self) -> int:
        """Number of stages of each pipeline."""
        return len(self.stages)

    @property
    def by_dp_rank(self) -> tuple[PipelinePlan, ...]:
        """Pipeline of each data-parallel rank; equal pipelines are repeated."""
        of_rank = {rank: pipeline for pipeline in self.pipelines for rank in pipeline.stands_for}
        return tuple(of_rank[rank] for rank in sorted(of_rank))

    @property
    def num_switches(self) -> int:
        """Number of clock changes of an iteration, over all stages of all pipelines."""
        return sum(pipeline.num_switches for pipeline in self.by_dp_rank)

    @property
    def slowdown_percent(self) -> float:
        """Iteration time added to the baseline's, %; negative where the plan is faster."""
        return 100 * (self.iteration_time_s / self.predicted.baseline_iteration_time_s - 1)

    @property
    def transition_ms(self) -> float | None:
        """Delay of every clock change, ms; 0: at once; None: more than this is in `transitions`."""
        if self.transitions is None:
            return 0.0
        delay_s = self.transitions.exact_s
        if delay_s is None or not self.transitions.starts_settled:
            return None
        return delay_s * 1e3

    def pipeline_of(self, dp_rank: int) -> PipelinePlan:
        """Return the pipeline of a data-parallel rank.

        A rank that registered after the plan was made gets the first pipeline, which is safe too.
        """
        return next(
            (pipeline for pipeline in self.pipelines if dp_rank in pipeline.dp_ranks),
            self.pipelines[0],
        )

    def order_of(self, pipeline: PipelinePlan) -> Schedule:
        """Return the order of one of its pipelines.

        Raises:
            PipelineError: it cannot run.
        """
        return Schedule(
            name=self.schedule,
            num_microbatches=self.num_microbatches,
            virtual_stages=self.virtual_stages,
            weight_versions=self.weight_versions,
            stages=pipeline.order,
        )


def clocked_stages(
    order: Iterable[Sequence[Instruction]], clocks_mhz: Iterable[Iterable[int]]
) -> PlannedStages:
    """Return the instructions of each stage with their clocks in MHz."""
    return tuple(
        tuple(
            PlannedInstruction(kind, microbatch, mhz, chunk)
            for (kind, microbatch, chunk), mhz in zip(instructions, of_stage_mhz, strict=True)
        )
        for instructions, of_stage_mhz in zip(order, clocks_mhz, strict=True)
    )


def chunk_places(schedule: Schedule) -> VirtualStages:
    """Return the schedule's chunks for a plan; empty where stage s is virtual stage s."""
    is_plain = schedule.virtual_stages == one_chunk_each(schedule.num_stages)
    return () if is_plain else schedule.virtual_stages


def probe_of(schedule: Schedule, cycle_mhz: CycleClocks, iteration_time_s: float) -> Plan:
    """Return a plan to measure instructions with.

    Args:
        schedule: order of the instructions.
        cycle_mhz: clocks of each step, at least one.
        iteration_time_s: predicted time of the longest step, s.

    Raises:
        PipelineError: the cycle does not fit the order, or has a clock that is not positive.
    """
    check_cycle(cycle_mhz, [len(instructions) for instructions in schedule.stages])
    highest_mhz = (
        tuple(map(max, zip(*rows, strict=True))) for rows in zip(*cycle_mhz, strict=True)
    )
    return Plan(
        policy=PROBE_POLICY,
        reconfigure="",
        schedule=schedule.name,
        target="",
        num_microbatches=schedule.num_microbatches,
        blocking_power_w=(),
        iteration_time_s=iteration_time_s,
        pipelines=(PipelinePlan(stages=clocked_stages(schedule.stages, highest_mhz)),),
        prediction=None,
        cycle_mhz=cycle_mhz,
        virtual_stages=chunk_places(schedule),
    )


def check_cycle(cycle_mhz: CycleClocks, num_instructions: Sequence[int]) -> None:
    """Check that a cycle has a clock for each instruction.

    Args:
        cycle_mhz: the cycle.
        num_instructions: number of instructions of each stage.

    Raises:
        PipelineError: it has not, is empty, or has a clock that is not positive.
    """
    if not cycle_mhz:
        raise PipelineError("must hold at least one step", field="cycle_mhz")
    for row, clocks_mhz in enumerate(cycle_mhz):
        if list(map(len, clocks_mhz)) != list(num_instructions):
            raise PipelineError(
                "must have one clock per stage and instruction", field=f"cycle_mhz[{row}]"
            )
        if any(min(of_stage, default=1) < 1 for of_stage in clocks_mhz):
            raise PipelineError("clocks must be positive", field=f"cycle_mhz[{row}]")

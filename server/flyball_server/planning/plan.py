"""A frequency plan: the clock of every instruction of every stage, with its prediction.

It is for one pipeline (all its data-parallel replicas run the same clocks), or for data-parallel
pipelines that each have clocks of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.schedule import VirtualStages
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.request_options import MAX_SLOWDOWN, MIN_SLOWDOWN
from flyball_wire.closed_loop import NO_RESERVE, ComparedPlan, Reserve


class PlannedInstruction(NamedTuple):
    """One instruction of a stage and the SM clock it runs at."""

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


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """Slowdown factor of a stage's instructions against its profile.

    Attributes:
        stage: from 0.
        slowdown: slowdown factor, MIN_SLOWDOWN to MAX_SLOWDOWN; below 1 they are faster.
        dp_rank: data-parallel rank of the pipeline; None: all pipelines.
        kind: kind of instruction; None: all kinds.

    Raises:
        PlanningError: the slowdown is out of its bounds.
    """

    stage: int
    slowdown: float
    dp_rank: int | None = None
    kind: InstructionKind | None = None

    def __post_init__(self) -> None:
        if not MIN_SLOWDOWN <= self.slowdown <= MAX_SLOWDOWN:
            raise PlanningError(
                f"must be a factor from {MIN_SLOWDOWN:g} to {MAX_SLOWDOWN:g}, not"
                f" {self.slowdown:g}",
                field="slowdown",
            )


@dataclass(frozen=True, kw_only=True)
class ConsideredSchedule:
    """An order that schedule `auto` compared.

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
class PlanPrediction:
    """Inputs and predictions that every plan has.

    Attributes:
        num_microbatches: microbatches of an iteration of one pipeline.
        blocking_power_w: per stage, W of one of its GPUs while it waits; of several pipelines
            the one's stages after the other's, as `DataParallelPlan.pipelines` has them.
        iteration_time_s: predicted, on the profile's own measured points, s.
        energy_j: predicted for one iteration of all that is planned, J.
        baseline_iteration_time_s: the same schedule, every instruction at its highest
            profiled frequency, s.
        baseline_energy_j: energy of the same, J.
        lower_bound_j: no plan at this iteration time needs less, J; None while unknown.
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
        compared: plans without a clock change, as in `PredictedIteration`.
    """

    policy: str
    reconfigure: str
    schedule: str
    target: str
    num_microbatches: int
    blocking_power_w: tuple[float, ...]
    iteration_time_s: float
    energy_j: float
    baseline_iteration_time_s: float
    baseline_energy_j: float
    lower_bound_j: float | None
    virtual_stages: VirtualStages = ()
    weight_versions: tuple[int, ...] | None = None
    reserve: Reserve = NO_RESERVE
    transitions: ClockTransitions | None = None
    tail_s: float = 0.0
    transfer_s: tuple[float, ...] = ()
    considered: tuple[ConsideredSchedule, ...] = ()
    compared: tuple[ComparedPlan, ...] = ()

    @property
    def saving_percent(self) -> float:
        """Energy saved against the baseline, %."""
        return 100 * (1 - self.energy_j / self.baseline_energy_j)

    @property
    def slowdown_percent(self) -> float:
        """Iteration time added to the baseline's, %; negative where the plan is faster."""
        return 100 * (self.iteration_time_s / self.baseline_iteration_time_s - 1)

    @property
    def transition_ms(self) -> float | None:
        """Delay of every clock change, ms; 0: at once; None: more than this is in `transitions`."""
        if self.transitions is None:
            return 0.0
        delay_s = self.transitions.exact_s
        if delay_s is None or not self.transitions.starts_settled:
            return None
        return delay_s * 1e3

    @property
    def gap_percent(self) -> float | None:
        """Return how far above the lower bound the plan's energy is, %; None while unknown."""
        if self.lower_bound_j is None:
            return None
        return 100 * (self.energy_j / self.lower_bound_j - 1)


@dataclass(frozen=True, kw_only=True)
class PipelineClocks:
    """Clocks of one pipeline.

    Attributes:
        stages: per stage, its instructions in the order of execution.
        requests: requests of clocks that are made early, in the order of stages.
        slowdowns: slowdown factors that it was planned with, of any pipeline.
    """

    stages: PlannedStages
    requests: tuple[PlannedRequest, ...] = ()
    slowdowns: tuple[Slowdown, ...] = ()

    @property
    def num_stages(self) -> int:
        """Number of pipeline stages."""
        return len(self.stages)

    @property
    def num_switches(self) -> int:
        """Number of clock changes of an iteration, that to each stage's first clock too."""
        clocks_mhz = [[instruction.frequency_mhz for instruction in stage] for stage in self.stages]
        return sum(
            before_mhz != mhz
            for of_stage in clocks_mhz
            for before_mhz, mhz in zip([*of_stage[-1:], *of_stage[:-1]], of_stage, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class FrequencyPlan(PipelineClocks, PlanPrediction):
    """Plan for one pipeline."""


@dataclass(frozen=True, kw_only=True)
class PlannedPipeline(PipelineClocks):
    """One data-parallel pipeline's part of a plan.

    Attributes:
        dp_rank: its data-parallel rank, from 0; of several the lowest.
        iteration_time_s: predicted end of its iteration, s; it then waits for the slowest.
        energy_j: predicted for one iteration, waiting for the slowest included, J.
        dp_ranks: the data-parallel ranks that it stands for, rising, where it is several that
            run alike (`energy_j` is then of all of them); empty: `dp_rank` alone.
    """

    dp_rank: int
    iteration_time_s: float
    energy_j: float
    dp_ranks: tuple[int, ...] = ()

    @property
    def stands_for(self) -> tuple[int, ...]:
        """The data-parallel ranks that run it, rising."""
        return self.dp_ranks or (self.dp_rank,)


@dataclass(frozen=True, kw_only=True)
class DataParallelPlan(PlanPrediction):
    """Plan for data-parallel pipelines that each have their own clocks.

    The iteration takes as long as the slowest pipeline; energies are of all pipelines together,
    each of them waiting until then.

    Attributes:
        pipelines: by `dp_rank`, at least one; all of the same number of stages. Each
            data-parallel rank, from 0, is stood for once.
    """

    pipelines: tuple[PlannedPipeline, ...]

    @property
    def by_dp_rank(self) -> tuple[PlannedPipeline, ...]:
        """Pipeline of each data-parallel rank; equal pipelines are repeated."""
        of_rank = {rank: pipeline for pipeline in self.pipelines for rank in pipeline.stands_for}
        return tuple(of_rank[rank] for rank in sorted(of_rank))

    @property
    def num_switches(self) -> int:
        """Number of clock changes of an iteration, over all stages of all pipelines."""
        return sum(pipeline.num_switches for pipeline in self.by_dp_rank)

    @property
    def num_stages(self) -> int:
        """Number of stages of each pipeline."""
        return self.pipelines[0].num_stages

"""Messages that carry measurements: a rank's posts, and the job's steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from flyball_profiles.gpu_conditions import GpuConditions
from flyball_wire.strictness import Sent, StrictFields


class MeasurementDetail(StrEnum):
    """Detail of the measurements that a rank posts of each step on a plan version.

    `totals`: the step's totals alone. `clocks`: also its `by_clock`. `instructions`: also its
    `by_clock` and `instructions`.
    """

    TOTALS = "totals"
    CLOCKS = "clocks"
    INSTRUCTIONS = "instructions"


ClockTiming = tuple[str, int, int | None, int, float, float]
"""`[kind, chunk, MHz, count, mean s, variance s2]`: instructions of a step that ran at one clock.

MHz is the requested clock, null: the driver's own choice. The variance is that of single
instructions about the mean (with count - 1; 0 for one instruction).
"""


InstructionReport = tuple[str, int | None, int, float, float, float, float, int | None]
"""`[kind, microbatch, chunk, began s, computed s, received s, sent s, MHz]`.

As in InstructionTiming. MHz is the requested clock, null: the driver's own choice.
"""


StepPlanReport = tuple[float, int, int, float]
"""`[slack, lowest MHz, highest MHz, saved J]` of a step with a plan of its own.

Slack is the share of the step's deadline that its pipeline would have waited at the highest clocks.
The clocks are this rank's; the saving is what its plan predicts for this rank.
"""


@dataclass(frozen=True, kw_only=True)
class StepMeasurement(Sent):
    """Measurement of one step on one rank.

    Attributes:
        step: number of the step, from 0; posting a step again replaces it.
        plan_version: version of the plan that the rank ran; null: none, default clocks.
        plan_id: that plan's `plan_id` as the rank received it; null: not given. A version that is
            not in the planner's database is refused without it, and stored apart with it.
        time_s: time from on_step_begin to on_step_end in s (on an emulated GPU: emulated seconds).
        energy_j: energy of this rank's GPU during that time in J; null: not readable.
        num_unplanned: number of instructions of the step that are not in the plan.
        num_overruns: number of instructions whose computation took longer than profiled; emulated
            GPUs only.
        num_clock_misses: number of readings of the SM clock below the clock that was set.
        num_power_capped: number of these readings caused by a power limit.
        num_thermally_capped: number of these readings caused by a thermal limit.
        sm_clock_mhz: mean of the SM clock readings in MHz: at most five a second, none within 50 ms
            after a switch or while the GPU is idle; null: not read.
        by_clock: times of the instructions by kind, chunk and clock; null: not requested by the
            rank's plan.
        instructions: times of each instruction, in the order of execution; null: not requested.
        no_clocks: reason why the rank sets no clocks, in one line of at most 256 characters; null:
            it sets those of its plan, or would. With a reason its clocks are not known, and the
            step is compared with no other.
        conditions: conditions of the rank's GPU, read after the step; null: not read in it. Ranks
            read them once a minute.
        work: work of each of the step's microbatches, as it was announced: a factor of their
            profiled time, or the sum of their sequences' lengths and that of the lengths' squares;
            null: none was announced.
        step_plan: the step's own plan; null: it had none.
    """

    step: int
    plan_version: int | None
    time_s: float
    energy_j: float | None
    num_unplanned: int = 0
    num_overruns: int = 0
    num_clock_misses: int = 0
    num_power_capped: int = 0
    num_thermally_capped: int = 0
    sm_clock_mhz: float | None = None
    by_clock: tuple[ClockTiming, ...] | None = None
    instructions: tuple[InstructionReport, ...] | None = None
    plan_id: str | None = None
    no_clocks: str | None = None
    conditions: Annotated[GpuConditions, StrictFields()] | None = None
    work: tuple[tuple[float, ...], ...] | None = None
    step_plan: StepPlanReport | None = None


@dataclass(frozen=True, kw_only=True)
class MeasurementBatch(Sent):
    """Steps measured by one rank since its last post; `start_id` as in Acknowledgement."""

    steps: tuple[StepMeasurement, ...]
    start_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class JobStep:
    """One step of a job as measured by its ranks.

    Attributes:
        num_ranks: number of ranks that have posted the step.
        plan_versions: distinct plan versions of the step (null: default clocks); more than one:
            ranks ran different versions.
        unknown_versions: distinct versions of the step that are not in the planner's database,
            since it was restored to an older state; such a step counts in no total.
        time_s: time of the slowest rank in s.
        energy_j: sum over the ranks in J; null: one of them could not read it.
        num_unplanned, num_overruns, num_clock_misses, num_power_capped, num_thermally_capped: sum
            over the ranks, as in StepMeasurement.
        num_without_clocks: number of ranks that set no clocks.
    """

    step: int
    num_ranks: int
    plan_versions: tuple[int | None, ...]
    time_s: float
    energy_j: float | None
    num_unplanned: int
    num_overruns: int
    num_clock_misses: int = 0
    num_power_capped: int = 0
    num_thermally_capped: int = 0
    unknown_versions: tuple[int, ...] = ()
    num_without_clocks: int = 0


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """Answer to posted measurements.

    Attributes:
        stored: number of stored steps.
        next_post_s: time until the rank's next post in s: 1 with up to 128 ranks, growing with
            their number to 15 with 4096, less while the job is profiled or has stragglers.
    """

    stored: int
    next_post_s: float

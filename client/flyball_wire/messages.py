"""Types that cross HTTP between ranks and planner, except plans and measurements.

Frozen keyword-only standard-library dataclasses: the planner's FastAPI validates them, the
client encodes and decodes them with `codec`. Units are in the names. The planner refuses
unknown fields in what it receives; the client ignores unknown fields in what it receives, so
that an older client can talk to a newer planner.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from flyball_pipeline.instruction import MAX_NUM_MICROBATCHES
from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.stage_profile import EnergyScope
from flyball_wire.closed_loop import MissedTarget
from flyball_wire.measurements import MeasurementDetail
from flyball_wire.options import Option
from flyball_wire.orders import OrderAdvice, OtherOrder
from flyball_wire.plan_options import PlanOptions
from flyball_wire.strictness import Sent, StrictFields

TOKEN_HEADER = "Flyball-Token"  # noqa: S105 - the header's name, not a token
# In the planner's answers to a read-only token.
ACCESS_HEADER, READ_ONLY = "Flyball-Access", "read-only"

MAX_STAGES = 4096
MAX_RANKS = 1_048_576

# ------------------------------------------------------------------ what clients send


class Profiling(StrEnum):
    """Source of a job's profile: sent to the planner, or measured while the job trains."""

    GIVEN = "given"
    ONLINE = "online"


class Adaptation(StrEnum):
    """Effect of a job's measurements on its plan.

    `announced`: none beyond its tail, transfers and jitter. `reconfigure`: EnvPipe's loop raises
    the clocks of policy `envelope` from measured waits. `frontier`: the job is planned again when
    times have drifted or a rank has become a straggler.
    """

    ANNOUNCED = "announced"
    RECONFIGURE = "reconfigure"
    FRONTIER = "frontier"


class JobState(StrEnum):
    """State of a job: the input that it waits for, or its end.

    `ended`: all its ranks have left. `expired`: no rank has called for a long time.
    """

    AWAITING_PROFILE = "awaiting-profile"
    PROFILING = "profiling"
    PLANNED = "planned"
    PLANNING_FAILED = "planning-failed"
    ENDED = "ended"
    EXPIRED = "expired"

    @property
    def is_over(self) -> bool:
        """Return whether no rank is left."""
        return self in {JobState.ENDED, JobState.EXPIRED}


class ConditionName(StrEnum):
    """Trouble that a job's state does not say, in the words that people are shown.

    `no ranks`: all have been silent for long. `ranks missing`: some have. `refused`: a registration
    was refused lately. `no clocks`: ranks set no clocks. `slow GPU`: the job has a straggler.
    `steps differ`: in their work, so that no plan fits all of them.
    """

    NO_RANKS = "no ranks"
    RANKS_MISSING = "ranks missing"
    REFUSED = "refused"
    NO_CLOCKS = "no clocks"
    SLOW_GPU = "slow GPU"
    STEPS_DIFFER = "steps differ"


@dataclass(frozen=True, kw_only=True)
class JobCondition:
    """Gravest trouble of a job that its state does not say.

    Attributes:
        action: line for someone who has to act; null: nobody has to.
    """

    name: ConditionName
    action: str | None = None


@dataclass(frozen=True, kw_only=True)
class JobSpec(PlanOptions):
    """A training job and the options that it is planned with.

    Attributes:
        emulated: true if the job's GPUs are emulated; shown with all of its figures.
        other_orders: orders that the planner compares with the job's own, at most 16; it advises
            one that saves enough and never changes the order itself.
    """

    num_stages: Annotated[
        int, Option("number of pipeline stages", bounds=(1, MAX_STAGES), is_frameworks=True)
    ]
    num_microbatches: Annotated[
        int,
        Option(
            "number of microbatches per iteration",
            bounds=(1, MAX_NUM_MICROBATCHES),
            flag="--microbatches",
            is_frameworks=True,
        ),
    ]
    num_ranks: Annotated[
        int | None,
        Option(
            "number of ranks that must have a plan before it takes effect",
            bounds=(1, MAX_RANKS),
            if_null="one per stage",
            is_frameworks=True,
        ),
    ] = None
    emulated: bool = False
    profiling: Annotated[
        Profiling,
        Option(
            "`given`: the profile is sent to the planner; `online`: it is measured during"
            " training, and so is the blocking power if neither that nor a `gpu` is given"
        ),
    ] = Profiling.GIVEN
    profiling_slowdown: Annotated[
        float,
        Option(
            "largest slowdown of an iteration during online profiling, as a share",
            bounds=(0, 1),
            is_above=True,
            is_share=True,
            example="0.1",
        ),
    ] = 0.1
    adaptation: Annotated[Adaptation, Option("effect of measurements on the plan")] = (
        Adaptation.ANNOUNCED
    )
    max_work_error: Annotated[
        float,
        Option(
            "largest error of times predicted from announced work, as a share, with which steps"
            " get plans of their own",
            bounds=(0, 1),
            is_share=True,
            example="0.03",
        ),
    ] = 0.03
    other_orders: tuple[OtherOrder, ...] = ()

    @property
    def num_expected_ranks(self) -> int:
        """Number of ranks that must have a plan before it takes effect."""
        return self.num_stages if self.num_ranks is None else self.num_ranks

    @property
    def is_profiled_online(self) -> bool:
        """True if the profile is measured during training."""
        return self.profiling == Profiling.ONLINE


@dataclass(frozen=True, kw_only=True)
class JobRegistration(JobSpec):
    """Registration of a training job by one of its ranks or an operator (PUT, repeatable).

    Attributes:
        start_id: identity of this start of the training, which all of its ranks name; null: not
            given, ranks of any start are taken.
        run: launcher's identifier of the training (torchrun's run id, Slurm's job id); null: not
            given.
        restart_count: number of automatic restarts by the launcher; null: not given. A higher
            number of the same run says that the ranks before it are gone.
        host: name of the node that registers the job; null: not given.
    """

    start_id: str | None = None
    run: str | None = None
    restart_count: int | None = None
    host: str | None = None


@dataclass(frozen=True, kw_only=True)
class RankRegistration(Sent):
    """One training rank (PUT, repeatable; a restarted rank registers again).

    All ranks of a stage run the same instructions at the same clocks.

    Attributes:
        stage: pipeline stage, from 0.
        host: name of the rank's node.
        dp_rank: number of the rank's data-parallel pipeline, from 0.
        tp_rank: position in the tensor-parallel group, from 0.
        cp_rank: position in the context-parallel group, from 0.
        node: ID of the machine that its GPU is in, also in containers, as the boot ID; null:
            unknown, `host` names the machine.
        sm_clocks_mhz: SM clocks that the rank's GPU supports in MHz; null: not given.
        start_id: as in JobRegistration; a rank of another start is refused.
        energy_scope: what the GPU's energy counter counts; null: not known.
        conditions: limits and settings that the GPU runs under; null: not known.
    """

    stage: int
    host: str
    gpu_name: str
    gpu_uuid: str
    emulated: bool
    client_version: str
    dp_rank: int = 0
    tp_rank: int = 0
    cp_rank: int = 0
    node: str | None = None
    sm_clocks_mhz: tuple[int, ...] | None = None
    start_id: str | None = None
    energy_scope: EnergyScope | None = None
    conditions: Annotated[GpuConditions, StrictFields()] | None = None


@dataclass(frozen=True, kw_only=True)
class ProfileRow(Sent):
    """Measured operating point; a JSON profile is a list of such rows.

    Attributes:
        rank_waiting: time in s that the ranks of the row wait for the slowest of them, summed;
            null: none.
        time_error: standard error of `time` in s; null: unknown.
        jitter: standard deviation of a single run's time, as a share of `time`; null: derived
            from `time_error` and `num_repetitions`, or unknown.
        num_repetitions: number of runs averaged in `time`; null: unknown.
        held_by: limit that kept the GPU below the locked clock, such as `power`; null: it held the
            clock. Such clocks at the top are one point.
        chunk: model chunk of the stage, from 0; null: the whole stage.
        energy_scope: what the energy counts, the same in all rows; null: not recorded.
        conditions: conditions that the GPU was measured under, as in the CSV's column; null: not
            recorded.
    """

    stage: int
    instruction: str
    frequency: int
    time: float
    energy: float
    rank: int | None = None
    dp_rank: int | None = None
    pp_rank: int | None = None
    tp_rank: int | None = None
    num_ranks: int | None = None
    rank_waiting: float | None = None
    time_error: float | None = None
    jitter: float | None = None
    num_repetitions: int | None = None
    held_by: str | None = None
    chunk: int | None = None
    energy_scope: EnergyScope | None = None
    conditions: str | None = None


@dataclass(frozen=True, kw_only=True)
class JsonProfile(Sent):
    """A stage profile as JSON."""

    rows: tuple[ProfileRow, ...]


@dataclass(frozen=True, kw_only=True)
class Acknowledgement(Sent):
    """Acknowledgement of plan `version` by a rank that runs step `current_step`, from 0.

    Attributes:
        start_id: `start_id` in the answer to the rank's registration; null: not given.
    """

    version: int
    current_step: int
    start_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Departure(Sent):
    """End of a rank's training.

    Attributes:
        start_id: `start_id` in the answer to the rank's registration; null: not given.
    """

    start_id: str | None = None


# ------------------------------------------------------------------ what the planner answers


@dataclass(frozen=True, kw_only=True)
class Health:
    """Health of the planner; `version` is its Flyball version."""

    status: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Body of every error: `detail` in one line, `errors` if several fields are wrong.

    Each of `errors` has `loc` (a path as text), `type` and `msg`; the input is never echoed.
    """

    detail: str
    errors: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankView:
    """A registered rank.

    Attributes:
        node: ID of the machine that its GPU is in; null: unknown, `host` names the machine.
        last_seen_at: time of the rank's last call, to within a few seconds, ISO 8601, UTC; null:
            not recorded.
        has_left: true if the rank has reported the end of its training.
        no_clocks: reason why the rank sets no clocks, by its newest step; null: it sets them.
        energy_scope: what the GPU's energy counter counts; null: not known.
        conditions: limits and settings that the GPU runs under, by the newest reading; null: not
            known.
    """

    rank: int
    stage: int
    host: str
    gpu_name: str
    gpu_uuid: str
    emulated: bool
    client_version: str
    acknowledged_version: int | None
    current_step: int | None
    dp_rank: int = 0
    tp_rank: int = 0
    cp_rank: int = 0
    node: str | None = None
    last_seen_at: str | None = None
    has_left: bool = False
    no_clocks: str | None = None
    energy_scope: EnergyScope | None = None
    conditions: GpuConditions | None = None


@dataclass(frozen=True, kw_only=True)
class RegisteredRank(RankView):
    """A rank in the answer to its registration.

    Attributes:
        start_id: start of the job that the rank belongs to; the rank names it in each call, and
            calls of another start are refused.
    """

    start_id: str


@dataclass(frozen=True, kw_only=True)
class JobView:
    """A job with its registration, ranks and newest plan version.

    Attributes:
        newest_version: newest plan version; null: none yet.
        active_version: newest plan version that has a first step; null: none yet.
        problem: reason why the newest planning failed; null: it did not fail.
        created_at: time of the job's registration, ISO 8601, UTC.
        notes: remarks for people on missing input and anything unusual.
        missed: target that cannot be met, and the target of the plan that runs instead;
            null: the newest plan meets its target.
        order_advice: order that would save more, from the job's next start on; null: none found.
        condition: trouble that `state` does not say; null: none.
    """

    job_id: str
    state: JobState
    registration: JobRegistration
    ranks: tuple[RankView, ...]
    newest_version: int | None
    active_version: int | None
    problem: str | None
    created_at: str
    notes: tuple[str, ...] = ()
    missed: MissedTarget | None = None
    order_advice: OrderAdvice | None = None
    condition: JobCondition | None = None


@dataclass(frozen=True, kw_only=True)
class PlanView:
    """One version of a job's plan.

    Attributes:
        plan: document of `flyball plan --json`, with energies of the profile's GPUs; that of
            `--data-parallel separate` if data-parallel pipelines have clocks of their own. In a
            profiling version `policy` is `probe` and nothing is predicted but the iteration time:
            each instruction has its highest clock, `rows_mhz` has the clocks of each stage, and
            `cycle`, by step and stage, an index into these.
        first_step: first step on which all ranks run it; null: not all have acknowledged it.
        measurement_detail: detail of the ranks' measurements.
        baseline_cycle: in a comparison, true for each step at the highest clocks; step `k` has
            entry `(k - first_step) mod length`; empty: no comparison.
    """

    job_id: str
    version: int
    first_step: int | None
    created_at: str
    plan: dict[str, Any]
    measurement_detail: MeasurementDetail = MeasurementDetail.TOTALS
    baseline_cycle: tuple[bool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlanVersion:
    """A plan version and its first step.

    Attributes:
        first_step: first step on which all ranks run it; null: not all have acknowledged it.
    """

    version: int
    first_step: int | None

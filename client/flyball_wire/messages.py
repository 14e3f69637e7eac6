"""Every type that crosses HTTP between ranks and planner, once.

Frozen keyword-only standard-library dataclasses: the planner's FastAPI validates them, the
client encodes and decodes them with `codec`. Units are in the names. The planner refuses
unknown fields in what it receives; the client ignores unknown fields in what it receives, so
that an older client can talk to a newer planner.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from flyball_wire.plan_options import PlanOptions
from flyball_wire.strictness import Sent

TOKEN_HEADER = "Flyball-Token"  # noqa: S105 - the header's name, not a token


# ------------------------------------------------------------------ what clients send


class Profiling(StrEnum):
    """Source of a job's profile: put by someone, or measured while the job trains."""

    GIVEN = "given"
    ONLINE = "online"


class Adaptation(StrEnum):
    """Effect of a job's measurements on its plan.

    `announced`: none. `reconfigure`: EnvPipe's loop raises the clocks of policy `envelope` from
    measured waits. `frontier`: the job is planned again when times have drifted or a rank has
    become a straggler.
    """

    ANNOUNCED = "announced"
    RECONFIGURE = "reconfigure"
    FRONTIER = "frontier"


@dataclass(frozen=True, kw_only=True)
class JobSpec(PlanOptions):
    """A training job and the options that it is planned with.

    Attributes:
        num_stages: number of pipeline stages, at least 1.
        num_microbatches: number of microbatches per iteration, at least 1.
        num_ranks: number of ranks that must have a plan before it takes effect; null: one per
            stage.
        emulated: true if the job's GPUs are emulated; shown wherever its figures are.
        profiling: `given`: someone puts the profile; `online`: it is measured in the training
            itself, and so is the blocking power if neither it nor a `gpu` is given.
        profiling_slowdown: largest slowdown of an iteration while it is measured, as a share,
            above 0 and at most 1.
        adaptation: effect of measurements on the plan.
    """

    num_stages: int
    num_microbatches: int
    num_ranks: int | None = None
    emulated: bool = False
    profiling: Profiling = Profiling.GIVEN
    profiling_slowdown: float = 0.1
    adaptation: Adaptation = Adaptation.ANNOUNCED

    @property
    def num_expected_ranks(self) -> int:
        """Number of ranks that must have a plan before it takes effect."""
        return self.num_stages if self.num_ranks is None else self.num_ranks

    @property
    def is_profiled_online(self) -> bool:
        """Return whether the profile is measured in the training itself."""
        return self.profiling == Profiling.ONLINE


@dataclass(frozen=True, kw_only=True)
class JobRegistration(JobSpec):
    """Registration of a training job by one of its ranks or an operator (PUT, repeatable).

    Attributes:
        run: the launcher's name of this start of the job (torchrun's run id, Slurm's job id);
            null: not given.
        restart_count: number of automatic restarts by the launcher; null: not given.
    """

    run: str | None = None
    restart_count: int | None = None


@dataclass(frozen=True, kw_only=True)
class RankRegistration(Sent):
    """One training rank (PUT, repeatable; a restarted rank registers again).

    All ranks of a stage run the same instructions at the same clocks.

    Attributes:
        stage: pipeline stage, from 0.
        host: name of its node.
        dp_rank: which of the data-parallel pipelines, from 0.
        tp_rank: within the tensor-parallel group, from 0.
        cp_rank: within the context-parallel group, from 0.
        sm_clocks_mhz: that its GPU can be locked to, MHz; null: not told.
        run, restart_count: as in the job's registration: a rank of another start of the job is
            refused.
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
    sm_clocks_mhz: tuple[int, ...] | None = None
    run: str | None = None
    restart_count: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProfileRow(Sent):
    """One measured operating point; a JSON profile is a list of these.

    Attributes:
        chunk: model chunk of the stage, from 0; null: the whole stage.
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
    chunk: int | None = None


@dataclass(frozen=True, kw_only=True)
class JsonProfile(Sent):
    """A stage profile as JSON."""

    rows: tuple[ProfileRow, ...]


@dataclass(frozen=True, kw_only=True)
class Acknowledgement(Sent):
    """A rank has plan `version` and is now in step `current_step` (counted from 0).

    Attributes:
        run_id: as the planner answered the rank's registration; null: it told none.
    """

    version: int
    current_step: int
    run_id: str | None = None


ClockTiming = tuple[str, int, int | None, int, float, float]
"""`[kind, chunk, MHz, count, mean s, variance s2]`: instructions of a step that ran at one clock.

MHz is the clock that was asked for, null: the driver's own choice. The variance is of single
instructions about the mean (with count - 1; 0 of one).
"""

InstructionReport = tuple[str, int | None, int, float, float, float, float]
"""`[kind, microbatch, chunk, began s, computed s, received s, sent s]`, as in InstructionTiming."""


@dataclass(frozen=True, kw_only=True)
class StepMeasurement(Sent):
    """Measurement of one step on one rank.

    Attributes:
        step: counted from 0; posting a step again replaces it.
        plan_version: the plan the rank ran; null: none, default clocks.
        time_s: from on_step_begin to on_step_end, s (on an emulated GPU: emulated seconds).
        energy_j: of this rank's GPU over that time, J; null where it cannot be read.
        num_unplanned: instructions of the step that the plan did not expect.
        num_overruns: emulated GPU only: instructions whose computation outlasted the profile.
        num_clock_misses: times that the SM clock, read back, was below the one that was set.
        num_power_capped: of these, how often power held it down.
        num_thermally_capped: of these, how often heat did.
        sm_clock_mhz: mean of the SM clock as it was read back, MHz: at most five times a second, no
            sooner than 50 ms after a switch and not while the GPU was idle; null: not read.
        by_clock: what the instructions took, by kind, chunk and clock; null where the rank's
            plan did not ask for it.
        instructions: each of them, in the order of execution; likewise.
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


@dataclass(frozen=True, kw_only=True)
class MeasurementBatch(Sent):
    """Steps measured by one rank since its last post; `run_id` as in Acknowledgement."""

    steps: tuple[StepMeasurement, ...]
    run_id: str | None = None


# ------------------------------------------------------------------ what the planner answers


@dataclass(frozen=True, kw_only=True)
class Health:
    """The planner is up; `version` is its Flyball version."""

    status: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The body of every error: `detail` in one line, `errors` where several fields are wrong.

    Each of `errors` has `loc` (a path as text), `type` and `msg`; the input is never echoed.
    """

    detail: str
    errors: tuple[dict[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankView:
    """A registered rank, as the planner knows it.

    Attributes:
        last_seen_at: when the planner last heard of it, ISO 8601, UTC, to some seconds; null: not
            since it kept this.
        has_left: whether it has said that its training is over.
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
    last_seen_at: str | None = None
    has_left: bool = False


@dataclass(frozen=True, kw_only=True)
class RegisteredRank(RankView):
    """A rank, as the answer to its registration tells of it.

    Attributes:
        run_id: the run of the job that it belongs to; sent with what it posts, so that a process
            of an earlier run is known by it; null: an older planner tells none.
    """

    run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class JobView:
    """A job, as the planner knows it.

    Attributes:
        state: `awaiting-profile`, `profiling`, `planned` or `planning-failed`; `ended`: all its
            ranks have left; `expired`: nothing was heard of it for long.
        newest_version: of its plans; null: none yet.
        active_version: the newest whose first step has been named; null: none yet.
        problem: why the newest planning failed; null otherwise.
        created_at: ISO 8601, UTC.
        notes: what it waits for and what is odd about it, a line each; for people.
    """

    job_id: str
    state: str
    registration: JobRegistration
    ranks: tuple[RankView, ...]
    newest_version: int | None
    active_version: int | None
    problem: str | None
    created_at: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlanView:
    """One version of a job's plan.

    Attributes:
        plan: what `flyball plan --json` prints; of data-parallel pipelines with clocks of their
            own what `--data-parallel separate` does; of a profiling version `policy` is `probe`
            and `cycle` has the clocks of each step.
        first_step: the step from which all ranks run it; null until all have acknowledged it.
        report: what ranks tell of each step on it, as in RankPlan.
        baseline_cycle: of a comparison, whether a step runs at the highest clocks instead: step
            `k` does what entry `(k - first_step) mod length` says; empty: none does.
    """

    job_id: str
    version: int
    first_step: int | None
    created_at: str
    plan: dict[str, Any]
    report: str = "totals"
    baseline_cycle: tuple[bool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """Plan of one rank: its stage's instructions in order, each with its clock.

    Attributes:
        first_step: as in PlanView.
        instructions: `[kind, microbatch, MHz]` or `[kind, microbatch, MHz, chunk]`, in the
            order of execution.
        predicted_iteration_time_s: of the whole pipeline, s.
        cycle_mhz: per step of a cycle that begins at `first_step` and repeats, the clock of each
            of `instructions`, MHz; null: the same in every step, as in `instructions`.
        intended_times_s: how long each of `instructions` is meant to take at its clock, s: a
            rank that is slow as planned is no straggler; null: not known.
        report: what each measured step tells beside its totals: `totals` nothing, `clocks` its
            `by_clock`, `instructions` that and its `instructions`.
    """

    job_id: str
    version: int
    stage: int
    first_step: int | None
    instructions: tuple[tuple[str | int, ...], ...]
    predicted_iteration_time_s: float
    cycle_mhz: tuple[tuple[int, ...], ...] | None = None
    intended_times_s: tuple[float, ...] | None = None
    report: str = "totals"


@dataclass(frozen=True, kw_only=True)
class PlanVersion:
    """From which step a plan version holds; `first_step` null: not all ranks have it yet."""

    version: int
    first_step: int | None


@dataclass(frozen=True, kw_only=True)
class JobStep:
    """One step of a job as measured by its ranks.

    Attributes:
        num_ranks: ranks that have posted it.
        plan_versions: the distinct versions run in it (null: default clocks); more than one
            means that the step was mixed.
        time_s: the slowest rank's, s.
        energy_j: sum over ranks, J; null where one could not read it.
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


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """Answer to posted measurements.

    Attributes:
        stored: number of steps that were stored.
        next_post_s: time until the rank's next post in s: 1 with up to 128 ranks, growing with
            their number to 15 with 4096, less while the job is profiled or has stragglers.
    """

    stored: int
    next_post_s: float

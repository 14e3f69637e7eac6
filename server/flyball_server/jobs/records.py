"""Records of a job: frozen, always valid, changed only by `evolve()`."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.stage_profile import EnergyScope
from flyball_server.jobs.bounds import (
    check_count,
    check_text,
)
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.job_state import JobInput, check_move
from flyball_wire.measurements import MeasurementDetail
from flyball_wire.messages import MAX_RANKS, MAX_STAGES, JobSpec, JobState
from flyball_wire.plans.plan import Plan, Purpose

# No leading dot: `..` in an address leads elsewhere.
JOB_ID_PATTERN = "^[A-Za-z0-9_-][A-Za-z0-9._+-]{0,127}$"
# Earlier runs of a job are kept under its name with a number suffix, which cannot be registered.
RUN_SIGN = "@"
ANY_JOB_ID_PATTERN = "^[A-Za-z0-9_-][A-Za-z0-9._+-]{0,127}(@[0-9]{1,9})?$"
MAX_SM_CLOCKS = 4096
MAX_SM_CLOCK_MHZ = 100_000
# Position of a rank among those of its stage.
LAYOUT_FIELDS = ("dp_rank", "tp_rank", "cp_rank")
RankPlace = tuple[int, int, int, int]
"""Stage, and index in data, tensor and context parallelism."""
_SHOWN_RANKS = 8


def ranks_text(ranks: Sequence[int]) -> str:
    """Return `rank 0` or `ranks 0, 1 and 2`, at most 8 by number and the others as a count."""
    shown = [str(rank) for rank in ranks[:_SHOWN_RANKS]]
    if len(ranks) > _SHOWN_RANKS:
        shown.append(f"{len(ranks) - _SHOWN_RANKS} more")
    if len(shown) < 2:
        return f"rank {''.join(shown)}"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


def identity_of(created_at: datetime) -> str:
    """Return the identity of what was created at this time, beside its name or number."""
    return f"{round(created_at.timestamp() * 1e6):x}"


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of all records."""

    def evolve(self, **changes: object) -> Self:
        """Return this record with some fields changed; checked like a new record."""
        return replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class JobRecord(Record):
    """A job.

    Attributes:
        registered: specification as first registered; registering the same again changes nothing.
        spec: current specification, with later changes of target.
        problem: reason why the newest planning failed; None: no failure, or the inputs have changed
            since and are not planned yet.
        created_at: creation time, UTC.
        changed_input: input that was changed last; its caller is told where planning fails.
        inputs_revision: number of changes of profile and specification.
        start: identity of the start that its ranks belong to; None: whoever registered the job
            named none, and ranks of any start are taken.
        run: name of the training, from its launcher; None: not reported.
        restart_count: number of restarts by the launcher itself; None: not reported.
    """

    job_id: str
    registered: JobSpec
    spec: JobSpec
    created_at: datetime
    state: JobState = JobState.AWAITING_PROFILE
    problem: str | None = None
    changed_input: JobInput = JobInput.REGISTRATION
    inputs_revision: int = 0
    start: str | None = None
    run: str | None = None
    restart_count: int | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(ANY_JOB_ID_PATTERN, self.job_id):
            raise InvalidFieldError(
                "job_id", "must be 1 to 128 characters of A-Z a-z 0-9 . _ + -, no dot or plus first"
            )
        check_count("inputs_revision", self.inputs_revision)
        check_text("start_id", self.start or "")
        check_text("run", self.run or "")
        check_count("restart_count", self.restart_count or 0)

    @property
    def start_id(self) -> str:
        """Return what its ranks name in their calls: other in each start and each kept run."""
        return self.start or identity_of(self.created_at)

    def with_change(self, changed_input: JobInput, *, spec: JobSpec | None = None) -> JobRecord:
        """Return the job after a change of one of its inputs; it is to be planned again."""
        return self.evolve(
            spec=spec or self.spec,
            changed_input=changed_input,
            inputs_revision=self.inputs_revision + 1,
            problem=None,
        )

    def is_same_work(self, other: JobRecord) -> bool:
        """Return whether both are the same run with the same profile and specification."""
        return (self.created_at, self.inputs_revision) == (other.created_at, other.inputs_revision)

    def moved(self, state: JobState, *, problem: str | None = None) -> JobRecord:
        """Return the job in another state, with the problem that led there.

        Raises:
            IllegalMoveError: the table has no such move from the job's state.
        """
        check_move(self.state, state)
        return self.evolve(state=state, problem=problem)


@dataclass(frozen=True, kw_only=True)
class RankRecord(Record):
    """A registered rank.

    Attributes:
        dp_rank, tp_rank, cp_rank: index in data, tensor and context parallelism; all ranks of a
            stage run the same plan.
        node: machine that its GPU is in; None: not known, `host` names it.
        acknowledged_version: newest plan version that it has acknowledged; None: none since it
            registered.
        current_step: current step at its last acknowledgement.
        sm_clocks_mhz: clocks that its GPU can be locked to, MHz, falling; None: not reported.
        last_seen_at: time of the last call, UTC, to some seconds; None: no call since it
            registered.
        has_left: true once its training is over.
        start: identity of the start that it names; None: none.
        no_clocks: reason why it sets no clocks, by its newest step; None: it sets them, or has
            posted no step since it registered.
        energy_scope: what its GPU's energy counter counts; None: not known.
        conditions: conditions of its GPU by the newest reading; None: not known.
    """

    job_id: str
    rank: int
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
    acknowledged_version: int | None = None
    current_step: int | None = None
    sm_clocks_mhz: tuple[int, ...] | None = None
    last_seen_at: datetime | None = None
    has_left: bool = False
    start: str | None = None
    no_clocks: str | None = None
    energy_scope: EnergyScope | None = None
    conditions: GpuConditions | None = None

    @property
    def place(self) -> RankPlace:
        """Return the place in the job, which no other present rank has."""
        return (self.stage, self.dp_rank, self.tp_rank, self.cp_rank)

    def __post_init__(self) -> None:
        self._order_clocks()
        check_count("rank", self.rank, most=MAX_RANKS - 1)
        check_count("stage", self.stage, most=MAX_STAGES - 1)
        for field in LAYOUT_FIELDS:
            check_count(field, getattr(self, field), most=MAX_RANKS - 1)
        for field in ("host", "gpu_name", "gpu_uuid", "client_version", "node", "start"):
            check_text(field, getattr(self, field) or "")
        if self.acknowledged_version is not None:
            check_count("version", self.acknowledged_version, least=1)
        if self.current_step is not None:
            check_count("current_step", self.current_step)

    def _order_clocks(self) -> None:
        if self.sm_clocks_mhz is None:
            return
        object.__setattr__(self, "sm_clocks_mhz", _falling(self.sm_clocks_mhz))


@functools.lru_cache(maxsize=256)
def _falling(clocks_mhz: tuple[int, ...]) -> tuple[int, ...]:
    """Return a GPU's clocks, checked and in order; cached, since many ranks share them."""
    check_count("num_sm_clocks_mhz", len(clocks_mhz), least=1, most=MAX_SM_CLOCKS)
    for clock_mhz in clocks_mhz:
        check_count("sm_clocks_mhz", clock_mhz, least=1, most=MAX_SM_CLOCK_MHZ)
    return tuple(sorted(set(clocks_mhz), reverse=True))


@dataclass(frozen=True, kw_only=True)
class PlanRecord(Record):
    """One version of a job's plan; only `first_step` is ever added, once.

    Attributes:
        version: 1, 2, 3, ... without gaps.
        first_step: step from which all ranks run it; None until all have acknowledged it.
        solve_s: duration of the planning, s.
        measurement_detail: detail of the ranks' measurements of each step on it.
        baseline_cycle: true for steps that run at the highest clocks instead: step k uses entry
            `(k - first_step) % len`; empty: no such steps.
        digest: digest of the request that it answers; None: it only measures the job.
    """

    job_id: str
    version: int
    created_at: datetime
    solve_s: float
    plan: Plan
    first_step: int | None = None
    measurement_detail: MeasurementDetail = MeasurementDetail.TOTALS
    baseline_cycle: tuple[bool, ...] = ()
    digest: str | None = None

    @property
    def plan_id(self) -> str:
        """Return the identity of the plan, different from that of another plan of its version."""
        return identity_of(self.created_at)

    @property
    def purpose(self) -> Purpose:
        """Purpose of the version, by what it has its ranks run and measure."""
        if self.plan.is_probe:
            return Purpose.PROBE
        if self.baseline_cycle:
            return Purpose.COMPARISON
        is_measured = self.measurement_detail == MeasurementDetail.INSTRUCTIONS
        return Purpose.RAISE if is_measured else Purpose.PLAN

    @property
    def cycle_length(self) -> int:
        """Number of steps after which the clocks repeat; 1: all steps are equal."""
        return len(self.plan.cycle_mhz) or len(self.baseline_cycle) or 1


@dataclass(frozen=True, kw_only=True)
class NewestVersion(Record):
    """The newest version of a job's plan, without the plan; attributes as in PlanRecord."""

    version: int
    first_step: int | None
    baseline_cycle: tuple[bool, ...] = ()
    digest: str | None = None
    measurement_detail: MeasurementDetail = MeasurementDetail.TOTALS

    @property
    def is_raised(self) -> bool:
        """Return whether its measurements decide which clocks are raised."""
        return self.measurement_detail == MeasurementDetail.INSTRUCTIONS


@dataclass(frozen=True, kw_only=True)
class TokenRecord(Record):
    """Record of an access token.

    Attributes:
        token_id: the token's public part, by which it is found and listed.
        digest: SHA-256 of the whole token, hexadecimal.
        job_id: ID of the only job that it grants access to; None: all jobs.
        is_read_only: true if it permits no change; such a token has no job.
        created_at: creation time, UTC.
        note: description for the list of tokens.
    """

    token_id: str
    digest: str
    job_id: str | None
    is_read_only: bool = False
    created_at: datetime
    note: str = ""

    def __post_init__(self) -> None:
        check_text("note", self.note)
        if self.is_read_only and self.job_id is not None:
            raise InvalidFieldError("job_id", "must not be given for a read-only token")

    @property
    def is_operators(self) -> bool:
        """Return whether it grants access to everything."""
        return self.job_id is None and not self.is_read_only

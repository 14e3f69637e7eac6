"""Contract of a job store, which stores jobs, ranks, profiles, plans and measurements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol

from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.moments import StageMoments, StepMoments
from flyball_server.jobs.records import (
    JobRecord,
    PlanRecord,
    RankPlace,
    RankRecord,
    StageTotals,
    StepDetail,
    StepRecord,
    StepTotals,
    TokenRecord,
)
from flyball_wire.messages import JobStep, PlanVersion

# Subject of `writing` for changes of tokens: no job has this name.
TOKENS = "/tokens"


class JobReader(Protocol):
    """Reader inside one transaction, which reads a snapshot."""

    def find_job(self, job_id: str) -> JobRecord | None:
        """Return the job, or None."""
        ...

    def count_jobs(self) -> int:
        """Return the number of jobs."""
        ...

    def list_jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs in the order of their creation, then of their names."""
        ...

    def find_ranks(self, job_id: str, ranks: Collection[int]) -> tuple[RankRecord, ...]:
        """Return the job's ranks with these numbers, by number; unknown ones are left out."""
        ...

    def find_ranks_at(self, job_id: str, places: Collection[RankPlace]) -> tuple[RankRecord, ...]:
        """Return the job's ranks that have one of these places, by number."""
        ...

    def list_ranks(self, job_id: str) -> tuple[RankRecord, ...]:
        """Return the job's ranks by number."""
        ...

    def count_ranks_holding(self, job_id: str, version: int) -> int:
        """Return the number of the job's ranks that acknowledged exactly this plan version last."""
        ...

    def find_profile(self, job_id: str) -> StageProfile | None:
        """Return the job's newest profile, or None."""
        ...

    def has_profile(self, job_id: str) -> bool:
        """Return whether the job has a profile; quickly found out, however large it is."""
        ...

    def find_plan(self, job_id: str, version: int) -> PlanRecord | None:
        """Return one version of the job's plan, or None."""
        ...

    def list_plans(self, job_id: str) -> tuple[PlanRecord, ...]:
        """Return all versions of the job's plan, rising."""
        ...

    def list_versions(self, job_id: str) -> tuple[PlanVersion, ...]:
        """Return all versions of the job's plan, rising, without the plans."""
        ...

    def list_plan_times(self, job_id: str) -> dict[int, datetime]:
        """Return the creation time of each version of the job's plan."""
        ...

    def list_newest_steps(self, job_id: str, num_steps: int) -> tuple[StepRecord, ...]:
        """Return the ranks' measurements in the newest `num_steps` steps that are not pruned.

        They are ordered by step, then rank.
        """
        ...

    def newest_step(
        self,
        job_id: str,
        *,
        version: int | None = None,
        after_step: int = -1,
        before_step: int | None = None,
    ) -> int | None:
        """Return the newest step in this range that a rank has measured; None: no step.

        With `version` only steps on that plan version count; newer steps on other versions are
        scanned one by one.
        """
        ...

    def list_steps(self, job_id: str, first_step: int, end_step: int) -> tuple[StepRecord, ...]:
        """Return what all ranks measured in steps `first_step` to before `end_step`, by step."""
        ...

    def list_step_totals(
        self, job_id: str, *, after_step: int, limit: int
    ) -> tuple[StepTotals, ...]:
        """Return the first `limit` steps after `after_step` (-1: from the beginning), rising."""
        ...

    def list_stage_totals(
        self, job_id: str, *, after_step: int, num_steps: int, before_step: int | None = None
    ) -> tuple[StageTotals, ...]:
        """Return the newest `num_steps` steps in this range, by step, stage, then version.

        Of pruned steps only the newest have stages, as many as `prune_steps` was called with.
        """
        ...

    def list_newest_pruned(self, job_id: str, num_steps: int) -> tuple[JobStep, ...]:
        """Return the newest `num_steps` pruned steps, rising."""
        ...

    def find_pruned(self, job_id: str, steps: Collection[int]) -> dict[int, int]:
        """Return the pruned ones of the steps, each with the newest version run; 0: none."""
        ...

    def list_oldest_steps(self, job_id: str, limit: int) -> tuple[tuple[int, int, int], ...]:
        """Return the first `limit` steps that are not pruned, rising.

        Each with its number, the number of ranks that have posted it, and the Unix time of the
        last post, s.
        """
        ...

    def find_step_versions(
        self, job_id: str, ranks: Collection[int], first_step: int, end_step: int
    ) -> dict[tuple[int, int], int | None]:
        """Return the plan version of each step of these ranks in the range, by rank and step."""
        ...

    def list_step_moments(
        self, job_id: str, first_step: int, end_step: int | None = None
    ) -> tuple[StepMoments, ...]:
        """Return the moments of steps in the range that are not pruned, by step, then stage."""
        ...

    def list_moments(self, job_id: str) -> tuple[StageMoments, ...]:
        """Return the merged moments, by version (none first), then stage."""
        ...

    def list_step_details(
        self, job_id: str, first_step: int, *, limit: int | None = None
    ) -> tuple[StepDetail, ...]:
        """Return the first `limit` details kept from `first_step` on, by step, then rank."""
        ...

    def find_loop_state(self, job_id: str) -> JobLoopState:
        """Return the job's loop state; the default if none was ever saved."""
        ...

    def find_token(self, token_id: str) -> TokenRecord | None:
        """Return the token by its public part, or None."""
        ...

    def list_tokens(self) -> tuple[TokenRecord, ...]:
        """Return all tokens in the order of their creation, then of their public parts."""
        ...


class JobWriter(JobReader, Protocol):
    """Writer inside one transaction, which reads its own changes."""

    def save_job(self, job: JobRecord) -> None:
        """Insert or replace the job."""
        ...

    def save_ranks(self, ranks: Iterable[RankRecord]) -> None:
        """Insert or replace ranks; the last of several entries for a rank counts."""
        ...

    def save_profile(self, job_id: str, profile: StageProfile) -> None:
        """Store this profile, replacing any older one."""
        ...

    def delete_profile(self, job_id: str) -> None:
        """Delete the job's profile; nothing if it has none."""
        ...

    def add_plan(self, plan: PlanRecord) -> None:
        """Insert a version: the newest plus one, or 1; any other raises ValueError."""
        ...

    def name_first_step(self, job_id: str, version: int, first_step: int) -> None:
        """Set the first step of a version; ValueError if it is unknown or already has one."""
        ...

    def save_steps(
        self, steps: tuple[StepRecord, ...], *, stored_at: datetime | None = None
    ) -> None:
        """Insert measured steps, replacing those of the same job, rank and step.

        Args:
            steps: none of them pruned.
            stored_at: time of the post; None: now.
        """
        ...

    def prune_steps(self, job_id: str, end_step: int, *, num_stage_steps: int) -> None:
        """Replace the ranks' measurements of steps before `end_step` by totals.

        `list_step_totals` stays the same, and `list_stage_totals` for the newest
        `num_stage_steps` pruned steps. Details of the pruned steps are deleted.
        """
        ...

    def forget_pruned(self, job_id: str, steps: Collection[int]) -> None:
        """Delete the totals of pruned steps."""
        ...

    def merge_moments(self, job_id: str, moments: Iterable[StageMoments]) -> None:
        """Add these moments to the job's stored ones."""
        ...

    def save_step_details(self, details: tuple[StepDetail, ...]) -> None:
        """Insert details of steps, replacing those of the same job, rank and step."""
        ...

    def drop_step_details(self, job_id: str, before_step: int) -> None:
        """Delete the details of the job's steps before this one."""
        ...

    def save_loop_state(self, loop_state: JobLoopState) -> None:
        """Store the loop state, replacing that of its job."""
        ...

    def touch_ranks(self, job_id: str, ranks: Collection[int], seen_at: datetime) -> None:
        """Store the time of the last call of these ranks of a job; unknown ranks are ignored."""
        ...

    def rename_job(self, job_id: str, new_job_id: str) -> None:
        """Rename a job and everything that belongs to it; ValueError if the name is taken."""
        ...

    def delete_job(self, job_id: str) -> None:
        """Delete a job and everything that belongs to it; nothing if it does not exist."""
        ...

    def save_token(self, token: TokenRecord) -> None:
        """Insert or replace the token."""
        ...

    def delete_token(self, token_id: str) -> None:
        """Delete a token; nothing if it does not exist."""
        ...


class JobStore(Protocol):
    """Store of jobs.

    Contract, tested over every implementation by `tests/contract/test_job_store*.py`, and, as far
    as the REST API exposes it, over a live server:

    - Any thread may use the store at any time, but one transaction belongs to one thread.
    - Writing transactions of one subject run one after another, across processes too if they
      share the store; data read of that subject stays valid until the end. Those of different
      subjects may run at once. A reading transaction sees a snapshot and waits for no writer.
    - A `with` block that ends normally has stored all its changes when it returns; one that
      raises has stored none of them.
    - Records are passed by value: a read record equals the stored one, floats to the last bit, and
      no later change affects it.
    - Data of a job can only be saved while the job exists (and measured steps only while their
      rank does): otherwise ValueError, which is a mistake of the caller.
    - Plans are never changed, and removed only with their job.
    - A lock has one holder at a time, across processes too if they share the store, and ends with
      the process that holds it.
    - A signal reaches the listeners of all processes that share the store, the caller's too, and
      may reach them more than once; if one was perhaps missed, they are called with None.
    - `open` creates or migrates the database, and may be called again; `close` too.
    - `StoreClosedError`: not open. `StoreUnavailableError`: cannot be opened, read or written.
      `StoreFullError`, of these: a write found no room. `StoreBusyError`: another process holds
      it; trying again may help. `StoreDamagedError`, `StoreForeignError`, `StoreTooNewError`:
      `open` found something it must not touch.
    """

    def open(self) -> None:
        """Make the store ready for use."""
        ...

    def close(self) -> None:
        """Free the store's resources; stored data is kept."""
        ...

    def reading(self) -> AbstractContextManager[JobReader]:
        """Open a reading transaction."""
        ...

    def writing(self, subject: str) -> AbstractContextManager[JobWriter]:
        """Open a transaction that may change data of a job, by its ID, or TOKENS."""
        ...

    def check_writing(self) -> None:
        """Store a small change that changes no data.

        Raises:
            StoreError: it, or a larger one, could not be stored.
        """
        ...

    def lock(self, name: str, *, waits: bool = True) -> AbstractContextManager[bool]:
        """Hold the lock of this name until the block ends; yield true if it is held.

        With `waits` it waits for the lock; otherwise it yields False if another process holds it.
        """
        ...

    def signal(self, job_id: str) -> None:
        """Notify all listeners that data of this job has been stored."""
        ...

    def listen(self, heard: Callable[[str | None], None]) -> None:
        """Register the callback, called from any thread with each signalled job; must not block.

        None: any job may have been. There is one listener in each process.
        """
        ...

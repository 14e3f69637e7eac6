"""Jobs that are reconciled because of the steps that their ranks post."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.planner.one_rank import register_rank, store_measurements
from tests.planner.samples import CountingPlanner, Services, job_spec, rank_record, step_record
from tests.planner.use_cases import register_job

from flyball_server.jobs.loop_state import Comparison
from flyball_server.jobs.reconcile import all_reconcilers
from flyball_server.jobs.reconcile.loop import ReconcileLoop
from flyball_server.jobs.services import JobServices
from flyball_wire.messages import JobState

AWAITING, PROFILING = JobState.AWAITING_PROFILE, JobState.PROFILING
PLANNED, FAILED = JobState.PLANNED, JobState.PLANNING_FAILED
ENDED, EXPIRED = JobState.ENDED, JobState.EXPIRED


class Noticed:
    """Services that tell which jobs were noticed for steps, with a planned job of one rank."""

    def __init__(
        self,
        state: JobState,
        comparison: Comparison | None,
        *,
        is_planned: bool = True,
        problem: str | None = None,
        **spec: Any,  # noqa: ANN401 - as JobSpec has them
    ) -> None:
        made = Services(CountingPlanner()).jobs
        register_job(made, "job", job_spec(**spec))
        register_rank(made, rank_record(0))
        with made.store.writing("job") as writer:
            job = writer.find_job("job")
            assert job is not None
            job = job.evolve(inputs_revision=2, planned_revision=2 if is_planned else 1)
            writer.save_job(job.evolve(state=state, problem=problem))
            loop_state = writer.find_loop_state("job")
            writer.save_loop_state(loop_state.evolve(comparison=comparison))
        self.jobs: list[str] = []
        self.services: JobServices = replace(
            made,
            enqueue_reconcile=self.jobs.append,
            is_reconciled_after_posts=ReconcileLoop(all_reconcilers()).runs_after_posts,
        )

    def after_a_post(self) -> bool:
        store_measurements(self.services, "job", 0, [step_record(0, 0)])
        assert self.jobs in ([], ["job"])
        return bool(self.jobs)


@pytest.mark.parametrize(
    ("state", "spec"),
    [
        (PLANNED, {"adaptation": "frontier"}),
        (PLANNED, {"adaptation": "reconfigure", "policy": "envelope"}),
        (AWAITING, {"profiling": "online"}),
        (PROFILING, {"profiling": "online"}),
        (ENDED, {}),
        (EXPIRED, {}),
        # What a planner that was killed has left.
        (PLANNED, {"is_planned": False}),
        (AWAITING, {"is_planned": False}),
        # Ranks may be left probing.
        (FAILED, {"is_planned": False, "problem": "no", "profiling": "online"}),
        (FAILED, {"is_planned": False, "problem": "no"}),
    ],
)
def test_posts_trigger_reconciliation(state: JobState, spec: dict[str, Any]) -> None:
    assert Noticed(state, None, **spec).after_a_post()


@pytest.mark.parametrize(
    ("state", "spec"),
    [
        (PLANNED, {}),
        (PLANNED, {"adaptation": "announced"}),
        (PLANNED, {"profiling": "online"}),
        (AWAITING, {}),
    ],
)
def test_a_job_with_nothing_to_do_is_left_alone(state: JobState, spec: dict[str, Any]) -> None:
    assert not Noticed(state, None, **spec).after_a_post()


@pytest.mark.parametrize("version", [None, 2])
def test_a_comparison_counts_them_until_it_is_over(version: int | None) -> None:
    comparison = Comparison(num_pairs=8, version=version)
    assert Noticed(PLANNED, comparison).after_a_post()
    assert not Noticed(PLANNED, replace(comparison, is_done=True)).after_a_post()

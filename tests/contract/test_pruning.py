"""Pruning changes nothing of what is read of a job, on every store."""

from __future__ import annotations

import dataclasses
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from statistics import fmean, variance

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planner.one_rank import acknowledge, register_rank, store_measurements
from tests.planner.samples import (
    MOMENT,
    CountingPlanner,
    job_spec,
    plan_record,
    profile,
    rank_record,
    step_record,
)
from tests.planner.use_cases import put_profile, register_job

from flyball_server.jobs.lifecycle.job_life import LifeTimes
from flyball_server.jobs.measurements import pruning
from flyball_server.jobs.measurements.measurements import RankPost, list_steps, store_together
from flyball_server.jobs.measurements.pruning import PERIOD_S, PruningReconciler, prune_some
from flyball_server.jobs.measurements.step_reading import GIVE_UP_S, read_fold
from flyball_server.jobs.savings.comparisons import num_measured_pairs
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.step_records import Moments, StageMoments, StepDetail
from flyball_server.jobs.store.contract import JobStore
from flyball_server.views.job_figures import SharedReading
from flyball_server.views.job_reading import JobReading
from flyball_server.views.report import get_report
from flyball_server.views.stage_steps import list_stage_steps
from flyball_wire.messages import JobState

NUM_RANKS = 4
RETENTION_S = 3600.0
COMPARISON = (False, True, True, False)


def exact(number: float) -> float:
    """Round to 1/1024, so that sums are exact: a database adds in an order of its own."""
    return round(1024 * number) / 1024


class Planner:
    """Use cases of one planner on a store, with a clock moved by hand."""

    def __init__(self, store: JobStore, *, retention_s: float = RETENTION_S) -> None:
        self.passed_s = 0.0
        self.services = JobServices(
            store=store,
            notify_pollers=lambda _: None,
            planner=CountingPlanner(),
            now=lambda: MOMENT + timedelta(seconds=self.passed_s),
            life=LifeTimes(step_retention_s=retention_s),
        )

    def begin(self, job_id: str) -> None:
        """A job of two stages and four ranks, a plan and a comparison with it."""
        register_job(self.services, job_id, job_spec(num_ranks=NUM_RANKS))
        put_profile(self.services, job_id, profile())
        for rank in range(NUM_RANKS):
            register_rank(
                self.services, rank_record(rank, job_id=job_id, stage=rank // 2, dp_rank=rank % 2)
            )
        with self.services.store.writing(job_id) as writer:
            writer.name_first_step(job_id, 1, 20)
            compared = plan_record(2, job_id=job_id, baseline_cycle=COMPARISON)
            writer.add_plan(compared)
            writer.name_first_step(job_id, 2, 40)

    def post(self, job_id: str, steps: range) -> None:
        """Steps of all kinds, the same for every job."""
        for rank in range(NUM_RANKS):
            self.post_rank(job_id, rank, steps)

    def post_rank(self, job_id: str, rank: int, steps: range) -> None:
        records = []
        for step in steps:
            chance = random.Random(1000 * rank + step)
            record = step_record(
                step,
                rank,
                job_id=job_id,
                plan_version=2 if step >= 40 else 1 if step >= 20 else None,
                time_s=exact(1.9 + chance.gauss(0, 0.02)),
                energy_j=exact(100.0 + chance.gauss(0, 3.0)),
                sm_clock_mhz=1400.0 + rank,
                num_overruns=step % 3,
            )
            if step == 25:
                record = record.evolve(num_unplanned=rank, energy_j=None if rank else 1.0)
            if step == 30 and rank == 1:
                record = record.evolve(plan_version=None)
            if step == 31:
                record = record.evolve(num_clock_misses=3, num_power_capped=2)
            if (step, rank) != (33, 2):  # which never comes
                records.append(record)
        plan_ids = {35: "of-another-database"} if rank == 3 else {}
        post = RankPost(rank=rank, steps=tuple(records), plan_ids=plan_ids)
        store_together(self.services, job_id, [post])

    def prune(self, job_id: str) -> int:
        """The number of transactions."""
        num_transactions = 0
        while prune_some(self.services, job_id):
            num_transactions += 1
        return num_transactions

    def num_rows(self, job_id: str) -> int:
        with self.services.store.reading() as reader:
            return len(reader.list_steps(job_id, 0, 10**9))

    def moments(self, job_id: str) -> tuple[StageMoments, ...]:
        with self.services.store.reading() as reader:
            return reader.list_moments(job_id)

    def everything(self, job_id: str) -> tuple[object, ...]:
        """All that is read of a job's steps."""
        services = self.services
        reading = SharedReading(JobReading(services, max_labelled=5))
        with services.store.reading() as reader:
            num_paired = num_measured_pairs(read_fold(reader, reader.require_job(job_id)), 2)
            newest = [reader.newest_step(job_id, version=version) for version in (None, 1, 2)]
            totals = reader.list_step_totals(job_id, after_step=10, limit=25)
        # Time goes on: its ranks are gone by then.
        overview = dataclasses.replace(
            reading.overview_of(job_id), job_id="", num_present=0, condition=None
        )
        with reading.jobs() as jobs:
            facts = next(each for each in jobs.labelled if each.job.job_id == job_id)
            sums = (facts.measured_stages, facts.fold.sums, facts.fold.num_incomplete)
        return (
            dataclasses.replace(get_report(services, job_id), job_id=""),
            list_steps(services, job_id, limit=10_000),
            list_steps(services, job_id, limit=7),
            list_stage_steps(services, job_id, limit=10_000),
            list_stage_steps(services, job_id, limit=9, after_step=12),
            (num_paired, newest, totals, overview, sums),
        )


@pytest.fixture
def planner(store: JobStore) -> Planner:
    made = Planner(store)
    made.begin("job")
    return made


def test_a_job_pruned_piece_by_piece_reads_as_one_never_pruned(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "_ROWS_AT_ONCE", 3 * NUM_RANKS)
    other = Planner(planner.services.store, retention_s=0)
    other.begin("twin")
    for begin in range(0, 80, 16):
        for each, job_id in ((planner, "job"), (other, "twin")):
            each.post(job_id, range(begin, begin + 16))
        planner.passed_s += 0.7 * RETENTION_S
        other.passed_s = planner.passed_s
        # Each transaction takes at most three steps.
        num_rows = planner.num_rows("job")
        num_transactions = planner.prune("job")
        assert num_rows - planner.num_rows("job") <= num_transactions * 3 * NUM_RANKS
        assert planner.everything("job") == other.everything("twin")
    assert other.prune("twin") == 0
    assert 0 < planner.num_rows("job") < other.num_rows("twin") / 2


def test_what_planners_prune_at_once_reads_as_before_also_when_it_is_posted_again(
    planner: Planner,
) -> None:
    planner.post("job", range(78))
    planner.passed_s = GIVE_UP_S  # of the step that a rank never posts
    planner.post("job", range(78, 80))
    before = planner.everything("job")
    assert planner.prune("job") == 0
    other = Planner(planner.services.store)
    planner.passed_s = other.passed_s = GIVE_UP_S + RETENTION_S + 1
    with ThreadPoolExecutor(2) as threads:
        taken = list(threads.map(lambda each: each.prune("job"), (planner, other)))
    assert sum(taken) >= 1
    for _ in range(2):
        assert planner.num_rows("job") == 0
        assert planner.everything("job") == before
        planner.passed_s *= 2
        planner.prune("job")
        planner.post("job", range(76, 80))
        planner.post_rank("job", 2, range(30, 31))


def test_a_step_of_which_no_stages_are_kept_is_listed(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "most_steps", lambda spec: 5)
    planner.post("job", range(20))
    planner.passed_s = RETENTION_S + 1
    planner.prune("job")
    shown = list_stage_steps(planner.services, "job", limit=100)
    assert [each.step for each in shown] == [15, 16, 17, 18, 19]
    assert len(list_steps(planner.services, "job", limit=100)) == 20


def test_steps_that_a_rank_has_posted_lately_and_those_of_a_job_being_profiled_are_kept(
    planner: Planner,
) -> None:
    planner.post("job", range(3))
    planner.passed_s = 0.9 * RETENTION_S
    planner.post_rank("job", 1, range(1, 2))
    planner.passed_s = 1.1 * RETENTION_S
    with planner.services.store.writing("job") as writer:
        job = writer.require_job("job")
        writer.save_job(job.evolve(state=JobState.PROFILING))
    assert planner.prune("job") == 0
    with planner.services.store.writing("job") as writer:
        writer.save_job(job)
    assert planner.prune("job") == 1
    assert planner.num_rows("job") == 2 * NUM_RANKS


def test_a_run_that_has_started_over_measures_pruned_steps_anew(planner: Planner) -> None:
    planner.post("job", range(80))
    planner.passed_s = RETENTION_S + 1
    planner.prune("job")
    with planner.services.store.writing("job") as writer:
        writer.add_plan(plan_record(3))
    for rank in range(NUM_RANKS):
        acknowledge(planner.services, "job", rank, version=3, current_step=50)
        anew = step_record(60, rank, plan_version=3, time_s=7.0)
        store_measurements(planner.services, "job", rank, [anew])
    for _ in range(2):
        steps = {each.step: each for each in list_steps(planner.services, "job", limit=100)}
        assert len(steps) == 80
        assert (steps[60].time_s, steps[60].plan_versions) == (7.0, (3,))
        stages = {each.step: each for each in list_stage_steps(planner.services, "job", limit=99)}
        assert (stages[60].time_s, stages[60].num_ranks) == (7.0, NUM_RANKS)
        planner.passed_s += RETENTION_S + 1
        planner.prune("job")
    assert planner.num_rows("job") == 0


def test_the_reconciler_prunes_and_asks_for_its_next_pass(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is, one pass is enough.
    monkeypatch.setattr("flyball_server.jobs.measurements.pruning.BUDGET_S", 60.0)
    planner.post("job", range(80))
    planner.passed_s = RETENTION_S + 1
    reconciler = PruningReconciler()
    assert reconciler(planner.services, "job") == PERIOD_S
    assert planner.num_rows("job") == 0
    planner.post("job", range(80, 90))
    planner.passed_s *= 2
    # Called again after another change of the job, it waits for its time.
    assert 0 < (reconciler(planner.services, "job") or 0) <= PERIOD_S
    assert planner.num_rows("job") == 10 * NUM_RANKS
    assert PruningReconciler()(planner.services, "job") == PERIOD_S
    assert planner.num_rows("job") == 0
    assert reconciler(Planner(planner.services.store, retention_s=0).services, "job") is None


def test_instructions_count_once_however_often_they_are_posted(planner: Planner) -> None:
    by_clock = (("forward", 0, 1410, 3, 0.1, 0.25), ("backward", 1, None, 1, 0.2, 0.0))
    record = step_record(50, 0, plan_version=2)
    for step in (record, record, record.evolve(step=51), record.evolve(step=52, num_unplanned=1)):
        detail = StepDetail(job_id="job", rank=0, step=step.step, by_clock=by_clock)
        store_measurements(planner.services, "job", 0, [step], [detail])
    planner.passed_s = RETENTION_S + 1
    for _ in range(2):
        (found,) = planner.moments("job")
        assert (found.plan_version, found.stage) == (2, 0)
        times = found.instructions_s
        forward, backward = times["forward", 0, 1410], times["backward", 1, None]
        assert forward.count == 6
        assert forward.mean == pytest.approx(0.1)
        assert forward.m2 == pytest.approx(2 * 2 * 0.25)
        assert (backward.count, backward.variance) == (2, 0.0)
        planner.prune("job")
    with planner.services.store.reading() as reader:
        assert reader.list_step_details("job", 0) == ()


VALUES = st.lists(st.floats(-1e6, 1e6), max_size=8)


@given(VALUES, VALUES)
def test_moments_of_both_are_those_of_all_values(some: list[float], others: list[float]) -> None:
    def of(values: list[float]) -> Moments:
        merged = Moments(count=0, mean=0.0, m2=0.0)
        for value in values:
            merged = merged.merged(Moments(count=1, mean=value, m2=0.0))
        return merged

    merged, together = of(some).merged(of(others)), some + others
    assert merged.count == len(together)
    if together:
        assert merged.mean == pytest.approx(fmean(together), rel=1e-9, abs=1e-6)
    if len(together) > 1:
        assert merged.variance == pytest.approx(variance(together), rel=1e-9, abs=1e-3)

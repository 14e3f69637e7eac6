"""Figures of jobs: labels, sums of others, bounded reading, one reading for all callers."""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from tests.planner.sample_plans import frequency_plan
from tests.planner.samples import (
    MOMENT,
    CountingPlanner,
    Services,
    job_record,
    job_spec,
    plan_record,
    rank_record,
    step_record,
)

from flyball_server.http.events.live_events import JobEventsReader
from flyball_server.jobs.errors import StoreClosedError, UnknownJobError
from flyball_server.jobs.loop_state import AnnouncedSlowdown, JobLoopState, RefusedRegistration
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.prometheus.job_families import MOST_STAGES, JobsCollector, job_families
from flyball_server.views.job_figures import NUM_FRESH, REMEMBERED_S, SharedReading
from flyball_server.views.job_reading import KEPT_LABEL_S, OTHERS_PERIOD_S, JobReading
from flyball_wire.closed_loop import MissedTarget
from flyball_wire.plans.plan import PipelinePlan

Samples = dict[tuple[str, ...], float]


class Clock:
    """Monotonic seconds and the time of day, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def time_of_day(self) -> datetime:
        return MOMENT + timedelta(seconds=self.now_s)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def services(clock: Clock) -> JobServices:
    return replace(Services(CountingPlanner()).jobs, now=clock.time_of_day)


def put_job(
    services: JobServices,
    job_id: str,
    *,
    num_steps: int = 0,
    emulated: bool = True,
    created_s: float = 0.0,
    first_step: int = 0,
    energy_j: float | None = 100.0,
) -> None:
    """A job of two ranks with plan version 1, and steps that ran on it."""
    spec = job_spec(emulated=emulated)
    job = job_record(job_id, seconds_later=created_s, registered=spec, spec=spec)
    with services.store.writing(job_id) as writer:
        writer.save_job(job)
        for rank in (0, 1):
            writer.save_ranks([rank_record(rank, job_id=job_id, emulated=emulated)])
        writer.add_plan(plan_record(job_id=job_id, plan=frequency_plan()))
        writer.name_first_step(job_id, 1, first_step)
    post(services, job_id, range(num_steps), energy_j=energy_j)


def post(
    services: JobServices,
    job_id: str,
    steps: Collection[int],
    *,
    plan_version: int | None = 1,
    energy_j: float | None = 100.0,
) -> None:
    """Both ranks have measured these steps."""
    with services.store.writing(job_id) as writer:
        writer.save_steps(
            tuple(
                step_record(step, rank, job_id=job_id, plan_version=plan_version, energy_j=energy_j)
                for step in steps
                for rank in (0, 1)
            )
        )


def reading(
    services: JobServices, clock: Clock, *, max_labelled: int = 20, budget_s: float = 1.0
) -> JobReading:
    return JobReading(services, max_labelled=max_labelled, budget_s=budget_s, clock=clock.monotonic)


def metrics(jobs: JobReading) -> dict[str, Metric]:
    return {metric.name: metric for metric in job_families(jobs.read())}


def samples(metric: Metric, *labels: str) -> Samples:
    """Values by the values of these labels."""
    return {
        tuple(sample.labels[label] for label in labels): sample.value for sample in metric.samples
    }


def steps_on_plan(jobs: JobReading) -> dict[str, float]:
    """By job, how many steps were run on a plan."""
    found = samples(metrics(jobs)["flyball_steps"], "training_job", "clocks")
    return {job: value for (job, clocks), value in found.items() if clocks == "plan"}


def test_a_few_jobs_have_labels_and_others_add_up(services: JobServices, clock: Clock) -> None:
    for number in range(20):
        put_job(services, f"job-{number}", num_steps=2, created_s=number)
    jobs = reading(services, clock, max_labelled=5)
    told = metrics(jobs)
    named = {f"job-{number}" for number in range(15, 20)}
    for metric in told.values():
        found = {sample.labels.get("training_job") for sample in metric.samples}
        assert found <= named | {"other", None}, metric.name
    steps = samples(told["flyball_steps"], "training_job", "clocks")
    assert steps["other", "plan"] == 30
    assert steps["job-19", "plan"] == 2
    assert samples(told["flyball_ranks_registered"], "training_job")[("other",)] == 30
    # What cannot be added up is not told of others.
    assert ("other",) not in samples(told["flyball_plan_newest_version"], "training_job")
    # Others are read now and then.
    post(services, "job-19", [2])
    post(services, "job-0", [2])
    later = steps_on_plan(jobs)
    assert (later["job-19"], later["other"]) == (3, 30)
    clock.now_s = OTHERS_PERIOD_S
    assert steps_on_plan(jobs)["other"] == 31


def test_emulated_and_real_jobs_do_not_add_up(services: JobServices, clock: Clock) -> None:
    put_job(services, "emulated", num_steps=3)
    put_job(services, "real", num_steps=4, emulated=False)
    told = metrics(reading(services, clock, max_labelled=0))
    steps = samples(told["flyball_steps"], "training_job", "emulated", "clocks")
    assert steps["other", "true", "plan"] == 3
    assert steps["other", "false", "plan"] == 4
    states = samples(told["flyball_jobs"], "emulated", "state")
    assert (states["true", "awaiting-profile"], states["false", "awaiting-profile"]) == (1, 1)


def test_slow_refused_and_clockless_ranks_are_counted_while_they_are(
    services: JobServices, clock: Clock
) -> None:
    def counts() -> dict[str, float]:
        told = metrics(jobs)
        names = ("stragglers", "registrations_refused", "ranks_without_clocks")
        return {name: samples(told[f"flyball_{name}"], "training_job")[("job",)] for name in names}

    put_job(services, "job")
    jobs = reading(services, clock)
    none = dict.fromkeys(("stragglers", "registrations_refused", "ranks_without_clocks"), 0.0)
    assert counts() == none
    now_s = MOMENT.timestamp()
    slowed = AnnouncedSlowdown(rank=1, slowdown=1.2, from_unix_s=now_s, until_unix_s=now_s + 100)
    refused = RefusedRegistration(rank=1, host="b", problem="another start", at_unix_s=now_s)
    with services.store.writing("job") as writer:
        state = writer.find_loop_state("job")
        writer.save_loop_state(state.evolve(stragglers=(slowed,), refused=refused))
        writer.save_ranks(
            [
                rank_record(rank, last_seen_at=MOMENT, no_clocks=reason)
                for rank, reason in ((0, None), (1, "not permitted"))
            ]
        )
    assert counts() == {
        "stragglers": 1,
        "registrations_refused": 1,
        "ranks_without_clocks": 1,
    }
    # The announcement ends, the refusal is long ago, the rank is silent.
    clock.now_s = 3700.0
    assert counts() == none


def test_a_job_keeps_its_label_and_its_ranks_are_present_while_they_are_heard_of(
    services: JobServices, clock: Clock
) -> None:
    def num_present() -> Samples:
        return samples(metrics(jobs)["flyball_ranks_present"], "training_job")

    put_job(services, "first", num_steps=1)
    with services.store.writing("first") as writer:
        writer.touch_ranks("first", {0}, MOMENT)
    jobs = reading(services, clock, max_labelled=1)
    assert set(steps_on_plan(jobs)) == {"first"}
    clock.now_s = services.life.rank_silence_s - 1
    assert num_present() == {("first",): 1}
    clock.now_s = services.life.rank_silence_s + 1
    assert num_present() == {("first",): 0}
    clock.now_s = KEPT_LABEL_S / 2
    put_job(services, "second", num_steps=1, created_s=clock.now_s)
    assert set(steps_on_plan(jobs)) == {"first", "other"}
    clock.now_s = KEPT_LABEL_S + 1
    assert set(steps_on_plan(jobs)) == {"second", "other"}


def test_a_sum_over_jobs_of_which_some_are_not_read_yet_is_not_told(
    services: JobServices, clock: Clock
) -> None:
    for job_id in ("first", "second"):
        put_job(services, job_id, num_steps=3)
    jobs = reading(services, clock, max_labelled=0, budget_s=0.0)
    assert steps_on_plan(jobs) == {}
    assert steps_on_plan(jobs) == {"other": 6}


def test_a_new_run_counts_from_nothing_and_a_restarted_planner_the_same(
    services: JobServices, clock: Clock
) -> None:
    put_job(services, "job", num_steps=5)
    jobs = reading(services, clock)
    assert steps_on_plan(jobs) == {"job": 5}
    post(services, "job", range(5, 9))
    with services.store.writing("job") as writer:
        writer.rename_job("job", "job.1")
    put_job(services, "job", num_steps=1, created_s=60)
    for each in (jobs, reading(services, clock)):
        assert steps_on_plan(each) == {"job": 1, "job.1": 9}


def test_stages_beyond_the_most_are_told_together(services: JobServices, clock: Clock) -> None:
    num_stages = MOST_STAGES + 3
    spec = job_spec(num_stages=num_stages, num_ranks=num_stages)
    with services.store.writing("job") as writer:
        writer.save_job(job_record(registered=spec, spec=spec))
        for stage in range(num_stages):
            writer.save_ranks([rank_record(stage)])
        writer.save_steps(
            tuple(
                step_record(0, rank, time_s=1.0 + rank, sm_clock_mhz=900.0 + rank)
                for rank in range(num_stages)
            )
        )
    told = metrics(reading(services, clock))
    energies = samples(told["flyball_measured_stage_energy_joules"], "stage")
    assert len(energies) == MOST_STAGES + 1
    assert energies[("other",)] == 300.0
    times = samples(told["flyball_measured_stage_time_seconds"], "stage")
    assert times[("other",)] == 1.0 + (num_stages - 1)
    clocks = samples(told["flyball_measured_stage_sm_clock_hertz"], "stage")
    assert (clocks[("0",)], clocks[("63",)], clocks[("other",)]) == (900e6, 963e6, 965e6)


def test_clocks_of_stages_are_planned_and_measured_and_unknown_energies_left_out(
    services: JobServices, clock: Clock
) -> None:
    put_job(services, "job", num_steps=2, energy_j=None)
    plan = frequency_plan()
    forward, backward = plan.stages[0]
    slower = (forward, backward._replace(frequency_mhz=1200))
    with services.store.writing("job") as writer:
        stages = (slower, plan.stages[1])
        slowed = replace(plan, pipelines=(PipelinePlan(stages=stages),))
        writer.add_plan(plan_record(2, plan=slowed))
        writer.name_first_step("job", 2, 10)
    told = metrics(reading(services, clock))
    # There is no profile that tells how long the two take: each counts the same.
    planned = samples(told["flyball_planned_stage_sm_clock_hertz"], "stage")
    assert planned == {("0",): 1305e6, ("1",): 1410e6}
    times = told["flyball_measured_iteration_time_seconds"]
    assert samples(times, "training_job") == {("job",): 0.9}
    assert not told["flyball_measured_iteration_energy_joules"].samples
    assert not told["flyball_measured_stage_energy_joules"].samples
    with services.store.writing("job") as writer:
        clocks_mhz = {0: (1200.0, 1305.0), 1: (None, None)}
        writer.save_steps(
            tuple(
                step_record(step, rank, sm_clock_mhz=clock_mhz)
                for rank, of_rank in clocks_mhz.items()
                for step, clock_mhz in enumerate(of_rank)
            )
        )
    measured = metrics(reading(services, clock))["flyball_measured_stage_sm_clock_hertz"]
    assert samples(measured, "stage", "emulated") == {("0", "true"): 1252.5e6}


@pytest.fixture
def shared(services: JobServices, clock: Clock) -> SharedReading:
    """Of jobs of which none has a label."""
    return SharedReading(
        JobReading(services, max_labelled=0, clock=clock.monotonic), clock=clock.monotonic
    )


def test_fresh_jobs_come_first(services: JobServices, shared: SharedReading, clock: Clock) -> None:
    ids = [f"job-{number:02}" for number in range(NUM_FRESH + 2)]
    for number, job_id in enumerate(ids):
        put_job(services, job_id, created_s=number)
    assert [each.job_id for each in shared.overviews()] == ids[::-1]
    for job_id in ids:
        post(services, job_id, [0], plan_version=None)
    clock.now_s = 1.0
    read = {each.job_id for each in shared.overviews() if each.num_steps}
    assert read == set(ids[2:])


def test_the_target_is_that_of_the_plan_that_runs_and_a_missed_one_is_named(
    services: JobServices, shared: SharedReading
) -> None:
    put_job(services, "job", first_step=10)
    missed = MissedTarget(target="deadline:1.8", nearest="deadline:1.9")
    with services.store.writing("job") as writer:
        job = writer.find_job("job")
        assert job is not None
        spec = replace(job.spec, target=missed.target)
        writer.save_job(job.evolve(spec=spec, inputs_revision=1))
        writer.save_loop_state(JobLoopState(job_id="job", missed=missed))
        nearest = replace(frequency_plan(), target=missed.nearest)
        writer.add_plan(plan_record(job_id="job", version=2, plan=nearest))
    found = shared.overview_of("job")
    assert (found.target, found.missed) == ("fastest", missed)
    with services.store.writing("job") as writer:
        writer.name_first_step("job", 2, 20)
    assert shared.overview_of("job").target == missed.nearest
    with services.store.writing("job") as writer:
        writer.save_job(job.evolve(inputs_revision=2))
        writer.save_loop_state(JobLoopState(job_id="job"))
    assert shared.overview_of("job").missed is None


def test_a_closed_store_leaves_out_the_jobs_and_an_unknown_job_is_an_error(
    services: JobServices, shared: SharedReading, clock: Clock
) -> None:
    put_job(services, "job", first_step=10)
    registry = CollectorRegistry()
    registry.register(JobsCollector(shared))
    assert registry.get_sample_value("flyball_store_readable") == 1
    assert len(shared.overviews()) == 1
    clock.now_s = REMEMBERED_S
    services.store.close()
    for _ in range(2):
        with pytest.raises(StoreClosedError):
            shared.overviews()
        with pytest.raises(StoreClosedError):
            shared.overview_of("job")
    assert registry.get_sample_value("flyball_store_readable") == 0
    assert "flyball_ranks_expected" not in {metric.name for metric in registry.collect()}
    services.store.open()
    assert registry.get_sample_value("flyball_store_readable") == 1
    assert len(shared.overviews()) == 1
    with services.store.writing("job") as writer:
        writer.delete_job("job")
    for job_id in ("job", "other"):
        with pytest.raises(UnknownJobError):
            shared.overview_of(job_id)
    clock.now_s += REMEMBERED_S
    assert shared.overviews() == ()


# ------------------------------------------------------------------ live events


def test_all_events_of_a_job_are_read_in_one_transaction(
    services: JobServices, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_job(services, "job", num_steps=5)
    shared = SharedReading(reading(services, clock))
    events = JobEventsReader(services, shared, "job")
    open_reading, num_read = services.store.reading, 0

    @contextmanager
    def counted() -> Generator[JobReader]:
        nonlocal num_read
        num_read += 1
        with open_reading() as reader:
            reader.count_jobs()  # the snapshot's moment
            post(services, "job", [5, 6])
            yield reader

    monkeypatch.setattr(services.store, "reading", counted)
    first = events()
    assert num_read == 1
    assert first.events.keys() == {"overview", "notes", "timetable", "stragglers", "comparison"}
    assert (b'"num_steps":5' in first.events["overview"], len(first.steps)) == (True, 5)
    second = events()
    assert (b'"num_steps":7' in second.events["overview"], len(second.steps)) == (True, 7)

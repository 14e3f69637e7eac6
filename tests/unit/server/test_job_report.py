"""A job's report: which steps it takes for what, in pieces, and what profiling adds to it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.planner.one_rank import register_rank, store_measurements
from tests.planner.sample_plans import frequency_plan
from tests.planner.samples import (
    CountingPlanner,
    Services,
    job_spec,
    one_microbatch,
    plan_record,
    rank_record,
    step_record,
)
from tests.planner.use_cases import register_job

from flyball_server.jobs.measurements import step_reading
from flyball_server.jobs.measurements.step_reading import all_step_kinds, step_kinds
from flyball_server.jobs.records import PlanRecord
from flyball_server.jobs.services import JobServices
from flyball_server.views.report import get_report
from flyball_wire.online_profiling import ProfilingResult, ProfilingState
from flyball_wire.plans.plan import Plan, probe_of
from flyball_wire.savings import JobReport

# ------------------------------------------------------------------ which steps are baseline


def probe(*rows_mhz: tuple[int, int]) -> Plan:
    """Two stages, each at one clock in a step."""
    cycle_mhz = tuple(((first,) * 2, (second,) * 2) for first, second in rows_mhz)
    return probe_of(one_microbatch(2), cycle_mhz, 1.0)


def test_rows_of_a_probe_at_the_first_versions_clocks_are_baseline() -> None:
    records = [
        plan_record(1, plan=probe((1410, 1980))),
        plan_record(2, plan=probe((1410, 1980), (1410, 1200), (1200, 1980)), first_step=7),
        plan_record(3),
    ]
    kinds = all_step_kinds(records)
    assert kinds[1].baseline_cycle == (True,)
    assert kinds[2].baseline_cycle == (True, False, False)
    assert kinds[2].is_baseline(10)
    assert all(kinds[version].is_probe for version in (1, 2))
    assert not kinds[2].is_interleaved
    assert kinds[3].baseline_cycle == ()
    assert not kinds[3].is_all_baseline
    record = plan_record(plan=replace(frequency_plan(), policy="baseline"))
    assert step_kinds(record).is_all_baseline


# ------------------------------------------------------------------ the report


@pytest.fixture
def services() -> JobServices:
    made = Services(CountingPlanner()).jobs
    register_job(made, "job", job_spec(emulated=False))
    for rank in (0, 1):
        register_rank(made, rank_record(rank, emulated=False))
    return made


def run(services: JobServices, *versions: PlanRecord, num_steps: int = 20) -> None:
    """Steps at default clocks, then on each version, with 100 and 90 J for each rank."""
    chance = random.Random(4)
    with services.store.writing("job") as writer:
        for record in versions:
            writer.add_plan(record)
            writer.name_first_step("job", record.version, num_steps * record.version)
    for rank in (0, 1):
        steps = [
            step_record(
                step,
                rank,
                plan_version=step // num_steps or None,
                energy_j=(90 if step >= num_steps else 100) + chance.gauss(0, 0.5),
            )
            for step in range(num_steps * (1 + len(versions)))
        ]
        store_measurements(services, "job", rank, steps)


def mean_saved_j(report: JobReport) -> float:
    assert report.saved_j is not None
    return report.saved_j.mean


def test_a_report_has_each_version_measured_and_predicted(
    services: JobServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert get_report(services, "job").headline is None, "without a plan"
    run(services, plan_record(1), plan_record(2))
    report = get_report(services, "job")
    assert [each.version for each in report.versions] == [1, 2]
    assert {each.predicted_energy_j for each in report.versions} == {
        frequency_plan().predicted.energy_j
    }
    assert (report.emulated, report.num_ranks, report.num_steps) == (False, 2, 60)
    assert mean_saved_j(report) == pytest.approx(2 * 19 * 20, rel=0.02)
    for size in (8, 13, 40):
        monkeypatch.setattr(step_reading, "ROWS_A_PIECE", 2 * size)
        assert get_report(services, "job") == report
    register_rank(services, rank_record(1, emulated=True))
    assert get_report(services, "job").emulated, "because of any GPU of it"


def test_the_energy_of_profiling_is_reported_apart(services: JobServices) -> None:
    run(services, plan_record(1, plan=probe((1410, 1410))), plan_record(2))
    before = get_report(services, "job")
    assert [each.version for each in before.versions] == [2]
    for extra_energy_j in (150.0, None):
        result = ProfilingResult(state=ProfilingState.FINISHED, extra_energy_j=extra_energy_j)
        with services.store.writing("job") as writer:
            writer.save_loop_state(writer.find_loop_state("job").evolve(profiling=result))
        report = get_report(services, "job")
        assert report.profiling_energy_j == extra_energy_j
        assert mean_saved_j(report) == mean_saved_j(before)

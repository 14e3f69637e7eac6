"""The history of a job's plan: what a line says, and that each document is read once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import Mock, patch

import pytest
from tests.planner.sample_plans import frequency_plan
from tests.planner.samples import (
    MOMENT,
    CountingPlanner,
    Services,
    job_record,
    one_microbatch,
    plan_record,
)

from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.errors import UnknownJobError
from flyball_server.jobs.records import PlanRecord
from flyball_server.jobs.services import JobServices
from flyball_server.views import history
from flyball_server.views.history import HistoryMemory, known_summaries, plan_summaries, summary_of
from flyball_wire.plans.plan import PipelinePlan, Plan, probe_of
from flyball_wire.read_models import PlanSummary


@pytest.fixture
def services() -> JobServices:
    return Services(CountingPlanner()).jobs


@pytest.fixture
def read() -> Iterator[Mock]:
    """Mock that is called with the document of each version that is read."""
    with patch.object(history, "summary_of", wraps=history.summary_of) as calls:
        yield calls


def put_versions(services: JobServices, job_id: str, *records: PlanRecord, **job: object) -> None:
    with services.store.writing(job_id) as writer:
        writer.save_job(job_record(job_id, **job))  # type: ignore[arg-type]  # of a record
        for record in records:
            writer.add_plan(record.evolve(job_id=job_id))


def versions(number: int) -> list[PlanRecord]:
    return [plan_record(version) for version in range(1, number + 1)]


def probe() -> Plan:
    return probe_of(one_microbatch(1), (((1410, 1410),), ((1000, 1000),)), 1.0)


def separate() -> Plan:
    plan = frequency_plan()
    pipelines = tuple(
        PipelinePlan(dp_ranks=(rank,), iteration_time_s=0.9, energy_j=0.1, stages=plan.stages)
        for rank in range(2)
    )
    return replace(plan, pipelines=pipelines)


def test_a_line_has_the_kind_and_target_of_its_version(services: JobServices) -> None:
    records = [
        plan_record(1, plan=probe()),
        plan_record(2),
        plan_record(3, baseline_cycle=(True, False)),
        plan_record(4, plan=separate()),
    ]
    put_versions(services, "job", *records)
    found = plan_summaries(services, "job", HistoryMemory())
    assert [line.version for line in found] == [1, 2, 3, 4]
    assert [line.kind for line in found] == ["probe", "plan", "comparison", "separate"]
    assert [line.policy for line in found] == ["probe", "envelope", "envelope", "envelope"]
    assert [line.target for line in found] == ["", "fastest", "fastest", "fastest"]
    assert {line.created_at for line in found} == {MOMENT.isoformat()}
    assert found[0].predicted is None
    assert found[0].stage_clock_mhz == (1205.0,)
    assert [line.baseline_cycle for line in found] == [(), (), (True, False), ()]
    assert [line.highest_mhz for line in found] == [None] * 4  # the job has no profile
    for line in found[1:]:
        assert line.predicted is not None
        assert line.predicted.energy_j == 0.1 + 0.2
        assert line.stage_clock_mhz == (1410.0, 1410.0)


def test_each_document_is_read_once(services: JobServices, read: Mock) -> None:
    put_versions(services, "job", *versions(20))
    memory = HistoryMemory()
    assert known_summaries(services, "job", memory) is None
    first = plan_summaries(services, "job", memory)
    assert [line.version for line in first] == [*range(1, 21)]
    assert known_summaries(services, "job", memory) == first
    assert read.call_count == 20
    with pytest.raises(UnknownJobError):
        known_summaries(services, "other", memory)
    with services.store.writing("job") as writer:
        writer.name_first_step("job", 20, 7)
        writer.add_plan(plan_record(21))
    again = plan_summaries(services, "job", memory)
    assert [line.first_step for line in again] == [*[None] * 19, 7, None]
    assert again[:19] == first[:19]
    assert read.call_count == 21


def test_a_short_history_does_not_wait_for_a_long_one(services: JobServices) -> None:
    put_versions(services, "long", *versions(24))
    put_versions(services, "short", *versions(1))
    memory, is_reading, may_go_on = HistoryMemory(), threading.Event(), threading.Event()

    def slowly(record: PlanRecord, profile: StageProfile | None, num_ranks: int) -> PlanSummary:
        if record.job_id == "long":
            is_reading.set()
            assert may_go_on.wait(60)
        return summary_of(record, profile, num_ranks)

    with patch.object(history, "summary_of", slowly), ThreadPoolExecutor(2) as threads:
        long = threads.submit(plan_summaries, services, "long", memory)
        assert is_reading.wait(60)
        assert len(threads.submit(plan_summaries, services, "short", memory).result(60)) == 1
        may_go_on.set()
        assert len(long.result(60)) == 24


def test_another_run_under_the_name_has_versions_of_its_own(services: JobServices) -> None:
    put_versions(services, "job", plan_record(1))
    memory = HistoryMemory()
    plan_summaries(services, "job", memory)
    with services.store.writing("job") as writer:
        writer.rename_job("job", "job@1")
    put_versions(services, "job", plan_record(1, plan=probe()), seconds_later=5.0)
    assert [line.kind for line in plan_summaries(services, "job", memory)] == ["probe"]
    assert [line.kind for line in plan_summaries(services, "job@1", memory)] == ["plan"]


def test_the_least_recently_used_job_is_forgotten(services: JobServices, read: Mock) -> None:
    for job_id in ("a", "b", "c"):
        put_versions(services, job_id, *versions(2))
    memory = HistoryMemory(max_versions=4)
    for job_id in ("a", "b", "a", "c", "a", "b"):
        plan_summaries(services, job_id, memory)
    # c came in the place of b, which had to be read again.
    assert [call.args[0].job_id for call in read.call_args_list] == [*"aabbccbb"]


def test_a_history_longer_than_the_memory_is_read(services: JobServices, read: Mock) -> None:
    """And although what another call reads drives it out of memory meanwhile."""
    put_versions(services, "long", *versions(20))
    memory = HistoryMemory(max_versions=1)

    def read_beside_another(
        record: PlanRecord, profile: StageProfile | None, num_ranks: int
    ) -> PlanSummary:
        memory.keep(job_record("other"), {1: summary_of(plan_record(1), None, 1)})
        return summary_of(record, profile, num_ranks)

    read.side_effect = read_beside_another
    found = plan_summaries(services, "long", memory)
    assert [line.version for line in found] == [*range(1, 21)]
    assert read.call_count == 20

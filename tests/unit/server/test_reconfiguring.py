"""EnvPipe's loop over stored versions and steps: when it goes on, when it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import cast

import pytest
from tests.planner.pipeline_on_paper import PipelineOnPaper
from tests.planner.samples import job_spec, rank_record
from tests.planner.use_cases import change_target, put_profile, register_job

from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import parse_stage_profile
from flyball_server.jobs.errors import PlanningFailedError
from flyball_server.jobs.reconcile.reconfigurations import (
    PATIENCE_STEPS,
    STEPS_PER_WINDOW,
    ReconfigurationReconciler,
)
from flyball_server.jobs.records import PlanRecord
from flyball_server.jobs.registry.inspection import get_job, get_plan
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.contract import JobStore
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sql.job_writer import JobWriter
from flyball_server.jobs.versions.plan_versions import add_again, add_version
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.planning.policies.measured_reconfigure import FINISH_LIMIT
from flyball_wire.measurements import InstructionReport, MeasurementDetail
from flyball_wire.plan_options import PlanOptions, Policy, Reconfigure, TargetChange
from flyball_wire.plans.plan import Plan

NUM_STAGES, NUM_MICROBATCHES = 3, 4
CLOCKS_MHZ = (1400, 1300, 1200, 1100)
# Stage 1 is the heavy one, so that what is raised is not all on one stage.
WEIGHTS = (1.0, 1.3, 0.9)


def three_stages(weights: tuple[float, ...] = WEIGHTS) -> StageProfile:
    """Forward 0.1 s times a stage's weight and backward twice that at 1400 MHz; slow saves."""
    rows = [
        f"{stage},{kind},{mhz},{weight * time_s * 1400 / mhz:.6f},{weight * time_s * mhz**2 / 6e3}"
        for stage, weight in enumerate(weights)
        for kind, time_s in (("forward", 0.1), ("backward", 0.2))
        for mhz in CLOCKS_MHZ
    ]
    return parse_stage_profile("stage,instruction,frequency,time,energy\n" + "\n".join(rows) + "\n")


def offline_plan(profile: StageProfile, reconfigure: Reconfigure) -> Plan:
    """Return what a planner that knows the true times makes at once."""
    return make_plan(offline_request(profile, reconfigure)).plan


def offline_request(profile: StageProfile, reconfigure: Reconfigure) -> PlanRequest:
    return PlanRequest(
        profile=profile,
        num_microbatches=NUM_MICROBATCHES,
        options=PlanOptions(
            blocking_power_w=(70.0,), policy=Policy.ENVELOPE, reconfigure=reconfigure
        ),
    )


def reconfigured_job(
    services: JobServices,
    *,
    num_dp: int = 1,
    adaptation: str = "reconfigure",
    reconfigure: Reconfigure = Reconfigure.BALANCED,
) -> PipelineOnPaper:
    """A job of three stages with its ranks, and plan version 1 taken by all."""
    spec = job_spec(
        num_stages=NUM_STAGES,
        num_microbatches=NUM_MICROBATCHES,
        num_ranks=NUM_STAGES * num_dp,
        policy="envelope",
        reconfigure=reconfigure,
        adaptation=adaptation,
    )
    register_job(services, "job", spec)
    pipeline = PipelineOnPaper(
        services=services,
        ranks=tuple(
            rank_record(rank, stage=rank % NUM_STAGES, dp_rank=rank // NUM_STAGES)
            for rank in range(NUM_STAGES * num_dp)
        ),
        profile=three_stages(),
    )
    pipeline.register()
    put_profile(services, "job", three_stages())
    pipeline.take(1)
    return pipeline


@pytest.fixture
def pipeline(services: JobServices) -> PipelineOnPaper:
    return reconfigured_job(services)


def newest(services: JobServices) -> PlanRecord:
    version = get_job(services, "job").newest_version
    assert version is not None
    return get_plan(services, "job", version)


def stages_of(record: PlanRecord) -> object:
    assert not record.plan.is_separate
    return record.plan.stages


def go_on(services: JobServices, pipeline: PipelineOnPaper, version: int) -> int:
    """Train on a version until the planner makes the next one; its number."""
    for _ in range((FINISH_LIMIT + 1) * STEPS_PER_WINDOW):
        pipeline.run(1)
        ReconfigurationReconciler()(services, "job")
        if newest(services).version > version:
            assert newest(services).version == version + 1
            pipeline.take(version + 1)
            return version + 1
    raise AssertionError(f"version {version} had no successor")


def run_to_the_end(services: JobServices, pipeline: PipelineOnPaper) -> PlanRecord:
    """Train until a version asks for totals."""
    version = newest(services).version
    while newest(services).measurement_detail != MeasurementDetail.TOTALS:
        version = go_on(services, pipeline, version)
    return newest(services)


@pytest.mark.parametrize("manner", ["greedy", "balanced"])
def test_versions_converge_to_the_true_plan(services: JobServices, manner: Reconfigure) -> None:
    """The planner's profile is wrong about stage 2, which really is the heaviest."""
    pipeline = reconfigured_job(services, reconfigure=manner)
    pipeline.profile = three_stages((1.0, 1.3, 1.6))
    first = newest(services)
    assert first.measurement_detail == MeasurementDetail.INSTRUCTIONS
    assert stages_of(first) == offline_plan(three_stages(), Reconfigure.DEFAULT).stages
    last = run_to_the_end(services, pipeline)
    assert stages_of(last) == offline_plan(pipeline.profile, manner).stages
    assert stages_of(last) != offline_plan(three_stages(), manner).stages
    assert last.version > 2
    assert last.plan.reconfigure == manner
    before = get_plan(services, "job", last.version - 1)
    assert before.measurement_detail == MeasurementDetail.INSTRUCTIONS
    assert stages_of(before) == stages_of(last)


def test_steps_of_which_some_are_missing_or_of_another_version_do_not_count_nor_repeated_calls(
    services: JobServices, pipeline: PipelineOnPaper
) -> None:
    def reconcile() -> int:
        ReconfigurationReconciler()(services, "job")
        return newest(services).version

    pipeline.run(STEPS_PER_WINDOW)
    pipeline.run(3, only=range(2))
    assert reconcile() == 1
    pipeline.run(1)
    assert reconcile() == 2
    for _ in range(3):
        assert reconcile() == 2, "a version that nobody has taken cannot be looked at"
    pipeline.take(2)
    assert reconcile() == 2, "nothing was measured on it yet"
    pipeline.run(1 + STEPS_PER_WINDOW, late={0: 1})
    assert reconcile() == 2
    pipeline.run(STEPS_PER_WINDOW)
    assert reconcile() == 3
    pipeline.take(3)
    last = run_to_the_end(services, pipeline)
    assert last.plan == offline_plan(three_stages(), Reconfigure.BALANCED)
    pipeline.run(20)
    assert reconcile() == last.version


@pytest.mark.parametrize("is_compared", [False, True])
def test_other_jobs_and_comparisons_are_left_alone(
    services: JobServices, *, is_compared: bool
) -> None:
    """The steps of a comparison run at other clocks by turns."""
    adaptation = "reconfigure" if is_compared else "announced"
    pipeline = reconfigured_job(services, adaptation=adaptation)
    if is_compared:
        with services.store.writing("job") as writer:
            compared = newest(services).evolve(baseline_cycle=(True, False), digest=None)
            add_again(services, writer, compared)
        pipeline.take(2)
    before = newest(services)
    pipeline.run(20)
    ReconfigurationReconciler()(services, "job")
    assert newest(services) == before


def test_another_profile_begins_anew(services: JobServices, pipeline: PipelineOnPaper) -> None:
    version = go_on(services, pipeline, 1)
    other = three_stages((1.5, 1.0, 1.0))
    put_profile(services, "job", other)
    ReconfigurationReconciler()(services, "job")
    anew = newest(services)
    assert (anew.version, anew.measurement_detail) == (version + 1, MeasurementDetail.INSTRUCTIONS)
    assert stages_of(anew) == offline_plan(other, Reconfigure.DEFAULT).stages
    pipeline.profile = other
    pipeline.take(anew.version)
    assert (
        stages_of(run_to_the_end(services, pipeline))
        == offline_plan(other, Reconfigure.BALANCED).stages
    )


def test_a_failed_target_stops_the_loop(services: JobServices, pipeline: PipelineOnPaper) -> None:
    """The inputs of the plan in force are no longer the job's inputs."""
    pipeline.run(1 + STEPS_PER_WINDOW)
    with pytest.raises(PlanningFailedError):
        change_target(services, "job", TargetChange(target="slowdown:0.1"))
    ReconfigurationReconciler()(services, "job")
    assert newest(services).version == 1


@dataclass
class OvertakenStore:
    """A store in which something changes as soon as the first look at it is over."""

    store: JobStore
    change: Callable[[JobWriter], object]

    @contextmanager
    def reading(self) -> Generator[JobReader]:
        with self.store.reading() as reader:
            yield reader
        with self.store.writing("job") as writer:
            self.change(writer)

    def writing(self, subject: str) -> AbstractContextManager[JobWriter]:
        return self.store.writing(subject)


@pytest.mark.parametrize("is_another_run", [False, True])
def test_a_decision_holds_for_its_version_alone(
    services: JobServices, is_another_run: bool
) -> None:
    """As when the run has started over, and its plan was added again."""
    pipeline = reconfigured_job(services)
    pipeline.run(1 + STEPS_PER_WINDOW)
    record = newest(services)

    def change(writer: JobWriter) -> None:
        if is_another_run:
            job = writer.require_job("job")
            writer.save_job(job.evolve(created_at=job.created_at + timedelta(seconds=1)))
        else:
            add_version(
                services, writer, "job", record.plan, measurement_detail=record.measurement_detail
            )

    overtaken = cast("JobStore", OvertakenStore(services.store, change))
    ReconfigurationReconciler()(replace(services, store=overtaken), "job")
    assert newest(services).version == (1 if is_another_run else 2)
    assert stages_of(newest(services)) == stages_of(record)


def without_waits(rank: int, report: InstructionReport) -> InstructionReport:
    del rank
    kind, microbatch, chunk, began_s, computed_s, _, sent_s, mhz = report
    return (kind, microbatch, chunk, began_s, computed_s, 0.0, sent_s, mhz)


def of_another_microbatch(rank: int, report: InstructionReport) -> InstructionReport:
    kind, _, chunk, began_s, computed_s, received_s, sent_s, mhz = report
    return report if rank else (kind, 7, chunk, began_s, computed_s, received_s, sent_s, mhz)


@pytest.mark.parametrize("tells_instructions", [True, False])
def test_the_model_decides_at_last(services: JobServices, *, tells_instructions: bool) -> None:
    """Ranks that tell no instructions, or not those of the plan's order."""
    pipeline = reconfigured_job(services)
    pipeline.tells_instructions, pipeline.told = tells_instructions, of_another_microbatch
    pipeline.run(PATIENCE_STEPS)
    ReconfigurationReconciler()(services, "job")
    assert newest(services).version == 1
    pipeline.run(1)
    ReconfigurationReconciler()(services, "job")
    last = newest(services)
    assert (last.version, last.measurement_detail) == (2, MeasurementDetail.TOTALS)
    assert stages_of(last) == offline_plan(three_stages(), Reconfigure.BALANCED).stages


def without_microbatches(rank: int, report: InstructionReport) -> InstructionReport:
    """Instructions are then known by their order."""
    del rank
    kind, _, chunk, began_s, computed_s, received_s, sent_s, mhz = report
    return (kind, None, chunk, began_s, computed_s, received_s, sent_s, mhz)


def with_a_faster_pipeline(rank: int, report: InstructionReport) -> InstructionReport:
    """The second pipeline is twice as fast, and says that stage 0 never waits for anything."""
    if rank < NUM_STAGES:
        return report
    kind, microbatch, chunk, began_s, computed_s, received_s, sent_s, mhz = report
    waited_s = 0.0 if rank == NUM_STAGES else received_s
    return (kind, microbatch, chunk, began_s, computed_s / 2, waited_s, sent_s, mhz)


NO_WAITS = (
    "job job: no rank reports the wait for its input; the profile decides which clocks to raise"
)


@pytest.mark.parametrize(
    ("num_dp", "told", "warnings"),
    [
        (1, without_waits, [NO_WAITS]),
        (1, without_microbatches, []),
        (2, with_a_faster_pipeline, []),
    ],
)
def test_waits_are_those_of_the_slowest_pipeline_with_or_without_microbatches(
    services: JobServices,
    num_dp: int,
    told: Callable[[int, InstructionReport], InstructionReport],
    warnings: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipeline = reconfigured_job(services, num_dp=num_dp)
    pipeline.told = told
    with caplog.at_level(logging.WARNING):
        last = run_to_the_end(services, pipeline)
    assert stages_of(last) == offline_plan(three_stages(), Reconfigure.BALANCED).stages
    assert [record.getMessage() for record in caplog.records] == warnings
    assert (last.version == 2) is bool(warnings), "the model decides at once"

"""EnvPipe's loop through a live planner: emulated ranks tell their waits and get raised clocks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.integration.emulated_ranks import emulated_rank
from tests.planner.live import LivePlanner, live_planner

from flyball_client.api.planner_client import PlannerClient
from flyball_client.gpu.emulated import EmulatedGpu
from flyball_lab.emulation.emulated_pipeline import EmulatedRank, RankClock, run_step
from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import parse_stage_profile, write_stage_profile
from flyball_server.jobs.reconcile.reconfigurations import ReconfigurationReconciler
from flyball_server.jobs.registry.inspection import get_plan
from flyball_server.jobs.services import JobServices
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_wire.messages import Adaptation, JobRegistration, MeasurementDetail, StepMeasurement
from flyball_wire.plan_options import PlanOptions, Policy, Reconfigure

JOB, NUM_STAGES, NUM_MICROBATCHES, BLOCKING_POWER_W = "job", 3, 4, 70.0
PATIENCE_S = 60.0
# A step must not pass so fast that the ranks' posts of it are far apart.
STEP_S = 0.02


def profile(*weights: float) -> StageProfile:
    """Two clocks; forward 0.1 s times a stage's weight, backward twice that."""
    rows = (
        f"{stage},{kind},{mhz},{weight * time_s * 1400 / mhz:.6f},{weight * time_s * mhz / 4:.3f}"
        for stage, weight in enumerate(weights)
        for kind, time_s in (("forward", 0.1), ("backward", 0.2))
        for mhz in (1400, 1200)
    )
    return parse_stage_profile("stage,instruction,frequency,time,energy\n" + "\n".join(rows))


SUPPOSED, TRUE = profile(1.0, 1.0, 1.4), profile(1.0, 1.0, 1.0)


def offline_plan(of_profile: StageProfile, reconfigure: Reconfigure) -> FrequencyPlan:
    return make_plan(
        PlanRequest(
            profile=of_profile,
            num_microbatches=NUM_MICROBATCHES,
            options=PlanOptions(
                blocking_power_w=(BLOCKING_POWER_W,),
                policy=Policy.ENVELOPE,
                reconfigure=reconfigure,
            ),
        )
    ).plan


@pytest.fixture
def planner() -> Iterator[LivePlanner]:
    with live_planner(reconcilers=(ReconfigurationReconciler(),)) as live:
        yield live


@contextmanager
def emulated_ranks(planner_url: str) -> Iterator[list[EmulatedRank]]:
    """A rank per stage, on GPUs as they truly are, started and in the end closed."""
    plan = offline_plan(SUPPOSED, Reconfigure.DEFAULT)
    with PlannerClient(planner_url) as client:
        ranks = [_rank(client, plan, stage) for stage in range(NUM_STAGES)]
        for rank in ranks:
            rank.session.start()
        try:
            yield ranks
        finally:
            for rank in ranks:
                rank.session.close()


def _rank(client: PlannerClient, plan: FrequencyPlan, stage: int) -> EmulatedRank:
    clock = RankClock()
    gpu = EmulatedGpu(TRUE, stage, blocking_power_w=BLOCKING_POWER_W, clock=clock)
    order = ((item.kind.value, item.microbatch) for item in plan.stages[stage])
    return emulated_rank(client, gpu, clock, job_id=JOB, stage=stage, order=order)


def test_measured_waits_lead_to_the_clocks_of_the_true_times(planner: LivePlanner) -> None:
    """The profile says that the last stage is the slowest by far; the waits tell otherwise."""
    url = str(planner.http.base_url)
    with PlannerClient(url) as client, emulated_ranks(url) as ranks:
        client.put_job(
            JOB,
            JobRegistration(
                num_stages=NUM_STAGES,
                num_microbatches=NUM_MICROBATCHES,
                policy=Policy.ENVELOPE,
                adaptation=Adaptation.RECONFIGURE,
                blocking_power_w=(BLOCKING_POWER_W,),
                emulated=True,
            ),
        )
        client.put_profile_csv(JOB, write_stage_profile(SUPPOSED))
        times_s = _train_until_settled(planner.state.services, ranks)
        last = max(times_s)
        plan = client.get_plan(JOB, last).plan
    wanted, never_raised = (
        offline_plan(TRUE, Reconfigure.BALANCED),
        offline_plan(SUPPOSED, Reconfigure.BALANCED),
    )
    clocks_mhz = [[item[2] for item in stage] for stage in plan["stages"]]
    assert clocks_mhz == [[item.frequency_mhz for item in stage] for stage in wanted.stages]
    assert clocks_mhz != [[item.frequency_mhz for item in stage] for stage in never_raised.stages]
    assert sorted(times_s) == list(range(1, last + 1))
    assert times_s[1] > 1.03 * wanted.baseline_iteration_time_s
    assert times_s[last] == pytest.approx(wanted.baseline_iteration_time_s, rel=1e-9)


def _train_until_settled(services: JobServices, ranks: list[EmulatedRank]) -> dict[int, float]:
    """Train until a version runs that asks for totals; what a step took on each version, s."""
    deadline_s = time.monotonic() + PATIENCE_S
    times_s: dict[int, float] = {}
    while True:
        assert time.monotonic() < deadline_s, f"it never settled: {times_s}"
        began_s = time.monotonic()
        measured = run_step(ranks, num_stages=NUM_STAGES)
        version = _version_of(measured)
        if version is not None:
            times_s[version] = max(of_rank.time_s for of_rank in measured)
            if get_plan(services, JOB, version).measurement_detail == MeasurementDetail.TOTALS:
                return times_s
        time.sleep(max(0.0, began_s + STEP_S - time.monotonic()))


def _version_of(measured: tuple[StepMeasurement, ...]) -> int | None:
    """Return which all ranks ran; None: several, or none."""
    versions = {of_rank.plan_version for of_rank in measured}
    return versions.pop() if len(versions) == 1 else None

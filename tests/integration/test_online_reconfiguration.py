"""EnvPipe's loop through a live planner: emulated ranks tell their waits and get raised clocks."""

from __future__ import annotations

import pytest
from tests.planner.emulated_ranks import emulated_training
from tests.planner.live import live_planner

from flyball_client.api.planner_client import PlannerClient
from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import parse_stage_profile, write_stage_profile
from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_server.jobs.reconcile.reconfigurations import ReconfigurationReconciler
from flyball_server.jobs.registry.inspection import get_plan
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_wire.measurements import MeasurementDetail
from flyball_wire.messages import Adaptation, JobRegistration
from flyball_wire.plan_options import PlanOptions, Policy, Reconfigure
from flyball_wire.plans.plan import Plan

JOB, NUM_STAGES, NUM_MICROBATCHES, BLOCKING_POWER_W = "job", 3, 4, 70.0


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


def offline_plan(of_profile: StageProfile, reconfigure: Reconfigure) -> Plan:
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


def test_measured_waits_lead_to_the_clocks_of_the_true_times() -> None:
    """The profile says that the last stage is the slowest by far; the waits tell otherwise."""
    supposed = offline_plan(SUPPOSED, Reconfigure.DEFAULT)
    orders = [
        tuple((item.kind.value, item.microbatch) for item in of_stage)
        for of_stage in supposed.stages
    ]
    registration = JobRegistration(
        num_stages=NUM_STAGES,
        num_microbatches=NUM_MICROBATCHES,
        policy=Policy.ENVELOPE,
        adaptation=Adaptation.RECONFIGURE,
        blocking_power_w=(BLOCKING_POWER_W,),
        emulated=True,
    )
    with (
        live_planner(reconcilers=(PlanReconciler(), ReconfigurationReconciler())) as planner,
        PlannerClient(str(planner.http.base_url)) as client,
        emulated_training(
            str(planner.http.base_url), JOB, TRUE, orders, blocking_power_w=BLOCKING_POWER_W
        ) as training,
    ):
        client.put_job(JOB, registration)
        client.put_profile_csv(JOB, write_stage_profile(SUPPOSED))

        def has_settled() -> bool:
            last = get_plan(planner.state.services, JOB, max(training.times_s(), default=1))
            return last.measurement_detail == MeasurementDetail.TOTALS

        training.train_until(has_settled)
        times_s = training.times_s()
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
    assert times_s[1][-1] > 1.03 * wanted.predicted.baseline_iteration_time_s
    assert times_s[last][-1] == pytest.approx(wanted.predicted.baseline_iteration_time_s, rel=1e-9)

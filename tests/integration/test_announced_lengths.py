"""Sessions that announce lengths, and a planner that learns from their steps what these mean."""

from __future__ import annotations

import random
import time

import pytest
from tests.planner.emulated_ranks import (
    EmulatedTraining,
    emulated_training,
    one_forward_one_backward,
)
from tests.planner.live import LivePlanner, live_planner
from tests.unit.client.test_step_exchange import Meeting

from flyball_client.api.planner_client import PlannerClient
from flyball_lab.emulation.emulated_pipeline import Work
from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import parse_stage_profile, write_stage_profile
from flyball_server.jobs.findings.delays import DelayReconciler
from flyball_server.jobs.planning_inputs import WorkModel
from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_wire.messages import JobRegistration, Profiling
from flyball_wire.plan_options import Effort

JOB, NUM_STAGES, NUM_MICROBATCHES, NUM_PIPELINES = "job", 2, 4, 2
PER_TOKEN = 2.5e-4
BLOCKING_POWER_W, NOISE = 70.0, 0.005
# A step's real time, in which its ranks agree on the next one.
STEP_S = 0.15


def profile() -> StageProfile:
    """Forward 0.1 s and backward 0.2 s at 1400 MHz."""
    rows = (
        f"{stage},{kind},{mhz},{time_s * 1400 / mhz:.6f},{300 * time_s * (mhz / 1400) ** 1.5:.3f}"
        for stage in range(NUM_STAGES)
        for kind, time_s in (("forward", 0.1), ("backward", 0.2))
        for mhz in (1400, 1200, 1000)
    )
    return parse_stage_profile("stage,instruction,frequency,time,energy\n" + "\n".join(rows))


class Announcements:
    """Lengths of steps by pipeline; a step is announced before the one in front of it runs."""

    def __init__(self, training: EmulatedTraining, step_s: float = STEP_S) -> None:
        self._training, self._step_s = training, step_s
        self._chance = random.Random(3)
        self._lengths: dict[tuple[int, int], list[list[float]]] = {}

    def work_of_step(self, step: int) -> Work:
        """Announce the next step, and return the work of this one."""
        for rank in self._training.ranks:
            rank.session.announce_step(self._of(step + 1, rank.pipeline), step=step + 1)
        waits = [self._step_s]

        def factor(pipeline: int, microbatch: int) -> float:
            time.sleep(waits.pop() if waits else 0)
            return PER_TOKEN * sum(self._of(step, pipeline)[microbatch])

        return factor

    def _of(self, step: int, pipeline: int) -> list[list[float]]:
        drawn = [
            [self._chance.lognormvariate(7.5, 0.4) for _ in range(2)]
            for _ in range(NUM_MICROBATCHES)
        ]
        return self._lengths.setdefault((step, pipeline), drawn)


def known_work(planner: LivePlanner) -> WorkModel | None:
    with planner.state.services.store.reading() as reader:
        return reader.find_loop_state(JOB).planned_inputs.work


def test_announced_lengths_are_fitted_and_steps_run_at_clocks_of_their_own() -> None:
    registration = JobRegistration(
        num_stages=NUM_STAGES,
        num_microbatches=NUM_MICROBATCHES,
        num_ranks=NUM_STAGES * NUM_PIPELINES,
        blocking_power_w=(BLOCKING_POWER_W,),
        transition_ms=0.0,
        reserve=0.0,
        emulated=True,
    )
    meeting = Meeting(NUM_PIPELINES, NUM_STAGES)
    with (
        live_planner(reconcilers=(DelayReconciler(), PlanReconciler())) as planner,
        PlannerClient(str(planner.http.base_url)) as client,
    ):
        client.put_job(JOB, registration)
        client.put_profile_csv(JOB, write_stage_profile(profile()))
        orders = [
            tuple((kind, microbatch) for kind, microbatch, *_ in of_stage)
            for of_stage in client.get_plan(JOB, 1).plan["stages"]
        ]
        with emulated_training(
            str(planner.http.base_url),
            JOB,
            profile(),
            orders,
            blocking_power_w=BLOCKING_POWER_W,
            num_pipelines=NUM_PIPELINES,
            noise=NOISE,
            prepare=lambda session, pipeline, stage: session.plan_steps(
                meeting.agreement(pipeline, stage), coupling="step"
            ),
        ) as training:
            training.work_of_step = Announcements(training).work_of_step
            training.train_until(
                lambda: bool((known_work(planner) or WorkModel()).coefficients), max_steps=150
            )
            work = known_work(planner)
            assert work is not None
            for each in work.coefficients:
                lengths, squares = work.mean_work
                factor = each[0] + each[1] * lengths + each[2] * squares
                assert factor == pytest.approx(PER_TOKEN * lengths, rel=0.02)
            assert work.error < 3 * NOISE
            training.train_until_in_force(training.newest_version())
            begin = len(training.steps)

            def clocks_mhz() -> set[int | None]:
                return {mhz for step in training.steps[begin:] for mhz in step.clocks_mhz}

            # On a busy machine ranks agree too late on some, which then run at the highest clocks.
            training.train_until(lambda: clocks_mhz() > {1400}, max_steps=150)
            training.await_measured()
            with planner.state.services.store.reading() as reader:
                details = reader.list_step_details(JOB, begin)
            assert all(each.work is not None for each in details)
            plans = [each.step_plan for each in details if each.step_plan is not None]
            assert plans
            assert all(0 <= slack < 1 and low <= high <= 1400 for slack, low, high, _ in plans)


def test_a_job_is_profiled_by_its_announced_work(work_s: float = 0.04) -> None:
    """Its steps differ by a quarter, for which profiling refuses others."""
    registration = JobRegistration(
        num_stages=NUM_STAGES,
        num_microbatches=NUM_MICROBATCHES,
        num_ranks=NUM_STAGES * NUM_PIPELINES,
        blocking_power_w=(BLOCKING_POWER_W,),
        transition_ms=0.0,
        profiling=Profiling.ONLINE,
        profiling_slowdown=0.5,
        effort=Effort.LOW,
        emulated=True,
    )
    meeting = Meeting(NUM_PIPELINES, NUM_STAGES)
    with (
        live_planner() as planner,
        PlannerClient(str(planner.http.base_url)) as client,
    ):
        client.put_job(JOB, registration)
        with emulated_training(
            str(planner.http.base_url),
            JOB,
            profile(),
            one_forward_one_backward(NUM_STAGES, NUM_MICROBATCHES),
            blocking_power_w=BLOCKING_POWER_W,
            num_pipelines=NUM_PIPELINES,
            noise=NOISE,
            prepare=lambda session, pipeline, stage: session.plan_steps(
                meeting.agreement(pipeline, stage), coupling="step"
            ),
        ) as training:
            training.work_of_step = Announcements(training, work_s).work_of_step
            training.train_until(
                lambda: client.get_job(JOB).state in {"planned", "planning-failed"}, max_steps=400
            )
            assert client.get_job(JOB).problem is None
            with planner.state.services.store.reading() as reader:
                found = reader.find_profile(JOB)
            assert found is not None
            for key, points in found.points.items():
                known = {point.frequency_mhz: point for point in profile().points[key]}
                highest = points[0]
                for point in points:
                    true = known[point.frequency_mhz].time_s / known[1400].time_s
                    assert point.time_s / highest.time_s == pytest.approx(true, rel=0.04)
                    true = known[point.frequency_mhz].energy_j / known[1400].energy_j
                    assert point.energy_j / highest.energy_j == pytest.approx(true, rel=0.08)
            # What follows has step plans.
            training.train_until(
                lambda: bool((known_work(planner) or WorkModel()).coefficients), max_steps=150
            )

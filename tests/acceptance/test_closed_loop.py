"""The whole loop on emulated GPUs, from a job without a profile to the report of what it saved.

A job starts without a profile and is profiled in its own training, the planner being killed
meanwhile; it ends on the frontier; a straggler comes and goes; a comparison measures what the
plan saves, and the report says just that.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from tests.planner.emulated_ranks import (
    EmulatedTraining,
    TrainedStep,
    emulated_training,
    one_forward_one_backward,
)
from tests.planner.live import (
    SERVE,
    ServeProcess,
    serve_environment,
    serve_process,
)
from tests.planner.patience import wait_until
from tests.planner.ports import free_port

from flyball_profiles.examples import load_example_profile
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.model.pipeline_model import Assignment
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.planner import PlanRequest, make_plan, model_of_request
from flyball_wire.closed_loop import ComparisonState, StragglerAnnouncement
from flyball_wire.messages import Adaptation, JobRegistration, Profiling
from flyball_wire.plan_options import PlanOptions

JOB = "loop"
NUM_STAGES, NUM_MICROBATCHES = 2, 24
BLOCKING_POWER_W = 83.64
SLOW_RANK, SLOWDOWN = 1, 1.25
NOISE = 0.02
# A mean of some noisy steps against another, or against what is predicted without noise.
NOISY_TIME = 0.015
STEPS_EACH = 4
NUM_PAIRS = 12
# Some 200 steps, and a few more for each version that a busy machine hands over late.
MAX_PROFILING_STEPS, MAX_STEPS, MAX_COMPARING_STEPS = 220, 280, 120
PATIENCE_S = 60.0


def truth() -> StageProfile:
    """Return what the emulated GPUs take; the planner never sees it."""
    return load_example_profile().select_stages(tuple(range(NUM_STAGES)))


def registration() -> JobRegistration:
    return JobRegistration(
        num_stages=NUM_STAGES,
        num_microbatches=NUM_MICROBATCHES,
        profiling=Profiling.ONLINE,
        adaptation=Adaptation.FRONTIER,
        emulated=True,
    )


def true_request(profile: StageProfile) -> PlanRequest:
    return PlanRequest(
        profile=profile,
        num_microbatches=NUM_MICROBATCHES,
        options=PlanOptions(blocking_power_w=(BLOCKING_POWER_W,)),
    )


def true_energy_j(profile: StageProfile, stages: list[list[tuple[str, int, int]]]) -> float:
    """Return what a plan's clocks take on the true profile, J."""
    model = model_of_request(true_request(profile))
    clocks: dict[tuple[int, str, int], int] = {
        (stage, kind, microbatch): mhz
        for stage, instructions in enumerate(stages)
        for kind, microbatch, mhz in instructions
    }
    assignment: Assignment = [
        [point.frequency_mhz for point in points].index(
            clocks[stage, str(instruction.kind), instruction.microbatch]
        )
        for stage, instruction, points in zip(
            model.dag.stage, model.dag.instruction, model.points, strict=True
        )
    ]
    return simulate(model, assignment).energy_j


def kill_while_it_probes(training: EmulatedTraining, served: ServeProcess) -> None:
    """Train into the second probe plan, then kill the planner; training goes on without it."""
    training.train_until(lambda: training.newest_version() >= 2, max_steps=60)
    training.train_until_in_force(2)
    training.train(3)
    served.end(signal.SIGKILL)
    assert {version for step in training.train(5) for version in step.versions} == {2}


def end_on_the_frontier(training: EmulatedTraining, profile: StageProfile) -> int:
    """Train until the job is profiled and its plan is in force; the plan's version."""
    training.train_until(
        lambda: training.state() not in {"awaiting-profile", "profiling"}, max_steps=MAX_STEPS
    )
    found = training.planner.get_profiling(JOB)
    assert found.state == "finished", found.problem
    assert found.num_steps <= MAX_PROFILING_STEPS
    assert found.largest_slowdown is not None
    assert found.largest_slowdown <= found.slowdown_limit
    version = training.newest_version()
    training.train_until_in_force(version)
    plan = training.planner.get_plan(JOB, version).plan
    best = make_plan(true_request(profile)).plan
    assert true_energy_j(profile, plan["stages"]) <= 1.01 * best.predicted.energy_j
    return version


def let_a_straggler_come_and_go(training: EmulatedTraining) -> int:
    """A GPU is slow for a while, announced; the version that holds when it is fast again."""
    usual_s = training.predicted_time_s()
    before = training.train(STEPS_EACH)
    training.gpus[SLOW_RANK].set_slowdown(SLOWDOWN)
    left_alone = training.train(STEPS_EACH)
    training.planner.post_straggler(JOB, StragglerAnnouncement(rank=SLOW_RANK, slowdown=SLOWDOWN))
    wait_until(lambda: training.predicted_time_s() > usual_s * (1 + SLOWDOWN) / 2)
    training.train_until_newest_in_force()
    planned_for = training.train(STEPS_EACH)
    assert mean_time_s(planned_for) == pytest.approx(training.predicted_time_s(), rel=NOISY_TIME)
    assert mean_time_s(planned_for) <= mean_time_s(left_alone) * (1 + NOISY_TIME)
    # While one GPU is slow, the others need not hurry.
    assert mean_energy_j(planned_for) < 0.99 * mean_energy_j(left_alone)

    training.gpus[SLOW_RANK].set_slowdown(1.0)
    training.planner.delete_straggler(JOB, SLOW_RANK)
    # It may have been found to be slow too, and then first has to be found to be so no more.
    back = training.train_until_newest_in_force(
        lambda: training.predicted_time_s() == pytest.approx(usual_s, rel=NOISY_TIME)
    )
    again = training.train(STEPS_EACH)
    assert mean_time_s(again) == pytest.approx(mean_time_s(before), rel=NOISY_TIME)
    assert mean_energy_j(again) == pytest.approx(mean_energy_j(before), rel=0.01)
    return back


def compare_and_report(training: EmulatedTraining, address: str) -> dict[str, Any]:
    """Let `flyball report --compare` run while the ranks train; what it printed."""
    asking = subprocess.Popen(
        (*SERVE, "report", JOB, "--planner", address, "--json", "--compare", str(NUM_PAIRS)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=serve_environment(),
    )

    def is_in_state(state: ComparisonState) -> bool:
        assert asking.poll() in {None, 0}, asking.communicate()
        return training.planner.get_comparison(JOB).state == state

    try:
        wait_until(lambda: is_in_state(ComparisonState.RUNNING))
        training.train_until(
            lambda: is_in_state(ComparisonState.DONE), max_steps=MAX_COMPARING_STEPS
        )
        out, errors = asking.communicate(timeout=PATIENCE_S)
    finally:
        asking.kill()
        asking.wait()
    assert asking.returncode == 0, errors
    document: dict[str, Any] = json.loads(out)
    return document


def check_report(training: EmulatedTraining, report: dict[str, Any]) -> None:
    """Check that its measured figures are those that the emulated GPUs really took."""
    assert report["emulated"] is True
    [compared] = [version for version in report["versions"] if version["baseline"] == "interleaved"]
    on_plan, at_baseline = training.steps_of_comparison(compared["version"])
    exact_saving = 100 * (1 - mean_energy_j(on_plan) / mean_energy_j(at_baseline))
    saving = compared["saving_percent"]
    # Its counters are coarse, and its interval says how much that matters.
    width = saving["high"] - saving["low"]
    assert width < 3
    assert saving["low"] - width / 2 <= exact_saving <= saving["high"] + width / 2
    assert compared["time_s"]["mean"] == pytest.approx(mean_time_s(on_plan), rel=0.005)
    assert compared["baseline_time_s"]["mean"] == pytest.approx(mean_time_s(at_baseline), rel=0.005)
    assert report["profiling_time_s"] > 0
    assert report["profiling_energy_j"] is not None


def mean_time_s(steps: Sequence[TrainedStep]) -> float:
    return fmean(step.time_s for step in steps)


def mean_energy_j(steps: Sequence[TrainedStep]) -> float:
    return fmean(step.exact_energy_j for step in steps)


def test_a_job_without_a_profile_ends_on_the_frontier_and_its_report_is_right(
    tmp_path: Path,
) -> None:
    profile, database, port = truth(), tmp_path / "planner.sqlite", free_port()
    address = f"http://127.0.0.1:{port}"
    orders = one_forward_one_backward(NUM_STAGES, NUM_MICROBATCHES)
    arguments = ("--port", str(port))
    with (
        serve_process(database, *arguments) as first,
        emulated_training(
            address, JOB, profile, orders, blocking_power_w=BLOCKING_POWER_W, noise=NOISE
        ) as training,
    ):
        training.planner.put_job(JOB, registration())
        kill_while_it_probes(training, first)
        with serve_process(database, *arguments) as second:
            end_on_the_frontier(training, profile)
            let_a_straggler_come_and_go(training)
            check_report(training, compare_and_report(training, address))
            status, errors = second.end(signal.SIGINT)
    assert status == 0
    assert [line for line in errors.splitlines() if " INFO " not in line] == []

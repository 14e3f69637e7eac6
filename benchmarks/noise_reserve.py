"""Effect of noise in instructions on plans with and without a reserve, simulated and emulated.

Simulated: every instruction's time is drawn anew in each iteration, around its profiled time, and
all plans get the same draws. EnvPipe's plans are shown beside Flyball's.

Emulated: rank sessions run plans on emulated GPUs, by discrete events, with 1 % of jitter in each
instruction and clocks that change 5 ms late. The baseline has the same jitter. The planner chooses
the reserve from this jitter, which the profile states, or which a job has measured in its first
steps on a plan without a reserve.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from benchmark_report import (
    Limit,
    Report,
    at_least,
    at_most,
    run_benchmark,
    show_progress,
    table_of,
)
from flyball_client.gpu.emulated import EmulatedGpuSettings
from flyball_client.session.instruction_timings import InstructionTiming
from flyball_lab.emulation.emulated_pipeline import EmulatedRank, planned_ranks, run_step
from flyball_profiles.examples import load_example_profile
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.measurements.timed_steps import (
    StepReports,
    delays_of_steps,
    num_timed_steps,
)
from flyball_server.jobs.planning_inputs import MeasuredDelays
from flyball_server.jobs.wanted.request import with_measured_delays
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.model.array_dag import FloatArray, earliest_finishes_s
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_wire.measurements import InstructionReport
from flyball_wire.plan_options import PlanOptions, Policy
from flyball_wire.plans.plan import Plan
from gpt3_cells import A100

NUM_MICROBATCHES = (12, 24, 48)
RESERVES = (0.0, 0.005, 0.01, 0.02, 0.03)
SEED = 20231
EMULATED_JITTER, EMULATED_DELAY_MS, NUM_EMULATED = 0.01, 5.0, 200
MAX_SLOWER_PERCENT, MAX_COST_POINTS = 0.3, 0.4


@dataclass(frozen=True, kw_only=True)
class NoisyPlan:
    """A plan under noise.

    Attributes:
        name: `envelope`, or `frontier` with its reserve.
        saving_percent: of energy without noise, predicted.
        slower_percent: of the mean iteration under noise against that of the highest clocks under
            the same noise, simulated.
        error_percent: its standard error.
    """

    num_microbatches: int
    name: str
    saving_percent: float
    slower_percent: float
    error_percent: float


def plans_under_noise(num_microbatches: int, noise: float, num_draws: int) -> tuple[NoisyPlan, ...]:
    """EnvPipe's plan and the frontier's, by rising reserve, on the shipped example profile."""
    profile = load_example_profile()
    asked = [("envelope", Policy.ENVELOPE, 0.0)]
    asked += [(f"frontier, reserve {100 * one:g} %", Policy.FRONTIER, one) for one in RESERVES]
    draws: FloatArray | None = None
    results = []
    for name, policy, reserve in asked:
        plan = make_plan(
            PlanRequest(
                profile=profile,
                num_microbatches=num_microbatches,
                options=PlanOptions(
                    blocking_power_w=(A100.blocking_power_w,), policy=policy, reserve=reserve
                ),
            )
        ).plan
        model, assignment = model_of_plan(profile, plan)
        if draws is None:
            shape = (model.dag.num_nodes, num_draws)
            draws = np.random.default_rng(SEED).normal(1.0, noise, shape).clip(min=0.01)
        times_s, highest_s = (
            earliest_finishes_s(model.dag, draws * np.array(durations_s)[:, None]).max(axis=0)
            for durations_s in map(model.durations_s, (assignment, model.baseline()))
        )
        slower = times_s / highest_s.mean() - 1
        results.append(
            NoisyPlan(
                num_microbatches=num_microbatches,
                name=name,
                saving_percent=plan.predicted.saving_percent,
                slower_percent=100 * float(slower.mean()),
                error_percent=100
                * float((times_s - highest_s).std())
                / float(highest_s.mean())
                / num_draws**0.5,
            )
        )
    return tuple(results)


@dataclass(frozen=True, kw_only=True)
class EmulatedPlan:
    """A plan that was run with jitter and late clock changes.

    Attributes:
        name: `reserve 0`, or the source of the jitter that the reserve was chosen from.
        reserve_percent: the reserve, %.
        predicted_saving_percent: of energy without noise, predicted.
        predicted_slower_percent: the planner's prediction; None: it has none.
        saving_percent, slower_percent: of the mean iteration against the highest clocks' with the
            same jitter, emulated.
    """

    name: str
    reserve_percent: float
    predicted_saving_percent: float
    predicted_slower_percent: float | None
    saving_percent: float
    slower_percent: float


def with_jitter(profile: StageProfile, jitter: float) -> StageProfile:
    """Return the profile with this jitter at every point."""
    points = {
        key: tuple(replace(one, jitter=jitter) for one in of_key)
        for key, of_key in profile.points.items()
    }
    return replace(profile, points=points)


def emulated_plans() -> tuple[EmulatedPlan, ...]:
    """Return the frontier's plan without a reserve and with the chosen ones, at 8 x 12."""
    profile = load_example_profile()
    request = PlanRequest(
        profile=profile,
        num_microbatches=NUM_MICROBATCHES[0],
        options=PlanOptions(
            blocking_power_w=(A100.blocking_power_w,), transition_ms=EMULATED_DELAY_MS
        ),
    )
    highest = make_plan(request.with_options(policy=Policy.BASELINE)).plan
    highest_s, highest_j = emulated_means(profile, highest)
    without = make_plan(request).plan
    delays = measured_on(profile, without)
    options = with_measured_delays(
        request.options, profile.num_stages, delays, has_given_transitions=True
    )
    profile_of_job = with_jitter(profile, delays.jitter)
    of_job = replace(request, profile=profile_of_job, options=options)
    stated = replace(request, profile=with_jitter(profile, EMULATED_JITTER))
    plans = []
    for name, plan in (
        ("reserve 0", without),
        ("jitter in the profile", make_plan(stated).plan),
        ("jitter measured in the job", make_plan(of_job).plan),
    ):
        time_s, energy_j = emulated_means(profile, plan)
        choice = plan.reserve.choice
        plans.append(
            EmulatedPlan(
                name=name,
                reserve_percent=100 * plan.reserve.share,
                predicted_saving_percent=plan.predicted.saving_percent,
                predicted_slower_percent=choice.slowdown_percent if choice else None,
                saving_percent=100 * (1 - energy_j / highest_j),
                slower_percent=100 * (time_s / highest_s - 1),
            )
        )
    return tuple(plans)


def measured_on(profile: StageProfile, plan: Plan) -> MeasuredDelays:
    """Return what a job measures in its first steps on a plan, the very first left out."""
    with emulated_ranks(profile, plan) as ranks:
        return delays_of_ranks(ranks, plan, profile)


def delays_of_ranks(
    ranks: Sequence[EmulatedRank], plan: Plan, profile: StageProfile
) -> MeasuredDelays:
    """Run a job's first steps on a plan, and return what it measures in all but the first one."""
    times_s: list[float] = []
    reports: list[StepReports] = []
    run_step(ranks, num_stages=len(ranks))
    for _ in range(num_timed_steps(plan)):
        step = run_step(ranks, num_stages=len(ranks))
        times_s.append(max(of_rank.time_s for of_rank in step))
        reports.append([[tuple(map(report_of, rank.session.last_step_timings)) for rank in ranks]])
    return delays_of_steps(1, plan, times_s, reports, profile=profile)


def report_of(timing: InstructionTiming) -> InstructionReport:
    """Return what a rank posts of an instruction."""
    return (
        *(timing.kind, timing.microbatch, timing.chunk, timing.began_s),
        *(timing.compute_time_s, timing.receive_time_s, timing.send_time_s, timing.sm_clock_mhz),
    )


@contextmanager
def emulated_ranks(profile: StageProfile, plan: Plan) -> Iterator[list[EmulatedRank]]:
    """Ranks that run a plan with jitter and late clocks."""
    settings = EmulatedGpuSettings.exact_delay(EMULATED_DELAY_MS / 1e3)
    with planned_ranks(
        profile,
        [[item[:3] for item in of_stage] for of_stage in plan.stages],
        iteration_time_s=plan.iteration_time_s,
        blocking_power_w=A100.blocking_power_w,
        settings=replace(settings, noise=EMULATED_JITTER, seed=SEED),
    ) as ranks:
        yield ranks


def emulated_means(profile: StageProfile, plan: Plan) -> tuple[float, float]:
    """Return mean time in s and energy in J of consecutive iterations without the first."""
    with emulated_ranks(profile, plan) as ranks:
        steps = [run_step(ranks, num_stages=len(ranks)) for _ in range(1 + NUM_EMULATED)][1:]
    times_s = [max(of_rank.time_s for of_rank in step) for step in steps]
    energies_j = [sum(of_rank.energy_j or 0.0 for of_rank in step) for step in steps]
    return fmean(times_s), fmean(energies_j)


def measure(arguments: argparse.Namespace) -> Report:
    """All sizes of the benchmark."""
    rows: list[NoisyPlan] = []
    for num_microbatches in NUM_MICROBATCHES:
        show_progress(f"{num_microbatches} microbatches")
        rows += plans_under_noise(num_microbatches, arguments.noise, arguments.draws)
    show_progress("emulated iterations")
    emulated = emulated_plans()
    simulated = {
        "plan": "{name}",
        "microbatches": "{num_microbatches}",
        "saving, %": "{saving_percent:.2f}",
        "slower, %": "{slower_percent:+.2f}",
        "standard error": "{error_percent:.2f}",
    }
    in_virtual_time = {
        "plan": "{name}",
        "reserve, %": "{reserve_percent:.2f}",
        "saving, %: predicted": "{predicted_saving_percent:.2f}",
        "saving, %: emulated": "{saving_percent:.2f}",
        "slower, %: predicted": "{predicted_slower_percent:+.2f}",
        "slower, %: emulated": "{slower_percent:+.2f}",
    }
    return Report(
        figures={
            "noise": arguments.noise,
            "num_draws": arguments.draws,
            "plans": rows,
            "emulated": emulated,
        },
        text=(
            f"{100 * arguments.noise:g} % noise on every instruction, {arguments.draws} iterations"
            f"\n\n{table_of(rows, simulated)}\n\nsaving: predicted, without noise; slower:"
            " simulated under noise, against the highest clocks under the same noise\n\n"
            f"{100 * EMULATED_JITTER:g} % of jitter, clocks {EMULATED_DELAY_MS:g} ms late,"
            f" {NUM_EMULATED} emulated iterations\n\n{table_of(emulated, in_virtual_time)}"
        ),
        limits=[*_limits_under_noise(rows), *_limits_emulated(*emulated)],
    )


def _limits_under_noise(rows: Sequence[NoisyPlan]) -> Iterator[Limit]:
    of_first = {row.name: row for row in rows if row.num_microbatches == NUM_MICROBATCHES[0]}
    envpipe, kept = of_first["envelope"], of_first["frontier, reserve 1 %"]
    yield at_least(
        "12 microbatches, saving beyond EnvPipe's, % points",
        kept.saving_percent - envpipe.saving_percent,
        0,
    )
    yield at_most(
        "12 microbatches, slower than EnvPipe's by, % points",
        kept.slower_percent - envpipe.slower_percent,
        0,
    )


def _limits_emulated(without: EmulatedPlan, *chosen: EmulatedPlan) -> Iterator[Limit]:
    for row in chosen:
        yield at_most(f"emulated, {row.name}, slower by, %", row.slower_percent, MAX_SLOWER_PERCENT)
    for row in chosen:
        cost = without.saving_percent - row.saving_percent
        yield at_most(f"emulated, {row.name}, cost, % points", cost, MAX_COST_POINTS)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--noise", type=float, default=0.02, help="relative standard deviation")
    options.add_argument("--draws", type=int, default=400, help="iterations (default 400)")
    run_benchmark(options, measure)

"""Plans where clock changes take time, beside what else a user could run. Predicted, not measured.

The shipped profile of 8 stages x 12 microbatches, scaled to three lengths of its instructions,
under some delays of clock changes: one exact delay, or delays that vary, under which a plan has to
be in time whatever they are, with effort `high`. Beside the plan for these delays stand that of
effort `normal`, the one whose clocks are all requested as the instruction before ends, the plan
that is made as if clocks changed at once, EnvPipe's, and one clock per stage.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace

import numpy as np

from benchmark_report import (
    Limit,
    Report,
    at_least,
    at_most,
    figures_of,
    run_benchmark,
    show_progress,
    table_of,
)
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.examples import load_example_profile
from flyball_profiles.gpu_windows import load_gpu_window
from flyball_server.planning.model.early_requests import EarlyRequestBatch
from flyball_server.planning.model.late_clocks import LateClockSimulator
from flyball_server.planning.model.simulator import time_and_energy
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_wire.plan_options import Effort, PlanOptions, Policy, Reconfigure
from made_profiles import scaled, tile_profile

BLOCKING_POWER_W = 83.64
NUM_MICROBATCHES = 12
# Scale of the shipped profile, whose forwards take about 50 ms and backwards 92, delay in ms, and
# the least saving in %.
EXACT = ((1, 5, 15.0), (1 / 4, 5, 14.2), (1 / 4, 20, 13.6), (1, 46, 13.4), (1 / 10, 5, 12.0))
# The same with median delays up and down; they are 0.6 to 1.3 times as long.
VARYING = ((1, 5, 5, 14.8), (1 / 4, 5, 5, 14.0), (1 / 4, 20, 20, 12.8), (1, 46, 5.75, 13.2))
SHORTEST, LONGEST = 0.6, 1.3
# The A100's own table at the profile's own lengths: no clock is in force as an iteration begins.
# With effort `normal`, whose planning is limited too.
MIN_OF_TABLE_PERCENT, TABLE_MAX_S = 15.3, 2.5
MAX_EXACT_PERCENT, MAX_VARYING_PERCENT = 1e-4, 0.05
LARGE_STAGES, LARGE_MICROBATCHES, LARGE_MAX_S, SEED = 64, 256, 40.0, 20231
HIGH, NORMAL, AT_ENDS = "flyball", "flyball, normal", "normal, at ends"
PLANS = {
    HIGH: PlanOptions(effort=Effort.HIGH),
    NORMAL: PlanOptions(),
    AT_ENDS: PlanOptions(early_requests=False),
    "as if at once": PlanOptions(policy=Policy.FRONTIER),
    "envelope": PlanOptions(policy=Policy.ENVELOPE),
    "constant": PlanOptions(policy=Policy.CONSTANT, reconfigure=Reconfigure.BALANCED),
}


@dataclass(frozen=True, kw_only=True)
class LatePlan:
    """A plan under delays.

    Attributes:
        forward_ms: length of an average forward at the highest clocks.
        up_ms, down_ms: median delays of changes to a higher and to a lower clock.
        varies: delays are 0.6 to 1.3 times as long; else exact.
        name: `flyball` with effort `high`, or what stands beside it.
        slowdown_percent: of the iteration against the highest clocks, at most, %.
        saving_percent: of energy at median delays, %.
        num_switches: clock changes of an iteration.
        num_early: those of them that are requested before the instruction before ends.
        gap_percent: above the bound, %; None for plans without one.
        planning_s: s.
    """

    forward_ms: float
    up_ms: float
    down_ms: float
    varies: bool
    name: str
    slowdown_percent: float
    saving_percent: float
    num_switches: int
    num_early: int
    gap_percent: float | None
    planning_s: float


def transitions_of(up_ms: float, down_ms: float, *, varies: bool) -> ClockTransitions:
    """Times of clock changes; an iteration's first clock is in force as it begins."""
    low, high = (SHORTEST, LONGEST) if varies else (1.0, 1.0)
    up_s, down_s = up_ms / 1e3, down_ms / 1e3
    return ClockTransitions(
        up_p5_s=low * up_s,
        up_p50_s=up_s,
        up_p95_s=high * up_s,
        down_p5_s=low * down_s,
        down_p50_s=down_s,
        down_p95_s=high * down_s,
        starts_settled=True,
    )


def plans_under(scale: float, transitions: ClockTransitions, *, varies: bool) -> list[LatePlan]:
    """Flyball's plan, the same with effort `normal`, and those beside them."""
    profile = scaled(load_example_profile(), lambda *_: (scale, scale))
    forwards_s = [
        points[0].time_s for (_, kind), points in profile.points.items() if kind == "forward"
    ]
    plans: list[LatePlan] = []
    for name, options in PLANS.items():
        request = PlanRequest(
            profile=profile,
            num_microbatches=NUM_MICROBATCHES,
            options=replace(options, blocking_power_w=(BLOCKING_POWER_W,), transitions=transitions),
        )
        began_s = time.perf_counter()
        at_once = name == "as if at once"
        made = request.with_options(transitions=None) if at_once else request
        solved = make_plan(made)
        planning_s = time.perf_counter() - began_s
        model = replace(solved.model, transitions=transitions)
        choices = np.array([solved.assignment])
        latest_s, energy_j = time_and_energy(model, solved.assignment)
        if varies:
            batch = EarlyRequestBatch(model) if model.requests else LateClockSimulator(model)
            latest_s = float(batch.judged(choices)[1][0])
        baseline = solved.plan
        plans.append(
            LatePlan(
                forward_ms=1e3 * sum(forwards_s) / len(forwards_s),
                up_ms=1e3 * transitions.up_p50_s,
                down_ms=1e3 * transitions.down_p50_s,
                varies=varies,
                name=name,
                slowdown_percent=100
                * (latest_s / baseline.predicted.baseline_iteration_time_s - 1),
                saving_percent=100 * (1 - energy_j / baseline.predicted.baseline_energy_j),
                num_switches=int(LateClockSimulator(model).num_switches(choices)[0]),
                num_early=len(model.requests),
                gap_percent=None if at_once else solved.plan.predicted.gap_percent,
                planning_s=planning_s,
            )
        )
    return plans


def measure(arguments: argparse.Namespace) -> Report:
    """All plans, and their limits."""
    plans: list[LatePlan] = []
    limits: list[Limit] = []
    cases = [
        (scale, transitions_of(delay_ms, delay_ms, varies=False), least, False)
        for scale, delay_ms, least in EXACT
    ]
    cases += [
        (scale, transitions_of(up_ms, down_ms, varies=True), least, True)
        for scale, up_ms, down_ms, least in VARYING
    ]
    of_table = load_gpu_window("a100").transitions
    assert of_table is not None  # noqa: S101 - it has one
    cases.append((1.0, of_table, MIN_OF_TABLE_PERCENT, True))
    for scale, transitions, least, varies in cases:
        show_progress(f"scale {scale:g}, varies: {varies}")
        found = plans_under(scale, transitions, varies=varies)
        plans += found
        ours = found[0]
        where = _delays(ours)
        most = MAX_VARYING_PERCENT if varies else MAX_EXACT_PERCENT
        limits += [
            at_least(f"{where}: saving, %", ours.saving_percent, least),
            at_most(f"{where}: slowdown, %", ours.slowdown_percent, most),
            at_most(f"{where}, normal: slowdown, %", found[1].slowdown_percent, most),
        ]
    normal = plans[-len(PLANS) + 1]
    limits += [
        at_least(
            "the A100's table, normal: saving, %", normal.saving_percent, MIN_OF_TABLE_PERCENT
        ),
        at_most("the A100's table, normal: planning, s", normal.planning_s, TABLE_MAX_S),
    ]
    large_s: float | None = None
    if arguments.large:
        show_progress(f"{LARGE_STAGES} x {LARGE_MICROBATCHES}")
        large_s = _large_s()
        limits.append(at_most("64 x 256 with 5 ms: planning, s", large_s, LARGE_MAX_S))
    return Report(
        figures={"plans": plans, "large_planning_s": large_s},
        text=_text(plans),
        limits=limits,
    )


def _large_s() -> float:
    request = PlanRequest(
        profile=tile_profile(load_example_profile(), LARGE_STAGES, SEED),
        num_microbatches=LARGE_MICROBATCHES,
        options=PlanOptions(blocking_power_w=(BLOCKING_POWER_W,), transition_ms=5.0),
    )
    began_s = time.perf_counter()
    plan = make_plan(request).plan
    took_s = time.perf_counter() - began_s
    show_progress(
        f"saves {plan.predicted.saving_percent:.3f} % at {plan.slowdown_percent:+.4f} % time,"
        f" {took_s:.1f} s"
    )
    return took_s


def _delays(plan: LatePlan) -> str:
    delay = f"{plan.up_ms:g}" if plan.up_ms == plan.down_ms else f"{plan.up_ms:g}/{plan.down_ms:g}"
    return f"F {plan.forward_ms:.3g} ms, {delay} ms{', varying' if plan.varies else ''}"


def _text(plans: list[LatePlan]) -> str:
    columns = {
        "": "{where}",
        "plan": "{name}",
        "slowdown, %": "{slowdown_percent:+.3f}",
        "saving, %": "{saving_percent:.3f}",
        "switches": "{num_switches}",
        "early": "{num_early}",
        "gap, %": "{gap_percent:.3f}",
        "planning, s": "{planning_s:.1f}",
    }
    wheres = (_delays(plan) if plan.name == HIGH else "" for plan in plans)
    rows = [{**figures_of(plan), "where": where} for plan, where in zip(plans, wheres, strict=True)]
    return table_of(rows, columns)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--large", action="store_true", help="plan 64 stages x 256 microbatches too: a minute"
    )
    run_benchmark(options, measure)

"""Stragglers and drift: found when they are there, and never in noise or planned clocks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest
from tests.planner.samples import rank_record, step_record

from flyball_pipeline.work import StepWork, WorkCoefficients, step_work
from flyball_profiles.examples import load_example_profile
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.findings.detector import RULES, Slowdowns, find_slowdowns
from flyball_server.jobs.findings.step_ratios import (
    RankStep,
    StageWork,
    clock_times,
    planned_clock_times,
    rank_step,
    stage_work,
)
from flyball_server.jobs.planning_inputs import RankSlowdown, WorkModel
from flyball_server.jobs.records import RankRecord
from flyball_server.jobs.step_records import StepDetail
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_wire.plan_options import Effort, PlanOptions, Policy

pytestmark = pytest.mark.slow

PROFILE = load_example_profile().select_stages((0, 1))
CLOCKS_MHZ = sorted({point.frequency_mhz for points in PROFILE.points.values() for point in points})
NOW_S = 1000.0
ON_PLAN = step_record(plan_version=1)
Factor = Callable[[int, int, str], float]
"""(rank, step, kind) -> how many times as long instructions take."""


def a_rank(rank: int, stage: int, dp_rank: int = 0, tp_rank: int = 0) -> RankRecord:
    return rank_record(rank, stage=stage, dp_rank=dp_rank, tp_rank=tp_rank)


ONE_PIPELINE = [a_rank(0, 0), a_rank(1, 1)]
THREE_PIPELINES = [a_rank(2 * dp + stage, stage, dp) for dp in range(3) for stage in range(2)]


def measured(
    rank: RankRecord,
    step: int,
    factor: Factor,
    *,
    clock_mhz: int = 1410,
    rng: random.Random | None = None,
    num_microbatches: int = 12,
    profile: StageProfile = PROFILE,
    **changes: Any,  # noqa: ANN401 - fields of a StepRecord
) -> RankStep | None:
    """A step whose single instructions scatter by 2 %, if there is an `rng`."""
    times_s = clock_times(profile, rank.stage)
    rows: list[tuple[str, int, int | None, int, float, float]] = []
    for kind in ("forward", "backward"):
        mean_s = times_s[kind, 0, clock_mhz] * factor(rank.rank, step, kind)
        sd_s = 0.02 * mean_s if rng else 0.0
        mean_s += rng.gauss(0, sd_s / num_microbatches**0.5) if rng else 0.0
        rows.append((kind, 0, clock_mhz, num_microbatches, mean_s, sd_s**2))
    record = ON_PLAN.evolve(rank=rank.rank, step=step, **changes)
    detail = StepDetail(job_id="job", rank=rank.rank, step=step, by_clock=tuple(rows))
    return rank_step(record, detail, times_s)


def walked(
    ranks: Sequence[RankRecord],
    factor: Factor,
    num_steps: int,
    *,
    rng: random.Random | None = None,
    clock_mhz: int = 1410,
    announced: tuple[int, ...] = (),
) -> Iterator[tuple[int, Slowdowns]]:
    """Step by step, what is found then."""
    observed: list[RankStep] = []
    found = Slowdowns()
    for number in range(num_steps):
        steps = [measured(rank, number, factor, clock_mhz=clock_mhz, rng=rng) for rank in ranks]
        observed = [*observed, *(step for step in steps if step)][-80 * len(ranks) :]
        before = found
        found = find_slowdowns(observed, ranks, found, now_unix_s=NOW_S, announced=announced)
        if found != before:
            observed = []  # the job is planned again, and looked at from the new version on
        yield number, found


def as_profiled(rank: int, step: int, kind: str) -> float:
    return 1.0


def changes_of(walk: Iterator[tuple[int, Slowdowns]]) -> list[tuple[int, Slowdowns]]:
    """The steps after which something else was found than before."""
    walk_list = [(-1, Slowdowns()), *walk]
    return [after for before, after in pairwise(walk_list) if before[1] != after[1]]


# ------------------------------------------------------------------ stragglers


@pytest.mark.parametrize("is_shared", [False, True])
def test_noise_of_two_percent_is_never_a_straggler_nor_drift(*, is_shared: bool) -> None:
    rng = random.Random(0)
    noise = {(rank, step): 1 + rng.gauss(0, 0.02) for rank in range(2) for step in range(300)}
    if is_shared:
        walk = walked(ONE_PIPELINE, lambda rank, step, kind: noise[rank, step], 300)
    else:
        walk = walked(ONE_PIPELINE, as_profiled, 300, rng=rng, clock_mhz=CLOCKS_MHZ[0])
    assert changes_of(walk) == []


@pytest.mark.parametrize("slowdown", [1.08, 1.2])
def test_a_straggler_that_comes_and_goes_is_two_changes_each_within_ten_steps(
    slowdown: float,
) -> None:
    def factor(rank: int, step: int, kind: str) -> float:
        return slowdown if rank == 0 and 30 <= step < 130 else 1.0

    (came, found), (went, after) = changes_of(
        walked(ONE_PIPELINE, factor, 200, rng=random.Random(0))
    )
    assert 34 <= came < 40
    assert 134 <= went < 140
    [slowed] = found.stragglers
    assert (slowed.rank, slowed.reason, slowed.since_unix_s) == (0, "slow", NOW_S)
    assert slowed.slowdown == pytest.approx(slowdown, abs=0.01)
    assert found.drifts == ()
    assert after == Slowdowns()


def test_a_ratio_that_wanders_about_the_threshold_does_not_flap() -> None:
    rng = random.Random(0)
    wandering, level = [], 1.05
    for _ in range(400):
        level += 0.1 * (1.05 - level) + rng.gauss(0, 0.004)
        wandering.append(min(1.075, max(1.03, level)))

    def factor(rank: int, step: int, kind: str) -> float:
        return wandering[step] if rank == 1 else 1.0

    changes = changes_of(walked(ONE_PIPELINE, factor, 400, rng=rng))
    assert 1 <= len(changes) <= 3  # found once or twice, as a straggler or a drift, then left alone


def test_a_slowdown_that_changes_much_is_found_anew_and_a_little_or_four_steps_is_not() -> None:
    def factor(rank: int, step: int, kind: str) -> float:
        if rank == 0:
            return 2.0 if step % 10 < 4 and step < 18 else 1.0
        return 1.2 if step < 30 else (1.24 if step < 60 else 1.4)

    changes = changes_of(walked(ONE_PIPELINE, factor, 100))
    assert [round(found.stragglers[0].slowdown, 6) for _, found in changes] == [1.2, 1.4]
    assert all(len(found.stragglers) == 1 for _, found in changes)


@pytest.mark.parametrize(
    ("power", "thermal", "reason"),
    [(0, 0, "slow"), (3, 0, "power"), (0, 1, "thermal"), (2, 2, "thermal")],
)
def test_what_held_the_clocks_down_is_the_reason(power: int, thermal: int, reason: str) -> None:
    steps = [
        measured(
            rank,
            step,
            lambda rank, step, kind: 1.3 if rank else 1.0,
            num_power_capped=power,
            num_thermally_capped=thermal,
        )
        for rank in ONE_PIPELINE
        for step in range(5)
    ]
    observed = [step for step in steps if step]
    found = find_slowdowns(observed, ONE_PIPELINE, Slowdowns(), now_unix_s=NOW_S)
    assert [slowed.reason for slowed in found.stragglers] == [reason]


def test_of_ranks_that_wait_for_each_other_within_an_instruction_one_stands_for_all() -> None:
    ranks = [a_rank(rank, 0, tp_rank=rank) for rank in range(4)]
    changes = changes_of(walked(ranks, lambda rank, step, kind: 1.2 + 0.001 * (rank == 2), 30))
    [(_, found)] = changes
    assert [slowed.rank for slowed in found.stragglers] == [2]


def test_nothing_is_found_before_all_ranks_of_the_stage_have_measured_enough() -> None:
    steps = [
        step
        for number in range(5)
        if (step := measured(ONE_PIPELINE[1], number, lambda *_: 1.5)) is not None
    ]
    ranks = [*ONE_PIPELINE, a_rank(2, 1, dp_rank=1)]
    assert find_slowdowns(steps, ranks, Slowdowns(), now_unix_s=NOW_S) == Slowdowns()
    known = Slowdowns(stragglers=(RankSlowdown(rank=1, slowdown=1.2),))
    assert find_slowdowns(steps, ranks, known, now_unix_s=NOW_S) == known


# ------------------------------------------------------------------ steps that differ


def log_normal(rng: random.Random, scatter: float) -> float:
    return math.exp(rng.gauss(-scatter * scatter / 2, scatter))


@pytest.mark.parametrize(
    ("num_pipelines", "num_steps", "scatter"), [(4, 150, 0.05), (24, 40, 0.2), (4, 150, 0.5)]
)
def test_equal_ranks_whose_steps_differ_are_no_stragglers(
    num_pipelines: int, num_steps: int, scatter: float
) -> None:
    """`benchmarks/false_stragglers.py` has more of them; the rate is one in 10,000 steps."""
    rng = random.Random(3)
    ranks = [a_rank(number, 0, number) for number in range(num_pipelines)]
    walk = walked(ranks, lambda *_: log_normal(rng, scatter), num_steps)
    assert not any(found.stragglers for _, found in walk)


@pytest.mark.parametrize(("scatter", "slowdown", "most_steps"), [(0.005, 1.05, 10), (0.2, 1.6, 30)])
def test_a_slow_rank_is_found_among_steps_that_differ_and_forgotten_when_it_is_not(
    scatter: float, slowdown: float, most_steps: int
) -> None:
    """`benchmarks/false_stragglers.py` has more of them."""
    ranks = [a_rank(number, 0, number) for number in range(8)]
    rng = random.Random(0)

    def factor(rank: int, step: int, kind: str) -> float:
        slow = slowdown if rank == 5 and 45 <= step < 130 else 1.0
        return slow * log_normal(rng, scatter)

    with_straggler = [
        (step, found.stragglers[0])
        for step, found in walked(ranks, factor, 231)
        if found.stragglers
    ]
    assert {slowed.rank for _, slowed in with_straggler} == {5}
    (came, _), (went, _) = with_straggler[0], with_straggler[-1]
    assert 45 <= came < 45 + most_steps
    assert 130 <= went < 230
    slow = [slowed.slowdown for step, slowed in with_straggler if 120 <= step < 130]
    assert slow == pytest.approx([slowdown] * 10, rel=0.02 + scatter / 2)


# ------------------------------------------------------------------ several pipelines, and drift


@pytest.mark.parametrize(
    ("slow", "drifted"),
    [
        ({3: 1.1}, {}),
        # What all others have in common is the least of them: 1, not the 1.4 of another slow one.
        ({1: 1.2, 3: 1.4}, {}),
        ({}, {(1, "backward"): 1.08, (1, "forward"): 1.08}),
        ({}, {(1, "backward"): 0.95, (1, "forward"): 0.95}),
        ({}, {(0, "forward"): 1.04}),
    ],
)
def test_a_slow_rank_is_a_straggler_and_a_stage_that_is_slow_in_all_pipelines_has_drifted(
    slow: dict[int, float], drifted: dict[tuple[int, str], float]
) -> None:
    def factor(rank: int, step: int, kind: str) -> float:
        return slow.get(rank, 1.0) * drifted.get((rank % 2, kind), 1.0)

    [(step, found)] = changes_of(walked(THREE_PIPELINES, factor, 90))
    assert step == (RULES.num_drift_steps if drifted else RULES.windows[0]) - 1
    assert {one.rank: one.slowdown for one in found.stragglers} == pytest.approx(slow)
    assert {(one.stage, one.kind): one.slowdown for one in found.drifts} == pytest.approx(drifted)


def test_a_drift_that_is_over_is_forgotten_and_what_is_announced_is_none() -> None:
    def factor(rank: int, step: int, kind: str) -> float:
        return 1.035 if step < 90 else 1.0

    changes = changes_of(walked(THREE_PIPELINES, factor, 240))
    assert [len(found.drifts) for _, found in changes] == [4, 0]
    assert all(slowed.slowdown == pytest.approx(1.035) for slowed in changes[0][1].drifts)
    assert changes_of(walked(ONE_PIPELINE, factor, 90, announced=(0, 1))) == []


def test_a_straggler_is_slow_beyond_what_its_stage_has_drifted() -> None:
    def factor(rank: int, step: int, kind: str) -> float:
        return {1: 1.32, 3: 1.1, 5: 1.1}.get(rank, 1.0)

    changes = changes_of(walked(THREE_PIPELINES, factor, 90))
    _, found = changes[-1]
    [slowed] = found.stragglers
    assert slowed.rank == 1
    assert slowed.slowdown == pytest.approx(1.2)
    assert [round(drift.slowdown, 6) for drift in found.drifts] == [1.1, 1.1]


# ------------------------------------------------------------------ what a step tells


def test_a_step_that_was_not_run_as_planned_or_at_other_clocks_tells_nothing() -> None:
    changes: dict[str, Any]
    for changes in ({"plan_version": None}, {"num_unplanned": 1}, {"num_overruns": 2}):
        assert measured(ONE_PIPELINE[0], 0, as_profiled, **changes) is None
    rows = (("forward", 0, None, 4, 0.1, 0.0), ("forward", 0, 7, 4, 0.1, 0.0))
    for by_clock in (rows, None):  # the profile has no such clocks
        detail = StepDetail(job_id="job", rank=0, step=0, by_clock=by_clock)
        assert rank_step(ON_PLAN, detail, clock_times(PROFILE, 0)) is None


def test_late_clock_changes_do_not_look_like_stragglers() -> None:
    """Instructions of 5 and 9.2 ms, whose clocks come 5 ms late, on ranks that are not slow."""
    points = {
        key: tuple(
            replace(point, time_s=point.time_s / 10, energy_j=point.energy_j / 10)
            for point in of_key
        )
        for key, of_key in PROFILE.points.items()
    }
    profile = replace(PROFILE, points=points)
    options = PlanOptions(
        blocking_power_w=(83.64,), policy=Policy.ENVELOPE, effort=Effort.LOW, transition_ms=5.0
    )
    request = PlanRequest(profile=profile, num_microbatches=12, options=options)
    solved = make_plan(request)
    simulated = simulate(solved.model, solved.assignment)
    planned = planned_clock_times(profile, solved.plan)
    worst_error = 0.0
    for stage in range(2):
        rows = tuple(
            (
                str(solved.model.dag.instruction[node].kind),
                0,
                solved.model.points[node][choice].frequency_mhz,
                1,
                simulated.busy_s[node],
                0.0,
            )
            for node, choice in enumerate(solved.assignment)
            if solved.model.dag.stage[node] == stage
        )
        record = ON_PLAN.evolve(rank=stage)
        detail = StepDetail(job_id="job", rank=stage, step=0, by_clock=rows)
        found = rank_step(record, detail, planned[stage])
        profiled = rank_step(record, detail, clock_times(profile, stage))
        assert found is not None
        assert profiled is not None
        for times in found.by_kind.values():
            assert times.measured_s == pytest.approx(times.profiled_s)
        errors = [times.measured_s / times.profiled_s - 1 for times in profiled.by_kind.values()]
        worst_error = max(worst_error, *map(abs, errors))
    assert worst_error > 0.005
    at_once = make_plan(request.with_options(transition_ms=0.0)).plan
    assert planned_clock_times(profile, at_once) == [
        clock_times(profile, 0),
        clock_times(profile, 1),
    ]


def test_times_are_summed_by_kind_over_clocks_and_chunks() -> None:
    profile = replace(PROFILE, chunks=(PROFILE, PROFILE))
    times_s = clock_times(profile, 1)
    low, high = CLOCKS_MHZ[0], CLOCKS_MHZ[-1]
    rows = (("forward", 0, high, 2, 0.5, 0.1), ("forward", 1, low, 3, 0.25, 0.2))
    detail = StepDetail(job_id="job", rank=1, step=0, by_clock=rows)
    step = rank_step(ON_PLAN.evolve(rank=1), detail, times_s)
    assert step is not None
    forward = step.by_kind["forward"]
    assert forward.measured_s == pytest.approx(1.75)
    assert forward.variance_s2 == pytest.approx(0.8)
    assert forward.profiled_s == pytest.approx(
        2 * times_s["forward", 0, high] + 3 * times_s["forward", 1, low]
    )


# ------------------------------------------------------------------ announced work

LENGTHS = WorkCoefficients(0.2, 2e-4, 0.0)
WORK = StageWork(coefficients={(kind, 0): LENGTHS for kind in ("forward", "backward")}, error=0.01)


def worked(
    rank: RankRecord,
    step: int,
    work: StepWork,
    *,
    slowdown: float = 1.0,
    clocks_mhz: Sequence[int] = (1410,),
    known: StageWork = WORK,
) -> RankStep | None:
    """A step whose microbatches have work, each at another one of the clocks."""
    times_s = clock_times(PROFILE, rank.stage)
    by_clock: dict[tuple[str, int], list[float]] = {}
    for kind in ("forward", "backward"):
        for microbatch, each in enumerate(work):
            clock_mhz = clocks_mhz[microbatch % len(clocks_mhz)]
            time_s = slowdown * LENGTHS.factor(each) * times_s[kind, 0, clock_mhz]
            by_clock.setdefault((kind, clock_mhz), []).append(time_s)
    rows = tuple(
        (kind, 0, clock_mhz, len(found), fmean(found), 0.1)
        for (kind, clock_mhz), found in by_clock.items()
    )
    detail = StepDetail(job_id="job", rank=rank.rank, step=step, by_clock=rows, work=work)
    return rank_step(ON_PLAN.evolve(rank=rank.rank, step=step), detail, times_s, known)


def drawn_step_work(rng: random.Random, num_microbatches: int = 6) -> StepWork:
    return step_work([[rng.lognormvariate(8, 0.5)] for _ in range(num_microbatches)])


def test_a_steps_times_are_compared_with_those_of_its_work() -> None:
    """Whichever microbatch ran at which clock."""
    work = drawn_step_work(random.Random(1))
    for clocks_mhz in ((1410,), tuple(CLOCKS_MHZ[-3:]), tuple(CLOCKS_MHZ[:4])):
        step = worked(ONE_PIPELINE[0], 0, work, slowdown=1.07, clocks_mhz=clocks_mhz)
        assert step is not None
        for times in step.by_kind.values():
            assert times.measured_s / times.profiled_s == pytest.approx(1.07)
            # The scatter of the work within the step is none of its error.
            assert math.sqrt(times.variance_s2) / times.profiled_s < 0.01


def test_steps_of_unknown_work_are_compared_with_none() -> None:
    work = drawn_step_work(random.Random(1))
    assert worked(ONE_PIPELINE[0], 0, work, known=StageWork()) is None
    # Given factors are known without a fit.
    step = worked(ONE_PIPELINE[0], 0, step_work([0.8, 1.5]), known=StageWork())
    assert step is not None
    for times in step.by_kind.values():
        assert times.measured_s == pytest.approx(times.profiled_s)


@pytest.mark.parametrize(("slowdown", "num_stragglers"), [(1.0, 0), (1.06, 1)])
def test_only_a_slow_rank_is_a_straggler_whatever_the_steps_work(
    slowdown: float, num_stragglers: int
) -> None:
    rng = random.Random(7)
    steps: list[RankStep] = []
    for step in range(20):
        works = [drawn_step_work(rng) for _ in range(3)]
        for rank in THREE_PIPELINES:
            found = worked(
                rank,
                step,
                works[rank.dp_rank],
                slowdown=(slowdown if rank.rank == 2 else 1.0) * (1 + rng.gauss(0, 0.005)),
            )
            assert found is not None
            steps.append(found)
    slow = find_slowdowns(steps, THREE_PIPELINES, Slowdowns(), now_unix_s=NOW_S)
    assert [each.rank for each in slow.stragglers] == [2] * num_stragglers
    assert slow.drifts == ()
    if num_stragglers:
        assert slow.stragglers[0].slowdown == pytest.approx(slowdown, abs=0.01)


def test_the_factors_of_a_stage_are_those_of_its_places() -> None:
    model = WorkModel(
        places=((0, "forward", 0), (1, "forward", 0)),
        coefficients=((1.0, 0.0, 0.0), (2.0, 0.0, 0.0)),
        shared_error=0.03,
        own_error=0.04,
    )
    found = stage_work(model, 1)
    assert found.coefficients == {("forward", 0): (2.0, 0.0, 0.0)}
    assert found.error == pytest.approx(0.05)
    assert stage_work(None, 1).factors("forward", 0, ((0.5,), (2.0,))) == [0.5, 2.0]

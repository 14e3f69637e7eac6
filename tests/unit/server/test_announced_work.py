"""Jobs that announce the work of their steps: factors, and plans of steps from them."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import cache
from statistics import fmean, pstdev
from typing import Any

import pytest
from tests.planner.one_rank import store_measurements
from tests.planner.sample_plans import frequency_plan
from tests.planner.samples import job_spec
from tests.planner.use_cases import put_profile, register_job
from tests.planner.working_ranks import Lengths, WorkingRanks, WorkingStep

from flyball_pipeline.retiming import MAX_INSTRUCTIONS
from flyball_pipeline.work import WorkCoefficients, has_lengths_outside, step_work
from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import parse_stage_profile
from flyball_server.jobs.errors import UnrecordedRunsError
from flyball_server.jobs.findings.delays import DelayReconciler
from flyball_server.jobs.findings.news_of_work import NOT_ANNOUNCED, NUM_SILENT_STEPS
from flyball_server.jobs.findings.stragglers import StragglerReconciler
from flyball_server.jobs.findings.work_drift import WorkDriftReconciler, with_drifts
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.measurements.announced_work import (
    following,
    known_lengths,
    no_step_plans,
)
from flyball_server.jobs.measurements.step_reading import read_fold
from flyball_server.jobs.measurements.timed_steps import MOST_TIMED_STEPS
from flyball_server.jobs.planning_inputs import PlanningInputs, StageSlowdown, WorkModel
from flyball_server.jobs.reconcile.expiry import ExpiryReconciler
from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_server.jobs.registry.inspection import get_job, get_plan, notes
from flyball_server.jobs.registry.registration import leave_rank
from flyball_server.jobs.savings.comparisons import start_comparison
from flyball_server.jobs.savings.savings import savings_of
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.step_records import StepDetail, StepRecord
from flyball_server.jobs.versions import rank_plans
from flyball_server.prometheus.job_families import job_families
from flyball_server.views import job_reading
from flyball_server.views.job_figures import SharedReading
from flyball_server.views.job_reading import JobReading
from flyball_server.views.recorded_runs import get_recorded_runs
from flyball_wire.messages import JobState
from flyball_wire.plan_options import Policy
from flyball_wire.plans.rank_plan import RankPipeline
from flyball_wire.savings import MeasuredSavings

pytestmark = pytest.mark.slow

NUM_STAGES, NUM_MICROBATCHES, NUM_PIPELINES = 2, 6, 2
TRUE = {
    (0, "forward"): WorkCoefficients(0.10, 2.0e-4, 1.0e-8),
    (0, "backward"): WorkCoefficients(0.05, 2.1e-4, 1.2e-8),
    (1, "forward"): WorkCoefficients(0.00, 2.4e-4, 0.8e-8),
    (1, "backward"): WorkCoefficients(0.20, 1.6e-4, 1.5e-8),
}


@cache
def profile(num_stages: int = NUM_STAGES, *, forward_s: float = 0.05) -> StageProfile:
    """Forward 0.05 s and backward 0.1 s at 1400 MHz; slow clocks save."""
    rows = (
        f"{stage},{kind},{mhz},{time_s * 1400 / mhz:.6f},{300 * time_s * (mhz / 1400) ** 1.5:.4f}"
        for stage in range(num_stages)
        for kind, time_s in (("forward", forward_s), ("backward", 2 * forward_s))
        for mhz in range(1400, 900, -50)
    )
    return parse_stage_profile("stage,instruction,frequency,time,energy\n" + "\n".join(rows))


def lengths_of(chance: random.Random, num_microbatches: int = NUM_MICROBATCHES) -> Lengths:
    """Two sequences a microbatch, of some 4000 tokens together."""
    return [[chance.lognormvariate(7.5, 0.4) for _ in range(2)] for _ in range(num_microbatches)]


def job(services: JobServices, changes: dict[str, Any] | None = None, **ranks: Any) -> WorkingRanks:  # noqa: ANN401
    """A job of two stages and two pipelines, whose first version all ranks have taken."""
    of_ranks: dict[str, Any] = {
        "num_pipelines": NUM_PIPELINES,
        "num_stages": NUM_STAGES,
        "true": TRUE,
        "draw": lengths_of,
    } | ranks
    num_stages = of_ranks["num_stages"]
    spec = {
        "num_stages": num_stages,
        "num_microbatches": NUM_MICROBATCHES,
        "num_ranks": num_stages * of_ranks["num_pipelines"],
        "effort": "low",
        "reserve": 0.0,
        "transition_ms": None if "gpu" in (changes or {}) else 0.0,  # given: at once
    }
    register_job(services, "job", job_spec(**spec | (changes or {})))
    working = WorkingRanks(services=services, profile=profile(num_stages), **of_ranks)
    working.register()
    put_profile(services, "job", working.profile)
    working.take()
    return working


def loop_state(services: JobServices) -> JobLoopState:
    with services.store.reading() as reader:
        return reader.find_loop_state("job")


def work_of(services: JobServices) -> WorkModel | None:
    return loop_state(services).work


def known_work(services: JobServices) -> WorkModel:
    known = work_of(services)
    assert known is not None
    return known


def own_part(working: WorkingRanks) -> RankPipeline:
    """Return the pipeline from which its first rank chooses the clocks of each step."""
    part = working.parts[0].pipeline
    assert part is not None
    return part


def notes_of_work(services: JobServices) -> list[str]:
    return [each for each in notes(services, get_job(services, "job")) if "work" in each]


def reconciled(services: JobServices) -> None:
    """Measure the newest steps, and plan for what they say."""
    DelayReconciler()(services, "job")
    PlanReconciler()(services, "job")


def measured(working: WorkingRanks, num_steps: int = MOST_TIMED_STEPS + 1) -> int:
    """Run so many steps, have them measured, and take what is new; the version in force."""
    before = working.newest
    working.run(num_steps)
    reconciled(working.services)
    return working.take() if working.newest > before else before


def test_announced_lengths_give_each_step_a_plan_of_its_own(services: JobServices) -> None:
    working = job(services)
    assert all(part.pipeline is None for part in working.parts.values())
    assert measured(working) == 2
    part = own_part(working)
    known = known_work(services)
    found = dict(zip(known.places, part.coefficients, strict=True))
    for (stage, kind), true in TRUE.items():
        assert found[stage, kind, 0] == pytest.approx(true, rel=0.01, abs=1e-9)
    assert known.error < 0.001
    assert part.reserve == (0.0, 0.0)
    assert part.deadline_ratio == 1.0
    steps = working.run(20)
    assert len({mhz for step in steps for mhz in step.clocks_mhz}) > 3
    for step in steps:
        assert step.time_s <= step.highest_s * (1 + 1e-3)
    saved = 1 - sum(step.energy_j for step in steps) / sum(step.highest_j for step in steps)
    assert saved > 0.08
    # What these steps say is the same, although each ran at clocks of its own.
    assert measured(working, 1) == 2
    assert work_of(services) == known


def test_a_job_that_announces_is_not_held_at_the_highest_clocks(services: JobServices) -> None:
    working = job(services, announced=lambda _: None, num_pipelines=1)
    assert measured(working) == 2
    assert get_plan(services, "job", 2).plan.policy == "baseline"
    (note,) = [each for each in notes(services, get_job(services, "job")) if "differ" in each]
    assert "announce the work of each step" in note
    # It begins to: measured at the highest clocks, and then each step has a plan.
    working.run(3)
    assert measured(working, 14) == 2
    working.announced = step_work
    working.run(3)
    reconciled(services)
    assert working.newest == 2
    working.run(1)
    reconciled(services)
    working.take()
    assert working.newest == 3
    assert own_part(working).coefficients == ()
    assert [step.clocks_mhz for step in working.run(3)] == [{1400}] * 3
    (note,) = notes_of_work(services)
    assert "is being measured" in note
    assert measured(working, 15) == 4
    assert len(own_part(working).coefficients) == 4
    assert get_plan(services, "job", 4).plan.policy == "frontier"
    assert notes(services, get_job(services, "job")) == ()


def test_errors_that_microbatches_share_get_a_reserve(services: JobServices) -> None:
    working = job(services, error=0.015)
    measured(working)
    assert 0.01 < own_part(working).reserve[0] < 0.035
    steps = working.run(40)
    longer = fmean(step.time_s / step.highest_s - 1 for step in steps)
    assert longer < 0.002


def test_errors_above_the_limit_end_step_plans_with_a_note(services: JobServices) -> None:
    working = job(services, error=0.1)
    assert measured(working) == 2
    assert working.parts[0].pipeline is None
    assert known_work(services).problem is not None
    (note,) = notes_of_work(services)
    assert "at most 3 % are allowed (max_work_error)" in note
    assert get_plan(services, "job", 2).plan.policy == "baseline"


def test_a_step_without_work_does_not_void_that_of_the_others(services: JobServices) -> None:
    """Else what work makes longer would count as jitter."""
    working = job(services, {"reserve": None}, error=0.01)
    missing = working.step + 3
    working.announced = lambda each: None if working.step == missing else step_work(each)
    assert measured(working) == 2
    found = loop_state(services).delays
    assert found is not None
    assert found.num_steps == MOST_TIMED_STEPS - 1
    assert found.jitter < 0.03
    assert (
        known_work(services).num_microbatches == found.num_steps * NUM_MICROBATCHES * NUM_PIPELINES
    )


def test_a_slow_gpu_does_not_end_step_plans(services: JobServices) -> None:
    """Pooled, a rank 15 % slower than two others is an error of 7 %."""
    working = job(services, error=0.01, slowdowns={2: 1.15, 3: 1.15}, num_pipelines=3)
    measured(working)
    known = known_work(services)
    assert known.problem is None
    assert known.error == pytest.approx(0.01, abs=0.003)
    for (stage, kind, _), found in zip(known.places, known.coefficients, strict=True):
        factor = TRUE[stage, kind].factor(known.mean_work)
        assert WorkCoefficients(*found).factor(known.mean_work) == pytest.approx(factor, rel=0.01)


def test_slow_gpus_are_found_where_steps_get_no_plans_of_their_own(services: JobServices) -> None:
    working = job(services, {"adaptation": "frontier"}, error=0.1)
    measured(working)
    assert known_work(services).problem is not None
    measured(working, 17)
    working.slowdowns = {2: 1.3}
    detects = StragglerReconciler()
    for _ in range(12):
        working.run(5)
        detects(services, "job")
    assert [slowed.rank for slowed in loop_state(services).detected] == [2]


def test_orders_that_never_flush_and_large_pipelines_have_none_with_a_note() -> None:
    plan = frequency_plan()
    assert no_step_plans(plan) is None
    assert no_step_plans(plan, Policy.BASELINE) == "policy baseline keeps the highest clocks"
    periodic = replace(plan, schedule="pipedream", weight_versions=(2, 1))
    assert no_step_plans(periodic) == "the order pipedream never flushes, so it has no steps"
    ((pipeline,), num) = plan.pipelines, MAX_INSTRUCTIONS // sum(map(len, plan.stages)) + 1
    large = replace(pipeline, stages=tuple(stage * num for stage in pipeline.stages))
    found = no_step_plans(replace(plan, pipelines=(large,)))
    assert found is not None
    assert "ranks choose clocks of at most 33000 in time" in found
    inputs = PlanningInputs(work=WorkModel(problem=found))
    assert inputs.step_work is None
    assert inputs.work_note is not None
    assert inputs.work_note.startswith("announced work is not used, and steps get no plans of")


def test_parts_too_large_for_ranks_keep_the_highest_clocks_with_one_note(
    services: JobServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_plans, "MAX_PART_BYTES", 6000)
    working = job(services, error=0.01, num_pipelines=1)
    assert measured(working) == 2
    assert working.parts[0].pipeline is None
    assert get_plan(services, "job", 2).plan.policy == "baseline"
    (note,) = notes_of_work(services)
    assert "announced work is not used" in note
    assert "at most 5400 are sent" in note
    assert measured(working) == 2
    assert {mhz for step in working.run(5) for mhz in step.clocks_mhz} == {1400}


def test_the_limit_of_errors_is_an_option(services: JobServices) -> None:
    working = job(services, {"max_work_error": 0.2}, error=0.1)
    measured(working)
    assert own_part(working).reserve[0] > 0.1


def test_given_factors_need_no_coefficients(services: JobServices) -> None:
    """All instructions of a microbatch take its factor."""
    same = WorkCoefficients(0.0, 2.5e-4, 0.0)

    def factors(lengths: Lengths) -> Any:  # noqa: ANN401
        return step_work([2.5e-4 * sum(each) for each in lengths])

    working = job(services, true=dict.fromkeys(TRUE, same), announced=factors, num_pipelines=1)
    assert measured(working) == 2
    assert own_part(working).coefficients == ()
    steps = working.run(10)
    assert all(step.time_s <= step.highest_s * (1 + 1e-9) for step in steps)
    assert sum(step.energy_j for step in steps) < 0.95 * sum(step.highest_j for step in steps)


def test_a_slowdown_is_granted_to_each_step(services: JobServices) -> None:
    working = job(services, {"target": "slowdown:10%"}, num_pipelines=1)
    measured(working)
    part = own_part(working)
    plan = get_plan(services, "job", 2).plan
    assert part.deadline_ratio == pytest.approx(
        plan.iteration_time_s / plan.predicted.baseline_iteration_time_s
    )
    assert 1.05 < part.deadline_ratio <= 1.1 + 1e-9
    for step in working.run(10):
        assert 1.0 < step.time_s / step.highest_s <= part.deadline_ratio * (1 + 1e-3)


def test_late_changes_and_the_calls_of_a_node_are_sent(services: JobServices) -> None:
    working = job(services, {"gpu": "a100", "gpus_in_node": 8, "gpus_at_once": 2}, num_pipelines=1)
    measured(working)
    part = own_part(working)
    assert part.change_delays_s is not None
    times = get_plan(services, "job", 2).plan.transitions
    assert times is not None
    up_s, down_s = part.change_delays_s
    assert down_s == times.down_p5_s
    assert up_s == pytest.approx(times.up_p95_s + 6 * times.call_mean_s)


def test_unknown_clock_changes_count_as_the_slowest_that_are_known(services: JobServices) -> None:
    working = job(services, {"transition_ms": None})
    measured(working)
    assert own_part(working).change_delays_s == pytest.approx((0.0092 + 3 * 0.0048, 0.0026))


def test_one_microbatch_a_step_is_measured_in_more_steps(services: JobServices) -> None:
    """Two ranks, each of one instruction of each kind: 24 microbatches say little."""
    working = job(
        services,
        {"num_microbatches": 1, "schedule": "1f1b"},
        num_stages=1,
        num_pipelines=2,
        draw=lambda chance: lengths_of(chance, 1),
        error=0.01,
    )
    measured(working)
    assert working.parts[0].num_timed_steps == 64
    assert known_work(services).num_microbatches == 24
    measured(working, 65)
    assert working.parts[0].pipeline is not None
    steps = working.run(40)
    assert fmean(step.time_s / step.highest_s - 1 for step in steps) < 0.002


def test_a_job_that_ends_to_announce_follows_one_plan_again(services: JobServices) -> None:
    constant = dict.fromkeys(TRUE, WorkCoefficients(1.0, 0.0, 0.0))
    working = job(services, true=constant, num_pipelines=1)
    measured(working)
    assert working.parts[0].pipeline is not None
    working.announced = lambda _: None
    version = working.newest
    # Of a version without announced work; its own timed steps are over.
    working.profile = profile(forward_s=0.1)
    put_profile(services, "job", working.profile)
    working.take()
    assert working.newest == version + 1
    assert own_part(working).coefficients == (), "those of another profile"
    measured(working, 18)
    assert working.parts[0].pipeline is None
    assert work_of(services) == WorkModel(problem=NOT_ANNOUNCED, num_before=1)


def test_a_pipeline_that_ends_to_announce_ends_it_for_the_job(services: JobServices) -> None:
    """Steps have plans where all pipelines announce, so without its work all run as planned."""
    working = job(services, error=0.01)
    measured(working)
    measured(working, 17)
    version = working.newest
    working.silent = {1}
    working.run(NUM_SILENT_STEPS - 1)
    reconciled(services)
    assert working.newest == version
    working.run(1)
    reconciled(services)
    assert working.take() == version + 1
    assert work_of(services) == WorkModel(problem=NOT_ANNOUNCED, num_before=1)
    (note,) = notes_of_work(services)
    assert NOT_ANNOUNCED in note
    assert working.parts[0].pipeline is None
    # It begins again with all of them, once its delays are measured, and after some more steps.
    measured(working, 20)
    version = working.newest
    measured(working, 60)
    assert working.newest == version
    working.silent = ()
    measured(working, 4)
    assert working.newest == version + 1
    measured(working, 17)
    assert working.parts[0].pipeline is not None
    assert notes(services, get_job(services, "job")) == ()


def test_a_job_that_ends_to_announce_often_waits_longer_to_begin(services: JobServices) -> None:
    """After two models 16 steps of a version are 64."""
    working = job(services, num_pipelines=1, announced=lambda _: None)
    measured(working)
    measured(working, 17)
    version, begun = working.newest, get_plan(services, "job", working.newest).first_step
    ended = WorkModel(problem=NOT_ANNOUNCED, num_before=2)
    with services.store.writing("job") as writer:
        writer.save_loop_state(writer.find_loop_state("job").evolve(work=ended))
    working.announced = step_work
    assert begun is not None
    measured(working, begun + 64 - working.step + 3)
    assert working.newest == version
    measured(working, 1)
    assert working.newest == version + 1
    assert work_of(services) == WorkModel(num_before=2)


@pytest.mark.parametrize("has_version", [False, True])
def test_a_single_step_of_absurd_number_begins_nothing(
    services: JobServices, has_version: bool
) -> None:
    working = job(services, announced=lambda _: None, num_pipelines=1)
    measured(working)
    version, far = working.newest, 10**12
    record = StepRecord(
        job_id="job",
        rank=0,
        step=far,
        plan_version=version if has_version else version - 1,
        time_s=1.0,
        energy_j=1.0,
    )
    detail = StepDetail(job_id="job", rank=0, step=far, work=((1.0,),))
    store_measurements(services, "job", 0, [record], [detail])
    for _ in range(4):
        measured(working, 16)
    assert work_of(services) is None
    assert working.newest == version


def test_drifted_times_give_ranks_other_factors(services: JobServices) -> None:
    working = job(services, error=0.01)
    measured(working)
    measured(working, 17)
    drift = WorkDriftReconciler()
    version = working.newest

    def run(num_steps: int) -> None:
        for _ in range(num_steps // 10):
            working.run(10)
            drift(services, "job")
            PlanReconciler()(services, "job")

    run(60)
    assert working.newest == version
    before = known_work(services)
    working.true = {
        (stage, kind): WorkCoefficients(*(each * (1.08 if stage else 1.0) for each in of))
        for (stage, kind), of in TRUE.items()
    }
    run(90)
    assert working.newest == version + 1
    working.take()
    after = known_work(services)
    for (stage, kind, _), old, new in zip(
        before.places, before.coefficients, after.coefficients, strict=True
    ):
        found = WorkCoefficients(*new).factor(after.mean_work)
        ratio = found / WorkCoefficients(*old).factor(after.mean_work)
        assert ratio == pytest.approx(1.08 if stage else 1.0, abs=0.03), (stage, kind)
    # Its first steps say as much, and it stays.
    measured(working, 17)
    run(60)
    assert working.newest == version + 1


def test_each_drift_takes_a_larger_one_than_before() -> None:
    """Times of a kind that are 5 % longer and as long as before, in turns."""
    known, num_new = MODEL, 0
    for turn in range(20):
        slope = 1.05e-3 if turn % 2 == 0 else 1.0e-3
        drift = StageSlowdown(stage=0, kind="forward", slowdown=slope / known.coefficients[0][1])
        found = with_drifts(known, [drift])
        if found is not None:
            assert found.coefficients[0][1] == pytest.approx(slope)
            known, num_new = found, num_new + 1
    assert num_new == 2  # beyond 2 %, beyond 4 %, and 8 % is more
    # A large drift is always followed.
    large = StageSlowdown(stage=0, kind="forward", slowdown=1.2)
    assert with_drifts(replace(MODEL, num_drifts=50), [large]) is not None


@pytest.mark.parametrize(("num_drifts", "limit"), [(0, 0.02), (1, 0.04), (3, 0.16), (4, 0.16)])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_drift_beyond_the_limit_scales_all_of_its_stages_coefficients(
    num_drifts: int, limit: float, sign: int
) -> None:
    known = replace(
        MODEL,
        places=((0, "forward", 0), (0, "forward", 1), (0, "backward", 0), (1, "forward", 0)),
        coefficients=((0.1, 2e-4, 1e-8), (0.2, 3e-4, 2e-8), (0.3, 4e-4, 3e-8), (0.4, 5e-4, 4e-8)),
        num_drifts=num_drifts,
    )

    def drift(share: float) -> list[StageSlowdown]:
        still = StageSlowdown(stage=1, kind="forward", slowdown=1.0)
        return [still, StageSlowdown(stage=0, kind="forward", slowdown=1 + sign * share)]

    assert with_drifts(known, drift(0.99 * limit)) is None
    found = with_drifts(known, drift(1.01 * limit))
    assert found is not None
    factor = 1 + sign * 1.01 * limit
    assert found == replace(
        known,
        coefficients=(
            (factor * 0.1, factor * 2e-4, factor * 1e-8),
            (factor * 0.2, factor * 3e-4, factor * 2e-8),
            *known.coefficients[2:],
        ),
        num_drifts=num_drifts + 1,
    )


def savings(services: JobServices, version: int) -> MeasuredSavings:
    """What steps of a version have saved, measured."""
    with services.store.reading() as reader:
        fold = read_fold(reader, reader.require_job("job"))
    return next(each for each in savings_of(fold).versions if each.version == version)


def test_savings_are_those_at_equal_work(services: JobServices) -> None:
    """Steps take 7 % more or less energy; what a step saves varies by 6 points."""
    working = job(services, error=0.01, num_pipelines=3)
    measured(working)
    measured(working, 20)
    start_comparison(services, "job", 24)
    PlanReconciler()(services, "job")
    version = working.take()
    steps = working.run(100)
    found = savings(services, version)
    assert found.baseline == "interleaved"
    on_plan = [step for step in steps if step.clocks_mhz != {1400}]
    true = 100 * (1 - sum_of(on_plan, "energy_j") / sum_of(on_plan, "highest_j"))
    percent, slowdown = found.saving_percent, found.slowdown_percent
    assert percent is not None
    assert percent.low is not None
    assert percent.mean == pytest.approx(true, abs=0.3)
    assert percent.low > true - 2
    # Times of steps differ by as much, and not at equal work.
    assert slowdown is not None
    assert slowdown.low is not None
    assert slowdown.high is not None
    assert -0.4 < slowdown.low < slowdown.high < 0.5
    assert pstdev(step.highest_s for step in steps) > 0.05 * fmean(step.highest_s for step in steps)
    with pytest.raises(UnrecordedRunsError, match="its steps announced work"):
        get_recorded_runs(services, "job")
    # The earlier version's steps are compared with these at equal work, too.
    apart = savings(services, 2)
    assert apart.baseline == "apart"
    assert apart.saving_percent is not None
    assert apart.saving_percent.mean == pytest.approx(true, abs=2.5)
    assert apart.slowdown_percent is not None
    assert apart.slowdown_percent.mean == pytest.approx(0.0, abs=0.4)


def test_savings_stay_those_at_equal_work_where_a_job_ends(services: JobServices) -> None:
    """The work of steps that were not added yet is counted before it is dropped."""
    working = job(services, error=0.01, num_pipelines=1)
    measured(working)
    measured(working, 20)
    start_comparison(services, "job", 6)
    PlanReconciler()(services, "job")
    version = working.take()
    working.run(13)
    before = savings(services, version)
    assert before.saving_percent is not None
    for rank in working.ranks:
        leave_rank(services, "job", rank.rank)
    ExpiryReconciler()(services, "job")
    assert get_job(services, "job").job.state == JobState.ENDED
    assert savings(services, version) == before


def test_the_newest_steps_own_plan_is_shown(
    services: JobServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = job(services)
    figures = SharedReading(JobReading(services, max_labelled=5), clock=itertools.count().__next__)
    working.run(MOST_TIMED_STEPS + 1)
    assert figures.overview_of("job").own_plan is None
    reconciled(services)
    working.take()
    (step,) = working.run(30)[-1:]
    shown = figures.overview_of("job").own_plan
    assert shown is not None
    assert shown.step == working.step - 1
    assert shown.num_ranks == NUM_STAGES * NUM_PIPELINES
    assert (shown.lowest_mhz, shown.highest_mhz) == (min(step.clocks_mhz), max(step.clocks_mhz))
    assert shown.slack == pytest.approx(0.1)
    assert shown.predicted_saved_j == 4.0
    clocks = f"{shown.lowest_mhz} to {shown.highest_mhz} MHz"
    assert shown.text == f"step {shown.step}: 10 % slack, {clocks}"
    monkeypatch.setattr(job_reading, "_MOST_RANKS", 3)
    with services.store.reading() as reader:
        part = job_reading.newest_own_plan(reader, "job", shown.step)
    assert part is not None
    assert (part.num_ranks, part.predicted_saved_j) == (3, 3.0)
    assert part.text.startswith(f"step {shown.step}, first 3 ranks: 10 % slack")
    with figures.jobs() as jobs:
        families = {family.name: family for family in job_families(jobs)}
    (sample,) = families["flyball_own_plan_slack_ratio"].samples
    assert sample.value == pytest.approx(0.1)


def sum_of(steps: list[WorkingStep], name: str) -> float:
    return float(sum(getattr(step, name) for step in steps))


MODEL = WorkModel(
    version=1,
    num_microbatches=100,
    places=((0, "forward", 0),),
    coefficients=((0.0, 1e-3, 0.0),),
    mean_work=(1000.0, 1e6),
    mean_products=(1.04e6, 1e9, 1e12),  # lengths deviate by 200
    shared_error=0.01,
    reserve=(0.01, 0.0),
)


@pytest.mark.parametrize(
    ("changes", "is_news"),
    [
        ({}, False),
        ({"coefficients": ((0.0, 1.03e-3, 0.0),)}, False),
        ({"coefficients": ((0.0, 1.05e-3, 0.0),)}, True),
        ({"coefficients": ((0.25, 0.75e-3, 0.0),)}, True),  # as long at the mean work, 5 % off
        ({"coefficients": ((0.15, 0.85e-3, 0.0),)}, False),
        ({"coefficients": ((0.15, 0.85e-3, 0.0),), "shared_error": 0.025}, True),  # 3.9 % in all
        ({"reserve": (0.019, 0.0)}, False),
        ({"reserve": (0.021, 0.0)}, True),
        ({"num_queued": 6}, True),
        ({"shared_error": 0.031, "problem": "too much"}, False),
        ({"shared_error": 0.04, "problem": "too much"}, True),
        ({"num_microbatches": 0, "places": (), "coefficients": ()}, False),
    ],
)
def test_ranks_get_new_factors_only_where_they_matter(
    changes: dict[str, Any], is_news: bool
) -> None:
    after = WorkModel(**vars(MODEL) | {"version": 2} | changes)
    found = following(MODEL, after, limit=0.03)
    assert (found is not None) is is_news
    if found is not None:
        assert found.num_before == 1


def test_factors_that_vary_from_version_to_version_end_it_soon() -> None:
    known, num_new = MODEL, 0
    for version in range(2, 20):
        slope = 1e-3 if version % 2 else 1.2e-3
        after = WorkModel(**vars(MODEL) | {"coefficients": ((0.0, slope, 0.0),)})
        found = following(known, after, limit=0.03)
        if found is not None:
            known, num_new = found, num_new + 1
    # Three were replaced; the fourth does not predict the fifth's times, and steps' plans end.
    assert num_new == 4
    assert known.problem is not None
    assert "varies from one plan version to the next; times differ" in known.problem


def test_step_plans_begin_again_only_with_errors_well_below_the_limit() -> None:
    failed = replace(MODEL, shared_error=0.04, problem="too much", num_before=1)
    least = 0.03 / 1.25
    assert following(failed, replace(MODEL, shared_error=least * 1.01), limit=0.03) is None
    again = following(failed, replace(MODEL, shared_error=least * 0.99), limit=0.03)
    assert again is not None
    assert (again.problem, again.num_before) == (None, 2)
    # At 1.25 times the limit and 0.99 times, alternately, they end once.
    known, num_new = MODEL, 0
    for version in range(2, 40):
        error, problem = (0.04, "too much") if version % 2 else (0.0297, None)
        found = following(known, replace(MODEL, shared_error=error, problem=problem), limit=0.03)
        known, num_new = found or known, num_new + (found is not None)
    assert num_new == 1
    # Nor after three models.
    failed = replace(failed, num_before=4)
    assert following(failed, replace(MODEL, shared_error=0.001), limit=0.03) is None


def test_factors_of_equal_lengths_are_measured_anew_for_other_ones(services: JobServices) -> None:
    """Of short ones, all equal, nothing follows for those that are four times as long."""
    equal = [[500.0, 500.0]] * NUM_MICROBATCHES
    working = job(services, error=0.005, draw=lambda _: equal, num_pipelines=1)
    measured(working)
    measured(working, 17)
    assert known_work(services).lengths_range == (1000.0, 1000.0)
    version, part = working.newest, working.parts[0].pipeline
    assert part is not None
    assert part.lengths_range == pytest.approx((1000 / 1.5, 1500))
    assert [step.clocks_mhz for step in working.run(1)] != [{1400}]
    # Until the next version they run at the highest clocks, and not at what a wrong slope says.
    working.draw = lengths_of
    assert [step.clocks_mhz for step in working.run(2)] == [{1400}] * 2
    reconciled(services)
    assert working.take() == version + 1
    assert [step.clocks_mhz for step in working.run(2)] == [{1400}] * 2
    measured(working, 17)
    steps = working.run(30)
    longer = sum(step.time_s for step in steps) / sum(step.highest_s for step in steps) - 1
    assert longer < 0.002
    saved = 1 - sum(step.energy_j for step in steps) / sum(step.highest_j for step in steps)
    assert saved > 0.05


def test_lengths_far_outside_a_narrow_range_are_other_ones() -> None:
    narrow = WorkModel(**vars(MODEL) | {"lengths_range": (1000.0, 1400.0)})
    known = known_lengths(narrow)
    assert known == pytest.approx((1000 / 1.5, 2100.0))
    assert known_lengths(MODEL) is None  # of factors alone
    assert known_lengths(replace(narrow, lengths_range=(1000.0, 1600.0))) is None
    inside = [step_work([[1500.0], [700.0]]), step_work([3.0])]
    assert [has_lengths_outside(each, known) for each in inside] == [False, False]
    assert has_lengths_outside(step_work([[1200.0], [2200.0]]), known)
    assert has_lengths_outside(step_work([[600.0]]), known)
    assert not has_lengths_outside(step_work([[600.0]]), None)
    # A second time takes more.
    later = known_lengths(replace(narrow, num_before=1))
    assert not has_lengths_outside(step_work([[600.0], [3000.0]]), later)

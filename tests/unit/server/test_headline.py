"""The headline of a job: a saving with the time that it takes and what limits the comparison."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from tests.planner import folds
from tests.planner.folds import fold_of
from tests.planner.one_rank import register_rank, store_measurements
from tests.planner.sample_plans import frequency_plan
from tests.planner.samples import (
    CountingPlanner,
    Services,
    job_spec,
    plan_record,
    rank_record,
    step_record,
)
from tests.planner.use_cases import register_job

from flyball_profiles.stage_profile import EnergyScope
from flyball_server.jobs.loop_state import GpuChange
from flyball_server.jobs.measurements.step_pairs import StepKinds
from flyball_server.jobs.planning_inputs import PlanningInputs, RankSlowdown
from flyball_server.jobs.savings.headline import headline_of
from flyball_server.jobs.savings.savings import savings_of
from flyball_server.jobs.step_records import StepTotals
from flyball_server.views.job_figures import SharedReading
from flyball_server.views.job_reading import JobReading
from flyball_server.views.report import get_report
from flyball_wire.read_models import PredictedIteration
from flyball_wire.savings import BaselineOrigin, Estimate, Headline, MeasuredSavings

PREDICTED = PredictedIteration(
    iteration_time_s=2.1,
    energy_j=800.0,
    baseline_iteration_time_s=2.0,
    baseline_energy_j=1000.0,
    saving_percent=20.0,
    gap_percent=None,
)


def estimate(mean: float, half_width: float = 0.2) -> Estimate:
    return Estimate(mean=mean, low=mean - half_width, high=mean + half_width, num_steps=30)


def headline(
    saving: float | None, slower: float = 0.0, *, active_version: int = 1, **changes: object
) -> Headline:
    measured = MeasuredSavings(
        version=1,
        num_steps=30,
        saving_percent=None if saving is None else estimate(saving),
        slowdown_percent=estimate(slower),
    )
    savings = replace(measured, **changes)  # type: ignore[arg-type]  # a test's own choice
    found = headline_of([savings], PREDICTED, active_version=active_version)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("saving", "slower", "text", "tone"),
    [
        (25.1, 9.1, "25.1 % less energy (24.9 to 25.3) at 9.1 % more time (8.9 to 9.3)", "trade"),
        (12.0, 0.04, "12.0 % less energy (11.8 to 12.2) with no measurable change in time", "gain"),
        (12.0, 0.1, "12.0 % less energy (11.8 to 12.2) with no measurable change in time", "gain"),
        (12.0, -1.0, "12.0 % less energy (11.8 to 12.2) in 1.0 % less time (0.8 to 1.2)", "gain"),
        (-3.0, 9.1, "3.0 % more energy (2.8 to 3.2) at 9.1 % more time (8.9 to 9.3)", "loss"),
        (0.1, 0.0, "no measurable change in energy or time", "none"),
        (0.1, 2.0, "no measurable change in energy at 2.0 % more time (1.8 to 2.2)", "none"),
    ],
)
def test_a_saving_and_its_time_are_said_with_what_was_measured_of_them(
    saving: float, slower: float, text: str, tone: str
) -> None:
    found = headline(saving, slower)
    assert (found.text, found.tone, found.is_measured) == (text, tone, True)
    assert found.time_text in found.text or text == "no measurable change in energy or time"
    same = headline(saving, slowdown_percent=estimate(0.0, 0.01))
    assert same.time_text == "in the same time"
    assert found.caveats == ()
    [caveat] = headline(saving, slower, active_version=2).caveats
    assert "version 1; version 2, in force now" in caveat


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"baseline": BaselineOrigin.NONE}, "No step at the highest clocks"),
        ({"baseline": BaselineOrigin.ITSELF}, "The plan in force is the baseline"),
        ({"baseline": BaselineOrigin.APART}, "cannot read the energy"),
        ({"num_steps": 0}, "No step on a plan"),
        (
            {"saving_percent": Estimate(mean=9.9, low=None, high=None, num_steps=1)},
            "Too few steps have been measured",
        ),
    ],
)
def test_a_predicted_headline_says_why_it_is_not_measured(
    changes: dict[str, object], reason: str
) -> None:
    found = headline(None, **changes)  # type: ignore[arg-type]  # as above
    assert (found.text, found.is_measured) == ("20.0 % less energy at 5.0 % more time", False)
    assert reason in " ".join(found.caveats)
    assert headline_of([], None, active_version=None) is None


def test_a_plan_that_changes_nothing_is_not_said_to_be_measured() -> None:
    same = replace(PREDICTED, saving_percent=1e-9, iteration_time_s=2.0)
    found = headline_of([], same, active_version=1)
    assert found is not None
    assert (found.text, found.tone) == ("no change in energy or time", "none")
    slower = headline_of([], replace(same, iteration_time_s=2.1), active_version=1)
    assert slower is not None
    assert slower.text == "no change in energy at 5.0 % more time"


# ------------------------------------------------------------------ stragglers


# Without its stragglers the baseline takes 2 s; with them, and with the plan, 2.2 s.
SLOWED = replace(PREDICTED, iteration_time_s=2.2, baseline_iteration_time_s=2.2, stragglers_s=0.2)


def slowed(slower: float, predicted: PredictedIteration = SLOWED, **changes: object) -> Headline:
    measured = MeasuredSavings(
        version=1,
        num_steps=30,
        baseline=BaselineOrigin.APART,
        saving_percent=estimate(25.1),
        slowdown_percent=estimate(slower),
    )
    savings = replace(measured, **changes)  # type: ignore[arg-type]  # a test's own choice
    found = headline_of([savings], predicted, active_version=1, slow_ranks=(2, 7))
    assert found is not None
    return found


@pytest.mark.parametrize(("slower", "theirs"), [(9.0, "9.0"), (10.0, "10.0"), (12.0, "10.0")])
def test_time_that_stragglers_add_is_not_charged_to_the_plan(slower: float, theirs: str) -> None:
    found = slowed(slower)
    assert found.time_text == f"at {slower:.1f} % more time, {theirs} % from ranks 2 and 7"
    assert found.text.endswith(
        f"({slower - 0.2:.1f} to {slower + 0.2:.1f}), {theirs} % from ranks 2 and 7"
    )
    assert found.tone == "gain"
    assert found.caveats[0] == "Ranks 2 and 7 were not slow yet when the baseline was measured."


def test_a_plan_that_takes_longer_beside_stragglers_still_trades_time() -> None:
    """5 % of the plan on 10 % of the stragglers: 2.31 s against 2 s."""
    found = slowed(15.5, replace(SLOWED, iteration_time_s=2.31))
    assert found.time_text == "at 15.5 % more time, 10.0 % from ranks 2 and 7"
    assert found.tone == "trade"


@pytest.mark.parametrize(
    ("slower", "predicted", "changes"),
    [
        # The baseline was measured with them: the 5 % are the plan's own.
        (5.0, replace(SLOWED, iteration_time_s=2.31), {}),
        (9.0, SLOWED, {"baseline": BaselineOrigin.INTERLEAVED}),
        (9.0, replace(SLOWED, stragglers_s=0.0), {}),
        (0.1, SLOWED, {}),
    ],
)
def test_stragglers_that_the_baseline_has_too_are_not_named(
    slower: float, predicted: PredictedIteration, changes: dict[str, object]
) -> None:
    found = slowed(slower, predicted, **changes)
    assert "ranks" not in found.text + "".join(found.caveats)


# ------------------------------------------------------------------ the baseline


def steps(numbers: Iterable[int], version: int | None, energy_j: float) -> list[StepTotals]:
    return folds.steps(numbers, version, time_s=2.0, energy_j=energy_j)


def caveats(
    measured: list[StepTotals], *changes: GpuChange, kinds: StepKinds | None = None
) -> tuple[str, ...]:
    [version] = savings_of(fold_of({1: kinds or StepKinds()}, measured), changes).versions
    return version.caveats


APART = [*steps(range(20), None, 100.0), *steps(range(200, 231), 1, 90.0)]


@pytest.mark.parametrize(
    ("after_step", "is_said"), [(0, False), (19, True), (120, True), (210, True), (230, False)]
)
def test_a_baseline_of_another_time_or_of_other_gpus_is_named(
    after_step: int, is_said: bool
) -> None:
    changes = [GpuChange(rank=rank, after_step=after_step) for rank in (3, 1, 3)]
    distant, *others = caveats(APART, *changes)
    assert distant == (
        "The baseline was measured at another time: steps 1 to 19, at default clocks, 182 steps"
        " (6 min) before those on the plan. What changed in between counts as saving."
    )
    said = f"The baseline ran on other GPUs: ranks 1 and 3 got a new GPU after step {after_step}."
    assert others == ([said] if is_said else [])


IN_TURN = StepKinds(baseline_cycle=(False, False, True, True))


def in_turn() -> list[StepTotals]:
    return [
        step
        for number in range(80)
        for step in steps([number], 1, 100.0 if IN_TURN.is_baseline(number) else 90.0)
    ]


def test_steps_in_turn_have_no_caveat() -> None:
    assert caveats(in_turn(), GpuChange(rank=0, after_step=40), kinds=IN_TURN) == ()


@pytest.mark.parametrize("is_in_turn", [True, False])
def test_energies_of_modules_and_of_gpus_are_not_compared(is_in_turn: bool) -> None:
    measured, kinds = (in_turn(), IN_TURN) if is_in_turn else (APART, StepKinds())
    folded = fold_of({1: kinds}, measured)
    for changes_scope in (False, True):
        change = GpuChange(rank=0, after_step=40, changes_scope=changes_scope)
        savings = savings_of(folded, (change,))
        [version] = savings.versions
        assert version.slowdown_percent is not None  # times are
        assert (savings.saved_j is None, version.saving_percent is None) == (changes_scope,) * 2
        said = "count that of their whole module" in " ".join(version.caveats)
        assert said == changes_scope


def test_a_baseline_of_the_same_counter_is_preferred_to_a_nearer_one() -> None:
    measured = [*steps(range(20), None, 300.0), *steps(range(40, 71), 1, 90.0)]
    measured += steps(range(170, 191), 2, 100.0)
    folded = fold_of({2: StepKinds(baseline_cycle=(True,))}, measured)
    change = GpuChange(rank=0, after_step=30, changes_scope=True)
    version = savings_of(folded, (change,)).versions[0]
    assert version.saving_percent is not None
    assert version.saving_percent.mean == pytest.approx(10.0)


def test_steps_without_a_plan_are_in_no_headline() -> None:
    savings = savings_of(fold_of({}, [*APART, *steps(range(300, 400), None, 100.0)]))
    [version] = savings.versions
    assert savings.saved_of_j == pytest.approx(30 * 100.0)
    assert (version.num_steps, version.energy_j and version.energy_j.mean) == (30, 90.0)
    found = headline_of([version], PREDICTED, active_version=1)
    assert found is not None
    assert found.text == "10.0 % less energy in the same time"


# ------------------------------------------------------------------ page and report


def test_the_page_and_the_report_have_one_headline_and_say_that_a_gpu_was_replaced() -> None:
    services = Services(CountingPlanner()).jobs
    register_job(services, "job", job_spec())
    with services.store.writing("job") as writer:
        writer.add_plan(plan_record(plan=frequency_plan()))
        writer.name_first_step("job", 1, 10)

    def measure(numbers: range, version: int | None) -> None:
        for rank in (0, 1):
            measured = [step_record(step, rank, plan_version=version) for step in numbers]
            store_measurements(services, "job", rank, measured)

    register_rank(services, rank_record(0, emulated=True))
    register_rank(services, rank_record(1, emulated=False))
    measure(range(10), None)
    # A new process on an emulated GPU is no other GPU.
    register_rank(services, rank_record(0, emulated=True, gpu_uuid="EMULATED-2"))
    register_rank(services, rank_record(1, emulated=False, host="other"))
    with services.store.reading() as reader:
        assert reader.find_loop_state("job").gpu_changes == ()
    other = rank_record(1, emulated=False, gpu_uuid="GPU-other", energy_scope=EnergyScope.MODULE)
    register_rank(services, other)
    measure(range(10, 30), 1)
    report = get_report(services, "job").headline
    shared = SharedReading(JobReading(services, max_labelled=20))
    assert report is not None
    assert report == shared.overview_of("job").headline
    assert report.is_measured
    assert "rank 1 got a new GPU after step 9" in report.caveats[1]
    third = other.evolve(gpu_uuid="GPU-third", energy_scope=EnergyScope.GPU)
    register_rank(services, third)
    with services.store.reading() as reader:
        changes = reader.find_loop_state("job").gpu_changes
    # Whether the first one counted the same is not known.
    assert [change.changes_scope for change in changes] == [False, True]


def test_page_and_report_name_the_stragglers_that_the_plan_in_force_counts() -> None:
    services = Services(CountingPlanner()).jobs
    register_job(services, "job", job_spec())
    plan = frequency_plan(iteration_time_s=0.99)
    prediction = replace(plan.predicted, baseline_iteration_time_s=0.99, stragglers_s=0.09)
    with services.store.writing("job") as writer:
        writer.add_plan(plan_record(plan=replace(plan, prediction=prediction)))
        writer.name_first_step("job", 1, 20)
        planned = PlanningInputs(rank_slowdowns=(RankSlowdown(rank=1, slowdown=1.1),))
        state = writer.find_loop_state("job")
        writer.save_loop_state(state.evolve(planned_inputs=planned))
    for rank in (0, 1):
        register_rank(services, rank_record(rank))
    for rank in (0, 1):
        before = [step_record(step, rank) for step in range(20)]
        on_plan = [
            step_record(step, rank, plan_version=1, time_s=0.99, energy_j=80.0)
            for step in range(20, 60)
        ]
        store_measurements(services, "job", rank, [*before, *on_plan])
    report = get_report(services, "job").headline
    shared = SharedReading(JobReading(services, max_labelled=20))
    assert report is not None
    assert report == shared.overview_of("job").headline
    assert report.time_text == "at 10.0 % more time, 10.0 % from rank 1"

"""Savings of plan versions: the steps that count, and the baseline that they are compared with."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from tests.planner.folds import fold_of, steps

from flyball_server.jobs.measurements.step_pairs import StepKinds, WorkAtHighest
from flyball_server.jobs.savings.savings import JobSavings, savings_of
from flyball_server.jobs.step_records import StepTotals
from flyball_wire.savings import BaselineOrigin, MeasuredSavings

PLAIN = StepKinds()
ABBA = (False, False, True, True, True, True, False, False)


def default_steps(numbers: Iterable[int]) -> list[StepTotals]:
    return steps(numbers, None, energy_j=100.0)


def interleaved(
    kinds: StepKinds, numbers: Iterable[int], chance: random.Random
) -> list[StepTotals]:
    """Version 2 takes 90 J and 1.01 s of the baseline's 100 J and 1 s, all with 1 % of noise."""
    return [
        each
        for number in numbers
        for each in steps(
            [number],
            2,
            time_s=(1.0 if kinds.is_baseline(number) else 1.01) * (1 + chance.gauss(0, 0.01)),
            energy_j=(100 if kinds.is_baseline(number) else 90) * (1 + chance.gauss(0, 0.01)),
        )
    ]


def fold(measured: Iterable[StepTotals], **kinds: StepKinds) -> JobSavings:
    """The savings, of versions named `v1=...`."""
    return savings_of(fold_of({int(name[1:]): kind for name, kind in kinds.items()}, measured))


def only(savings: JobSavings) -> MeasuredSavings:
    (version,) = savings.versions
    return version


def mean(figure: object) -> float:
    value = getattr(figure, "mean", None)
    assert isinstance(value, float)
    return value


# ------------------------------------------------------------------ which steps count


def test_steps_that_do_not_show_the_plan_are_left_out() -> None:
    """`tests/contract/test_step_fold.py` compares random runs with an oracle."""
    measured = [
        *default_steps(range(10)),
        *steps([10], 1, energy_j=500.0, is_mixed=True),
        *steps([11], 1, energy_j=500.0),
        *steps(range(12, 15), 1),
        *steps([15, 16], 1, is_complete=False),
        *steps([17], 1, energy_j=500.0, num_clock_misses=1),
        *steps(range(18, 21), 1),
    ]
    version = only(fold(measured, v1=PLAIN))
    assert (version.num_steps, version.num_left_out) == (6, 5)
    assert mean(version.energy_j) == 90


# ------------------------------------------------------------------ which baseline


def test_without_a_step_at_the_highest_clocks_nothing_is_compared() -> None:
    savings = fold([])
    assert savings == JobSavings(num_steps=0, time_s=0.0, energy_j=None, saved_j=None, versions=())
    version = only(fold(steps(range(20), 1), v1=PLAIN))
    assert version.baseline == "none"
    assert version.slowdown_percent is None
    assert version.saved_j is None


def test_a_version_at_the_highest_clocks_is_a_baseline_itself() -> None:
    highest = StepKinds(baseline_cycle=(True,))
    measured = [*steps(range(10), 1, energy_j=100.0), *steps(range(10, 20), 2)]
    first, second = fold(measured, v1=highest, v2=PLAIN).versions
    assert (first.baseline, first.num_steps, first.saved_j) == ("itself", 9, None)
    assert mean(first.energy_j) == 100
    assert mean(second.saved_j) == pytest.approx(90)


def test_steps_of_profiling_at_the_highest_clocks_are_a_baseline_and_no_saving() -> None:
    probe = StepKinds(baseline_cycle=(True, False), is_probe=True)
    measured = [
        *(each for step in range(20) for each in steps([step], 1, energy_j=100.0 + 5 * (step % 2))),
        *steps(range(20, 30), 2),
    ]
    version = only(fold(measured, v1=probe, v2=PLAIN))
    assert version.version == 2
    assert mean(version.baseline_energy_j) == 100


@pytest.mark.parametrize(("num_default", "baseline_j"), [(11, 200), (3, 100)])
def test_the_nearest_baseline_of_enough_steps_counts(num_default: int, baseline_j: float) -> None:
    kinds = StepKinds(first_step=100, baseline_cycle=ABBA)
    measured = [
        *steps(range(num_default), None, energy_j=200.0),
        *steps(range(num_default, 100), 1),
        *interleaved(kinds, range(100, 180), random.Random(1)),
        *steps(range(180, 300), 3),
    ]
    first, second, third = fold(measured, v1=PLAIN, v2=kinds, v3=PLAIN).versions
    assert mean(first.baseline_energy_j) == pytest.approx(baseline_j, rel=0.01)
    assert second.baseline == "interleaved"
    assert mean(third.baseline_energy_j) == pytest.approx(100, rel=0.01)
    # A few steps are one where there is no other.
    assert mean(only(fold(measured[:100], v1=PLAIN)).baseline_energy_j) == 200


# ------------------------------------------------------------------ deviations


def test_steps_of_another_number_of_microbatches_are_no_baseline() -> None:
    """Eight microbatches take twice as much as four, and that is no loss."""
    measured = [
        *default_steps(range(20)),
        *steps(range(20, 40), 1, energy_j=90.0),
        *steps(range(40, 50), None, energy_j=200.0),
        *steps(range(50, 70), 2, energy_j=180.0),
    ]
    four, eight = StepKinds(num_microbatches=4), StepKinds(num_microbatches=8)
    first, second = fold(measured, v1=four, v2=eight).versions
    assert mean(first.saving_percent) == pytest.approx(10.0)
    assert second.baseline == BaselineOrigin.NONE
    highest = StepKinds(baseline_cycle=(True,), num_microbatches=8)
    more = [*measured, *steps(range(70, 90), 3, energy_j=200.0)]
    _, compared, _ = fold(more, v1=four, v2=eight, v3=highest).versions
    assert mean(compared.saving_percent) == pytest.approx(10.0)
    assert compared.baseline_energy_j is not None
    assert compared.baseline_energy_j.mean == pytest.approx(200.0)


def test_overruns_are_named_with_the_figures_of_the_steps_without_them() -> None:
    """Half of the steps on the plan take twice as long: they, not the plan, are the slowdown."""
    measured = [
        *default_steps(range(10)),
        *steps(range(10, 31), 1),
        *steps(range(31, 51), 1, time_s=2.0, energy_j=150.0, num_overruns=12),
    ]
    savings = fold(measured, v1=PLAIN)
    version = only(savings)
    assert mean(version.slowdown_percent) == pytest.approx(50)
    unsettled, overrun = sorted(version.deviations, key=lambda each: each.is_counted)
    assert (overrun.kind, overrun.num_steps, overrun.num_events) == ("overrun", 20, 240)
    assert overrun.text.startswith("In 20 of 40 counted steps a computation took longer than its")
    assert (
        "(240 overruns). The figures count them; of 20 other steps on the plan they" in overrun.text
    )
    assert "they are +0.00 % [+0.00, +0.00] time and 10.00 %" in overrun.text
    assert (unsettled.kind, unsettled.num_steps) == ("unsettled", 1)
    every_step = [*default_steps(range(10)), *measured[31:]]
    overrun = only(fold(every_step, v1=PLAIN)).deviations[0]
    assert "In 19 of 19 counted steps" in overrun.text
    assert overrun.text.endswith(
        "(228 overruns). All steps on the plan are such steps, so the"
        " figures are not the plan's own."
    )
    (default,) = savings.deviations
    assert (default.kind, default.num_steps) == ("default-clocks", 10)
    assert "10 steps ran without a plan, at default clocks (10.0 s, 1.0 kJ)" in default.text


def test_the_steps_left_out_are_all_named_by_reason() -> None:
    measured = [
        *steps(range(4), 1),
        *steps([4], 1, num_unplanned=3),
        *steps([5], 1, num_clock_misses=2),
        *steps([6, 7], 1, is_complete=False),
        *steps([8], 1, is_mixed=True, num_without_clocks=1),
        *steps(range(9, 12), 1, num_clock_misses=5, num_power_capped=5),
    ]
    savings = fold(measured, v1=PLAIN)
    assert savings.deviations == ()
    version = only(savings)
    by_kind = {str(each.kind): (each.num_steps, each.num_events) for each in version.deviations}
    assert by_kind == {
        "capped": (2, 10),
        "unplanned": (1, 3),
        "clock-lost": (1, 2),
        "no-clocks": (1, 1),
        "unsettled": (2, 2),
        "missing": (2, 2),
    }
    left_out = [each for each in version.deviations if not each.is_counted]
    assert sum(each.num_steps for each in left_out) == version.num_left_out == 7


def test_steps_of_a_rank_that_sets_no_clocks_are_no_baseline() -> None:
    """An administrator's 600 MHz would make a saving of 50 % of the plan's 0 %."""
    held = steps(range(20), None, energy_j=200.0, num_without_clocks=1)
    on_plan = steps(range(20, 40), 1, energy_j=100.0)
    savings = fold([*held, *on_plan], v1=PLAIN)
    assert only(savings).baseline == "none"
    assert savings.saved_j is None
    (deviation,) = savings.deviations
    assert (deviation.kind, deviation.num_steps) == ("no-clocks", 20)
    assert savings.num_steps == 40
    again = fold([*held, *on_plan, *default_steps(range(40, 60))], v1=PLAIN)
    assert mean(only(again).baseline_energy_j) == 100


# ------------------------------------------------------------------ interleaved


def test_a_pair_with_less_than_half_of_its_steps_does_not_count() -> None:
    kinds = StepKinds(baseline_cycle=(False,) * 3 + (True,) * 3)
    kept = [*range(1, 12), 12, 15, 16, 17, *range(18, 24)]
    measured = [
        each
        for step in kept
        for each in steps([step], 1, energy_j=100.0 if kinds.is_baseline(step) else 90.0)
    ]
    ratio = only(fold([*steps([0], 1), *measured], v1=kinds)).saving_percent
    assert ratio is not None
    # Pairs of 2, 3, 1 (left out) and 3 steps of the rarer kind.
    assert ratio.num_steps == 8
    assert ratio.mean == pytest.approx(10)


def test_an_interleaved_version_without_a_whole_pair_looks_for_another_baseline() -> None:
    kinds = StepKinds(first_step=20, baseline_cycle=ABBA)
    measured = [*default_steps(range(20)), *steps(range(20, 22), 1)]
    assert only(fold(measured, v1=kinds)).baseline == "apart"


# ------------------------------------------------------------------ sums


def scattered(num_steps: int) -> list[StepTotals]:
    """30 steps at default clocks, then 30 on each version."""
    chance = random.Random(5)
    return [
        each
        for step in range(num_steps)
        for each in steps(
            [step],
            step // 30 or None,
            energy_j=(100 if step < 30 else 90) + chance.gauss(0, 1),
        )
    ]


def test_the_bounds_of_all_versions_add_up_but_for_one_that_has_none() -> None:
    savings = fold([*scattered(90), *steps([90, 91], 3)], v1=PLAIN, v2=PLAIN, v3=PLAIN)
    *parts, of_one_step = (version.saved_j for version in savings.versions)
    assert of_one_step is not None
    assert of_one_step.low is None
    assert savings.saved_j is not None
    for bound in ("mean", "low", "high"):
        total = sum(getattr(part, bound) for part in parts)
        assert getattr(savings.saved_j, bound) == pytest.approx(total)
    assert savings.saved_j.num_steps == 58


# ------------------------------------------------------------------ announced work


def worked_steps(
    numbers: Iterable[int], works: dict[int, WorkAtHighest], *, version: int, share: float
) -> list[StepTotals]:
    """Steps that take this share of what their work takes at the highest clocks."""
    return [
        step
        for number in numbers
        for step in steps(
            [number],
            version,
            time_s=works[number].time_s,
            energy_j=share * works[number].energy_j,
        )
    ]


def test_versions_apart_are_ratios_of_sums_at_equal_work() -> None:
    """By hand: 40 % of 100 J and 10 % of 900 J are 130 of 1000 J; the mean of ratios says 25 %."""
    works = {
        number: WorkAtHighest(time_s=scale, energy_j=100 * scale)
        for number in range(401)
        for scale in [9.0 if number % 2 else 1.0]
    }
    measured = [
        *worked_steps(range(200), works, version=1, share=1.0),
        *(
            step
            for number in range(200, 401)
            for step in worked_steps([number], works, version=2, share=0.9 if number % 2 else 0.6)
        ),
    ]
    kinds = {1: StepKinds(baseline_cycle=(True,))}
    second = savings_of(fold_of(kinds, measured, works)).versions[1]
    assert second.baseline == BaselineOrigin.APART
    assert mean(second.saving_percent) == pytest.approx(13)
    assert mean(second.slowdown_percent) == pytest.approx(0)
    assert mean(second.saved_j) == pytest.approx(100 * 130)
    assert second.saving_percent is not None
    assert second.saving_percent.low is not None
    assert second.saving_percent.low < 13


def test_a_pair_is_a_ratio_of_sums_at_equal_work() -> None:
    """By hand: 90 J of 100, and 440 J of 400, are 0.9 and 1.1 of the same work."""
    kinds = StepKinds(baseline_cycle=(False, True))
    works = {0: 1.0, 1: 1.0, 2: 1.0, 3: 4.0, 4: 1.0, 5: 4.0}
    of_steps = {
        number: WorkAtHighest(time_s=scale, energy_j=100 * scale) for number, scale in works.items()
    }
    measured = [
        step
        for number, scale in works.items()
        for step in steps(
            [number],
            1,
            time_s=scale,
            energy_j=100 * scale * (1.1 if kinds.is_baseline(number) else 0.9),
        )
    ]
    # The first one only settles the clocks.
    found = only(savings_of(fold_of({1: kinds}, measured, of_steps)))
    assert found.baseline == BaselineOrigin.INTERLEAVED
    assert mean(found.saving_percent) == pytest.approx(100 * (1 - 0.9 / 1.1))
    assert mean(found.slowdown_percent) == pytest.approx(0)


def test_a_few_steps_of_unknown_work_are_left_out() -> None:
    works = {number: WorkAtHighest(time_s=1.0, energy_j=100.0) for number in range(60)}
    measured = [
        *worked_steps(range(30), works, version=1, share=1.0),
        *worked_steps(range(30, 60), works, version=2, share=0.9),
    ]
    kinds = {1: StepKinds(baseline_cycle=(True,))}
    del works[7], works[40]
    second = savings_of(fold_of(kinds, measured, works)).versions[1]
    assert mean(second.saving_percent) == pytest.approx(10)
    for number in range(41, 46):
        del works[number]
    none = savings_of(fold_of(kinds, measured, works)).versions[1]
    assert none.baseline == BaselineOrigin.NONE


def test_steps_of_other_coefficients_are_not_compared() -> None:
    """A fit that says 5 % more for the same work is no saving; nor is a mixture of two."""
    first = {number: WorkAtHighest(1.0, 100.0, model=1) for number in range(20)}
    later = {number: WorkAtHighest(1.05, 105.0, model=2) for number in range(20, 60)}
    measured = [
        *steps(range(20), 1, energy_j=100.0),
        *steps(range(20, 40), 2, energy_j=100.0),
        *steps(range(40, 60), 3, energy_j=100.0),
    ]
    kinds = {1: StepKinds(baseline_cycle=(True,))}
    second, third = savings_of(fold_of(kinds, measured, first | later)).versions[1:]
    assert (second.baseline, third.baseline) == (BaselineOrigin.NONE, BaselineOrigin.NONE)
    # With steps at the highest clocks of the same coefficients there is a comparison.
    kinds[2] = StepKinds(baseline_cycle=(True,))
    third = savings_of(fold_of(kinds, measured, first | later)).versions[2]
    assert third.baseline == BaselineOrigin.APART
    assert mean(third.saving_percent) == pytest.approx(0)
    # Half of a version's steps are of either: their work counts as not known.
    mixed = first | later | dict.fromkeys(range(50, 60), first[0])
    assert savings_of(fold_of(kinds, measured, mixed)).versions[2].baseline == BaselineOrigin.NONE

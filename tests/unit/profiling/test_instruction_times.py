"""Times of instructions, and the regression behind them."""

from __future__ import annotations

import numpy as np
import pytest

from flyball_pipeline.instruction import InstructionKind
from flyball_server.profiling.observations import (
    InstructionClass,
    InstructionTimes,
    StagePoints,
    StageStep,
    StepTable,
)
from flyball_server.profiling.regression import Readings, StageFit, VariancePart, fit_stages
from flyball_server.profiling.stage_estimates import MeasuredStage, StageTimes, estimate_times

F, B = InstructionKind.FORWARD, InstructionKind.BACKWARD
CLOCKS = tuple(range(1400, 800, -50))
POINTS = StagePoints(classes=(InstructionClass(F), InstructionClass(B)), clocks_mhz=CLOCKS)


def true_s(kind: InstructionKind, mhz: int) -> float:
    return {F: 0.02 + 50 / mhz, B: 0.05 + 100 / mhz}[kind]


def estimated(
    probed: dict[int, int], *, noise: float = 0.02, step_noise: float = 0.0, num_steps: int = 20
) -> StageTimes:
    """From steps with so many instructions of each kind at each of these clocks."""
    random, of_steps = np.random.default_rng(8), np.random.default_rng(9)
    steps = []
    for step in range(num_steps):
        of_step = 1 + step_noise * of_steps.standard_normal()
        rows = []
        for kind in (F, B):
            for mhz, count in probed.items():
                times_s = true_s(kind, mhz) * of_step * (1 + noise * random.standard_normal(count))
                rows.append(
                    InstructionTimes(
                        kind=kind,
                        chunk=0,
                        sm_clock_mhz=mhz,
                        count=count,
                        mean_s=float(times_s.mean()),
                        variance_s2=float(times_s.var(ddof=1)),
                    )
                )
        steps.append(
            StageStep(
                stage=0,
                step=step,
                version=1,
                iteration_time_s=9.0,
                energy_j=None,
                instructions=tuple(rows),
            )
        )
    table = StepTable.of_steps(POINTS, steps)
    stage = MeasuredStage(points=POINTS, table=table, num_ranks=1, blocking_power_w=None)
    return estimate_times({0: stage})[0]


def test_the_standard_error_is_the_scatter_over_the_root_of_the_probes() -> None:
    times = estimated({1400: 5, 1350: 5})
    assert times.scatter == pytest.approx([0.02, 0.02], rel=0.2)
    share = times.error_s / times.mean_s
    assert share[0] == pytest.approx(0.02 / np.sqrt(100), rel=0.3)
    assert times.num_probes[0] == 100
    # Far from all probes the error is large.
    assert share[len(CLOCKS) - 1] > 0.1


def test_between_probes_times_are_interpolated_within_their_error() -> None:
    times = estimated({1400: 5, 1250: 5, 1100: 5, 950: 5, 850: 5})
    true = np.array([true_s(kind, mhz) for kind in (F, B) for mhz in CLOCKS])
    assert (np.abs(times.mean_s - true) < 4 * times.error_s).all()
    assert (times.error_s / times.mean_s).max() < 0.02
    is_probed = times.num_probes > 0
    assert times.error_s[is_probed].max() < times.error_s[~is_probed].max()


def fitted(
    *values: list[float],
    prior: VariancePart,
    noise: tuple[float, float] = (1.0, 0.0),
    mean: float = 0.0,
) -> list[StageFit]:
    """Stages whose unknowns are read one by one, with independent noise."""
    stages = [
        Readings(
            values=np.array(of_stage), design=np.eye(len(of_stage)), noise=(np.eye(len(of_stage)),)
        )
        for of_stage in values
    ]
    return fit_stages(stages, np.full(len(values[0]), mean), [prior], [noise])


def test_one_reading_and_one_unknown_give_the_textbook_mean() -> None:
    # Prior 10 +- 2, one reading 13 +- 1: the weights are 1/4 and 1.
    (fit,) = fitted([13.0], mean=10.0, prior=VariancePart(covariance=np.eye(1), guess=2.0))
    assert fit.mean[0] == pytest.approx((10 / 4 + 13) / (1 / 4 + 1))
    assert fit.covariance[0, 0] == pytest.approx(1 / (1 / 4 + 1))


@pytest.mark.parametrize("is_common", [True, False])
def test_stages_share_common_parts_only(is_common: bool) -> None:
    """Readings 1 and 3 with unit noise and prior: a common unknown is 4/3, two are 1/2 and 3/2."""
    prior = VariancePart(covariance=np.eye(1), guess=1.0, is_common=is_common)
    fits = fitted([1.0], [3.0], prior=prior)
    assert [fit.mean[0] for fit in fits] == pytest.approx([4 / 3] * 2 if is_common else [0.5, 1.5])
    assert [fit.covariance[0, 0] for fit in fits] == pytest.approx(
        [1 / (3 if is_common else 2)] * 2
    )


def test_many_stages_are_fitted_in_linear_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one reading at a time no stage takes anything from another."""
    prior = VariancePart(covariance=np.eye(1), guess=1.0, is_common=True)
    monkeypatch.setattr("flyball_server.profiling.regression._MOST_READINGS", 1)
    assert [fit.mean[0] for fit in fitted([1.0], [3.0], prior=prior)] == pytest.approx([0.5, 1.5])


def test_variances_are_found_from_readings_that_show_them() -> None:
    # 40 groups of 5: between groups 3, within 1.
    random = np.random.default_rng(1)
    group = np.repeat(np.arange(40), 5)
    values = 3 * random.standard_normal(40)[group] + random.standard_normal(200)
    readings = Readings(values=values, design=np.eye(40)[group], noise=(np.eye(200),))
    prior = VariancePart(covariance=np.eye(40), guess=1.0, spread=2.0)
    (fit,) = fit_stages([readings], np.zeros(40), [prior], [(3.0, 2.0)])
    assert fit.noise[0] == pytest.approx(1, rel=0.15)
    # Of a group's mean, the share that the prior takes off: 1 / (1 + 5 * 3^2).
    means = np.bincount(group, values) / 5
    assert fit.mean == pytest.approx(means * 45 / 46, rel=0.02)

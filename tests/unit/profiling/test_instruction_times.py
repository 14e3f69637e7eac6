"""Times of instructions, and the mixed model behind them."""

from __future__ import annotations

import numpy as np
import pytest

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.profiling.instruction_times import StageTimes, estimate_times
from flyball_server.profiling.mixed_model import (
    FittedModel,
    MixedModel,
    Posterior,
    VarianceComponent,
)
from flyball_server.profiling.observations import InstructionClass, InstructionTimes, StageStep
from flyball_server.profiling.stage_points import StagePoints, StepTable

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
    return estimate_times(POINTS, StepTable.of_steps(POINTS, steps))


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


def test_where_whole_steps_scatter_more_instructions_of_a_step_tell_no_more() -> None:
    few = estimated({1400: 4, 850: 4}, noise=0.001, step_noise=0.03)
    many = estimated({1400: 64, 850: 64}, noise=0.001, step_noise=0.03)
    assert many.error_s[0] == pytest.approx(few.error_s[0], rel=0.1)
    assert few.error_s[0] / few.mean_s[0] == pytest.approx(0.03 / np.sqrt(20), rel=0.3)


def test_one_reading_and_one_unknown_give_the_textbook_mean() -> None:
    # Prior 10 +- 2, one reading 13 +- 1: the weights are 1/4 and 1.
    found = FittedModel(
        readings=np.array([13.0]),
        design=np.eye(1),
        noise=np.array([[1.0]]),
        prior=Posterior(mean=np.array([10.0]), covariance=np.array([[4.0]])),
        noise_scales=(1.0,),
    ).posterior()
    assert found.mean[0] == pytest.approx((10 / 4 + 13) / (1 / 4 + 1))
    assert found.covariance[0, 0] == pytest.approx(1 / (1 / 4 + 1))


def test_variances_are_found_from_readings_that_show_them() -> None:
    # 40 groups of 5: between groups 3, within 1.
    random = np.random.default_rng(1)
    group = np.repeat(np.arange(40), 5)
    readings = 3 * random.standard_normal(40)[group] + random.standard_normal(200)
    model = MixedModel(
        readings=readings,
        design=np.eye(40)[group],
        prior_mean=np.zeros(40),
        prior=[VarianceComponent(covariance=np.eye(40), guess=1.0, spread=2.0)],
        noise=[VarianceComponent(covariance=np.eye(200), guess=3.0, spread=2.0)],
    )
    fitted = model.fitted()
    assert fitted.prior.covariance[0, 0] == pytest.approx(3**2, rel=0.5)
    assert fitted.noise_scales[0] == pytest.approx(1, rel=0.15)


def test_a_component_without_spread_keeps_its_guess() -> None:
    model = MixedModel(
        readings=np.array([5.0, -4.0]),
        design=np.eye(2),
        prior_mean=np.zeros(2),
        prior=[VarianceComponent(covariance=np.eye(2), guess=0.5, spread=0.0)],
        noise=[VarianceComponent(covariance=np.eye(2), guess=0.1, spread=1.0)],
    )
    fitted = model.fitted()
    assert fitted.prior.covariance[0, 0] == pytest.approx(0.5**2)
    assert fitted.noise_scales[0] > 0.5

import numpy as np
import pytest

from flyball_server.profiling.mixed_model import (
    FittedModel,
    MixedModel,
    Posterior,
    VarianceComponent,
)


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


def test_a_sum_and_a_difference_give_both_unknowns() -> None:
    design = np.array([[1.0, 1.0], [1.0, -1.0]])
    truth = np.array([7.0, 3.0])
    found = FittedModel(
        readings=design @ truth,
        design=design,
        noise=1e-12 * np.eye(2),
        prior=Posterior(mean=np.zeros(2), covariance=100 * np.eye(2)),
        noise_scales=(1e-6,),
    ).posterior()
    assert found.mean == pytest.approx(truth)


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

"""The shipped example: clean, generated from its coefficients, and those from measurements."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.shared_data import needs_shared_data, published_profile

from flyball_profiles.examples import example_profile_path, load_example_profile
from flyball_profiles.fitted_curves import EnergyCurve, TimeCurve, parse_fitted_profile
from flyball_profiles.stage_profile import ProfileError
from flyball_profiles.stage_profile_csv import read_stage_profile, write_stage_profile

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3]
SCRIPT = REPOSITORY / "profiles" / "scripts" / "fit_example_profile.py"
MEASURED = published_profile("gpt3-175b+a100_sxm_bf16.csv")
COEFFICIENTS = example_profile_path().with_suffix(".toml")


def fit(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_curves_are_their_formulas() -> None:
    time = TimeCurve(a_s_ghz=0.3, b_s=0.1, c_s_per_ghz2=2.0, knee_mhz=1000)
    assert time.at(500) == pytest.approx(0.3 / 0.5 + 0.1)
    assert time.at(1500) == pytest.approx(0.3 / 1.5 + 0.1 + 2.0 * 0.5**2)
    energy = EnergyCurve(
        p_j=20.0,
        q_j_per_ghz=-3.0,
        r_j_per_ghz=7.0,
        s_j_per_ghz2=50.0,
        w_j_per_ghz2=-40.0,
        low_knee_mhz=1000,
        high_knee_mhz=1200,
    )
    assert energy.at(800) == pytest.approx(20 - 3 * 0.8)
    assert energy.at(1100) == pytest.approx(20 - 3 * 1.1 + 7 * 0.1 + 50 * 0.1**2)
    assert energy.at(1400) == pytest.approx(20 - 3 * 1.4 + 7 * 0.4 + 50 * 0.4**2 - 40 * 0.2**2)


@needs_shared_data
def test_fitting_the_measurements_gives_the_committed_coefficients(tmp_path: Path) -> None:
    output = tmp_path / "fitted.csv"
    finished = fit("--measured", MEASURED, "--output", output)
    assert (finished.returncode, finished.stderr) == (0, "")
    fitted = output.with_suffix(".toml").read_text(encoding="utf-8")
    assert fitted == COEFFICIENTS.read_text(encoding="utf-8")
    assert output.read_bytes() == example_profile_path().read_bytes()


@needs_shared_data
def test_the_example_is_near_every_measurement_and_copies_none() -> None:
    measured, example = read_stage_profile(MEASURED), load_example_profile()
    assert set(measured.points) == set(example.points)
    for key, points in measured.points.items():
        for point, fitted in zip(points, example.points[key], strict=True):
            assert fitted.frequency_mhz == point.frequency_mhz
            assert fitted.time_s == pytest.approx(point.time_s, rel=0.0065)
            assert fitted.energy_j == pytest.approx(point.energy_j, rel=0.0135)
            assert (fitted.time_s, fitted.energy_j) != (point.time_s, point.energy_j)


def test_the_shipped_csv_is_generated_from_its_coefficients_byte_for_byte() -> None:
    profile = parse_fitted_profile(COEFFICIENTS.read_text(encoding="utf-8")).stage_profile()
    assert example_profile_path().read_bytes() == write_stage_profile(profile).encode()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("step_mhz = 15", "step_mhz = "),
        ("step_mhz = 15", "step_mhz = 0"),
        ("step_mhz = 15", ""),
        ("knee_mhz", "knee"),
        ('"forward"', '"fwd"'),
    ],
)
def test_coefficients_that_cannot_be_used_are_refused(old: str, new: str) -> None:
    text = COEFFICIENTS.read_text(encoding="utf-8")
    with pytest.raises(ProfileError, match="the coefficients cannot be used: "):
        parse_fitted_profile(text.replace(old, new))

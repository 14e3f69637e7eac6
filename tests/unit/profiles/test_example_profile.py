"""The shipped example: clean, generated from its coefficients, and those from measurements."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.shared_data import needs_shared_data, published_profile

from flyball_profiles.examples import example_profile_path, load_example_profile
from flyball_profiles.stage_profile_csv import read_stage_profile

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


def test_the_shipped_csv_is_generated_from_its_coefficients_byte_for_byte(tmp_path: Path) -> None:
    output = tmp_path / "example.csv"
    output.with_suffix(".toml").write_bytes(COEFFICIENTS.read_bytes())
    assert fit("--output", output).returncode == 0
    assert output.read_bytes() == example_profile_path().read_bytes()


def test_coefficients_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    text = COEFFICIENTS.read_text(encoding="utf-8")
    output = tmp_path / "example.csv"
    output.with_suffix(".toml").write_text(text.replace("knee_mhz", "knee"), encoding="utf-8")
    refused = fit("--output", output)
    assert refused.returncode == 2
    assert re.fullmatch(r"the coefficients cannot be used: .*\n", refused.stderr)
    assert not output.exists()

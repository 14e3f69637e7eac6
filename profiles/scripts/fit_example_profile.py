"""Fit the example's curves to a measured stage profile; write their coefficients and the CSV.

Usage: python profiles/scripts/fit_example_profile.py [--measured MEASURED.csv]

Each curve is linear in its coefficients once its knees are fixed. So the knees are tried on the
grid of measured clocks, the coefficients are the least squares of the relative error, and the
knees kept are those with the least maximum error among the curves of the right shape: time
strictly falling with the clock, energy with one valley. Without a measured profile the CSV alone
is written, from the coefficients that there are.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from flyball_profiles.examples import example_profile_path
from flyball_profiles.fitted_curves import EnergyCurve, TimeCurve, parse_fitted_profile
from flyball_profiles.stage_profile import (
    InstructionKind,
    OperatingPoint,
    ProfileError,
    StageProfile,
)
from flyball_profiles.stage_profile_csv import read_stage_profile, write_stage_profile

Points = tuple[OperatingPoint, ...]
Curve = TimeCurve | EnergyCurve

_SIGNIFICANT_DIGITS = 6
# Measured clocks in each piece between knees and ends: enough to determine its coefficients.
_CLOCKS_PER_PIECE = 4
_PREAMBLE = """\
# Coefficients of the example stage profile, written by profiles/scripts/fit_example_profile.py.
# Frequencies are in MHz, times in s, energies in J; the curves are those of
# flyball_profiles/fitted_curves.py. Errors are relative, over the measured clocks.
source = "Stage profile gpt3-175b+a100_sxm_bf16.csv of the Perseus artifact (Chung et al., \
Reducing Energy Bloat in Large Model Training, SOSP '24), branch kronos of \
github.com/ml-energy/zeus: measured on NVIDIA A100 SXM GPUs"
source_license = "Apache-2.0"
"""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A curve and its relative errors against the measured points."""

    curve: Curve
    max_relative_error: float
    rms_relative_error: float


def main() -> int:
    """Write both files; return the exit status."""
    parser = argparse.ArgumentParser(description="Fit the example profile's curves.")
    parser.add_argument("--measured", type=Path, help="a measured stage profile")
    parser.add_argument("--output", type=Path, default=example_profile_path())
    options = parser.parse_args()
    coefficients = options.output.with_suffix(".toml")
    try:
        if options.measured is not None:
            coefficients.write_bytes(fitted_toml(read_stage_profile(options.measured)).encode())
        profile = parse_fitted_profile(coefficients.read_text(encoding="utf-8")).stage_profile()
        options.output.write_bytes(write_stage_profile(profile).encode())
    except (ProfileError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def fitted_toml(measured: StageProfile) -> str:
    """Return the coefficients of every curve of a measured profile, as TOML text.

    Raises:
        ProfileError: no curve of the right shape fits.
    """
    clocks_mhz = [point.frequency_mhz for point in measured.points[0, InstructionKind.FORWARD]]
    steps_mhz = {high - low for high, low in itertools.pairwise(clocks_mhz)}
    if len(steps_mhz) != 1:
        raise ProfileError("the measured clocks must be evenly spaced")
    parts = [
        _PREAMBLE,
        _table("clocks", max_mhz=clocks_mhz[0], min_mhz=clocks_mhz[-1], step_mhz=steps_mhz.pop()),
    ]
    for (stages, kind), points in _distinct_curves(measured).items():
        parts.append(f'[[instructions]]\nstages = {list(stages)}\ninstruction = "{kind}"\n')
        for quantity, fit in (("time", _fit_time(points)), ("energy", _fit_energy(points))):
            name = f"instructions.{quantity}"
            errors = {
                "max_relative_error": round(fit.max_relative_error, 5),
                "rms_relative_error": round(fit.rms_relative_error, 5),
            }
            parts += [_table(name, **errors), _table(f"{name}.curve", **asdict(fit.curve))]
    return "\n".join(parts)


def _table(name: str, **values: float) -> str:
    lines = [f"{key} = {value!r}" for key, value in values.items()]
    return "\n".join([f"[{name}]", *lines, ""])


def _distinct_curves(
    measured: StageProfile,
) -> dict[tuple[tuple[int, ...], InstructionKind], Points]:
    """Group stages that were measured alike, in order of their first stage."""
    stages_of: dict[tuple[InstructionKind, Points], list[int]] = {}
    for stage in range(measured.num_stages):
        for kind in InstructionKind:
            points = measured.points.get((stage, kind))
            if points is not None:
                stages_of.setdefault((kind, points), []).append(stage)
    return {(tuple(stages), kind): points for (kind, points), stages in stages_of.items()}


def _fit_time(points: Points) -> Fit:
    clocks_mhz = [point.frequency_mhz for point in points]
    times_s = [point.time_s for point in points]

    def candidates() -> Iterator[Curve]:
        for knee_mhz in clocks_mhz[_CLOCKS_PER_PIECE:-_CLOCKS_PER_PIECE]:
            rows = [TimeCurve.terms(clock_mhz, knee_mhz) for clock_mhz in clocks_mhz]
            a, b, c = _least_squares(rows, times_s)
            yield TimeCurve(a, b, c, knee_mhz)

    def falls_with_the_clock(curve: Curve) -> bool:
        fitted_s = [curve.at(clock_mhz) for clock_mhz in clocks_mhz]
        return all(faster < slower for faster, slower in itertools.pairwise(fitted_s))

    return _best(candidates(), falls_with_the_clock, clocks_mhz, times_s)


def _fit_energy(points: Points) -> Fit:
    clocks_mhz = [point.frequency_mhz for point in points]
    energies_j = [point.energy_j for point in points]

    def candidates() -> Iterator[Curve]:
        inner = clocks_mhz[_CLOCKS_PER_PIECE:-_CLOCKS_PER_PIECE]
        for index, high_mhz in enumerate(inner):
            for low_mhz in inner[index + _CLOCKS_PER_PIECE :]:
                rows = [EnergyCurve.terms(clock_mhz, low_mhz, high_mhz) for clock_mhz in clocks_mhz]
                p, q, r, s, w = _least_squares(rows, energies_j)
                yield EnergyCurve(p, q, r, s, w, low_mhz, high_mhz)

    def has_one_valley(curve: Curve) -> bool:
        fitted_j = [curve.at(clock_mhz) for clock_mhz in reversed(clocks_mhz)]
        valley = fitted_j.index(min(fitted_j))
        return all(
            (low > high) == (index < valley) and low != high
            for index, (low, high) in enumerate(itertools.pairwise(fitted_j))
        )

    return _best(candidates(), has_one_valley, clocks_mhz, energies_j)


def _best(
    candidates: Iterator[Curve],
    has_right_shape: Callable[[Curve], bool],
    clocks_mhz: Sequence[int],
    values: Sequence[float],
) -> Fit:
    best: Fit | None = None
    for curve in candidates:
        errors = [
            curve.at(clock_mhz) / value - 1
            for clock_mhz, value in zip(clocks_mhz, values, strict=True)
        ]
        largest = max(map(abs, errors))
        if (best is None or largest < best.max_relative_error) and has_right_shape(curve):
            rms = math.sqrt(math.fsum(error * error for error in errors) / len(errors))
            best = Fit(curve=curve, max_relative_error=largest, rms_relative_error=rms)
    if best is None:
        raise ProfileError("no curve of the right shape fits the measured points")
    return best


def _least_squares(rows: Sequence[tuple[float, ...]], values: Sequence[float]) -> list[float]:
    """Return coefficients of the least squared relative error, rounded as they are written."""
    weighted = np.array(rows) / np.array(values)[:, None]
    solution = np.linalg.lstsq(weighted, np.ones(len(values)), rcond=None)[0]
    return [float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for value in solution]


if __name__ == "__main__":
    sys.exit(main())

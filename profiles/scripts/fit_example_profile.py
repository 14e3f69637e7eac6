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
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.examples import example_profile_path
from flyball_profiles.stage_profile import OperatingPoint, ProfileError, StageProfile
from flyball_profiles.stage_profile_csv import read_stage_profile, write_stage_profile

# A microsecond and a millijoule: well below the error of the fit.
_TIME_DIGITS = 6
_ENERGY_DIGITS = 3
_SIGNIFICANT_DIGITS = 6
# Measured clocks in each piece between knees and ends: enough to determine its coefficients.
_CLOCKS_PER_PIECE = 4
_PREAMBLE = """\
# Coefficients of the example stage profile, written by profiles/scripts/fit_example_profile.py.
# Frequencies are in MHz, times in s, energies in J; the curves are those of
# that script. Errors are relative, over the measured clocks.
source = "Stage profile gpt3-175b+a100_sxm_bf16.csv of the Perseus artifact (Chung et al., \
Reducing Energy Bloat in Large Model Training, SOSP '24), branch kronos of \
github.com/ml-energy/zeus: measured on NVIDIA A100 SXM GPUs"
source_license = "Apache-2.0"
"""


@dataclass(frozen=True, slots=True)
class TimeCurve:
    """`t(f) = a / f + b + c max(0, f - knee)^2`, f in GHz.

    Above the knee the time flattens: power, no longer the clock, limits the GPU.

    Attributes:
        a_s_ghz: work that scales with the clock, s GHz.
        b_s: work that does not scale, s.
        c_s_per_ghz2: flattening above the knee, s/GHz^2.
        knee_mhz: begin of the flattening, MHz.
    """

    a_s_ghz: float
    b_s: float
    c_s_per_ghz2: float
    knee_mhz: int

    @staticmethod
    def terms(frequency_mhz: int, knee_mhz: int) -> tuple[float, ...]:
        """Return the factors of a, b and c at one clock."""
        above = max(0, frequency_mhz - knee_mhz) / 1000
        return 1000 / frequency_mhz, 1.0, above * above

    def at(self, frequency_mhz: int) -> float:
        """Return the time at a clock, s."""
        by_a, by_b, by_c = self.terms(frequency_mhz, self.knee_mhz)
        return self.a_s_ghz * by_a + self.b_s * by_b + self.c_s_per_ghz2 * by_c


@dataclass(frozen=True, slots=True)
class EnergyCurve:
    """`E(f) = p + q f + r u + s u^2 + w v^2`, `u = max(0, f - low knee)`, `v` with the high one.

    Below the low knee the voltage is at its floor and energy falls slowly with a rising clock;
    above it voltage rises and energy with it; above the high knee power limits the GPU.

    Attributes:
        p_j: J.
        q_j_per_ghz: J/GHz.
        r_j_per_ghz: J/GHz.
        s_j_per_ghz2: J/GHz^2.
        w_j_per_ghz2: J/GHz^2.
        low_knee_mhz: clock from which the voltage rises, MHz.
        high_knee_mhz: clock from which power limits, MHz.
    """

    p_j: float
    q_j_per_ghz: float
    r_j_per_ghz: float
    s_j_per_ghz2: float
    w_j_per_ghz2: float
    low_knee_mhz: int
    high_knee_mhz: int

    @staticmethod
    def terms(frequency_mhz: int, low_knee_mhz: int, high_knee_mhz: int) -> tuple[float, ...]:
        """Return the factors of p, q, r, s and w at one clock."""
        above_low = max(0, frequency_mhz - low_knee_mhz) / 1000
        above_high = max(0, frequency_mhz - high_knee_mhz) / 1000
        return (
            1.0,
            frequency_mhz / 1000,
            above_low,
            above_low * above_low,
            above_high * above_high,
        )

    def at(self, frequency_mhz: int) -> float:
        """Return the energy at a clock, J."""
        terms = self.terms(frequency_mhz, self.low_knee_mhz, self.high_knee_mhz)
        by_p, by_q, by_r, by_s, by_w = terms
        return (
            self.p_j * by_p
            + self.q_j_per_ghz * by_q
            + self.r_j_per_ghz * by_r
            + self.s_j_per_ghz2 * by_s
            + self.w_j_per_ghz2 * by_w
        )


Points = tuple[OperatingPoint, ...]
Curve = TimeCurve | EnergyCurve


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
        profile = profile_of(coefficients.read_text(encoding="utf-8"))
        options.output.write_bytes(write_stage_profile(profile).encode())
    except (ProfileError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def profile_of(text: str) -> StageProfile:
    """Return the stage profile of coefficients, TOML text, rounded to 1 us and 1 mJ.

    It uses +, -, * and / on doubles only, so that it gives the same bytes everywhere.

    Raises:
        ProfileError: not TOML, or a key is missing, unknown or of another type.
    """
    try:
        table = tomllib.loads(text)
        clocks = table["clocks"]
        falling = range(clocks["max_mhz"], clocks["min_mhz"] - 1, -clocks["step_mhz"])
        points = {
            (stage, InstructionKind(entry["instruction"])): _points(entry, falling)
            for entry in table["instructions"]
            for stage in entry["stages"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"the coefficients cannot be used: {error!r}") from None
    num_stages = len({stage for stage, _ in points})
    return StageProfile(points=points, num_ranks_per_stage=(1,) * num_stages)


# tomllib's result has no better type; the dataclasses refuse unknown keys.
def _points(entry: dict[str, Any], clocks_mhz: range) -> Points:
    time, energy = TimeCurve(**entry["time"]["curve"]), EnergyCurve(**entry["energy"]["curve"])
    return tuple(
        OperatingPoint(
            frequency_mhz=clock_mhz,
            time_s=round(time.at(clock_mhz), _TIME_DIGITS),
            energy_j=round(energy.at(clock_mhz), _ENERGY_DIGITS),
        )
        for clock_mhz in clocks_mhz
    )


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

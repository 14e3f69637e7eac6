"""Time and energy of an instruction as curves over the SM clock, and their profiles.

The shipped example profile comes from such curves: its coefficients stand in a TOML file, and
generating the profile from them uses +, -, * and / on doubles only, so that it gives the same
bytes everywhere.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import Any

from flyball_profiles.stage_profile import (
    InstructionKind,
    OperatingPoint,
    ProfileError,
    StageProfile,
)

# A microsecond and a millijoule: well below the error of the fit.
_TIME_DIGITS = 6
_ENERGY_DIGITS = 3


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


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedInstruction:
    """The curves of one instruction kind on the stages that share them."""

    stages: tuple[int, ...]
    kind: InstructionKind
    time: TimeCurve
    energy: EnergyCurve


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedProfile:
    """Curves of a whole pipeline and the clocks, MHz in falling order, to evaluate them at."""

    clocks_mhz: tuple[int, ...]
    instructions: tuple[FittedInstruction, ...]

    def stage_profile(self) -> StageProfile:
        """Return the stage profile of the curves, rounded to 1 us and 1 mJ.

        Raises:
            ProfileError: the curves make no valid profile.
        """
        points = {
            (stage, instruction.kind): tuple(
                OperatingPoint(
                    frequency_mhz=clock_mhz,
                    time_s=round(instruction.time.at(clock_mhz), _TIME_DIGITS),
                    energy_j=round(instruction.energy.at(clock_mhz), _ENERGY_DIGITS),
                )
                for clock_mhz in self.clocks_mhz
            )
            for instruction in self.instructions
            for stage in instruction.stages
        }
        num_stages = len({stage for stage, _ in points})
        return StageProfile(points=points, num_ranks_per_stage=(1,) * num_stages)


def parse_fitted_profile(text: str) -> FittedProfile:
    """Read coefficients from TOML text.

    Raises:
        ProfileError: not TOML, or a key is missing, unknown or of another type.
    """
    try:
        table = tomllib.loads(text)
        clocks = table["clocks"]
        falling = range(clocks["max_mhz"], clocks["min_mhz"] - 1, -clocks["step_mhz"])
        instructions = tuple(_fitted_instruction(entry) for entry in table["instructions"])
    except (KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"the coefficients cannot be used: {error!r}") from None
    return FittedProfile(clocks_mhz=tuple(falling), instructions=instructions)


# tomllib's result has no better type; the dataclasses refuse unknown keys.
def _fitted_instruction(entry: dict[str, Any]) -> FittedInstruction:
    return FittedInstruction(
        stages=tuple(entry["stages"]),
        kind=InstructionKind(entry["instruction"]),
        time=TimeCurve(**entry["time"]["curve"]),
        energy=EnergyCurve(**entry["energy"]["curve"]),
    )

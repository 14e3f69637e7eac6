"""What joules come to in kWh, money and CO2, by factors that the user gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from flyball_wire.closed_loop import Estimate

J_PER_KWH = 3.6e6


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Factors of the user; None: not given, and then nothing is said of it.

    Attributes:
        price_per_kwh: in `currency`.
        currency: as it is to be printed.
        co2_g_per_kwh: g of CO2 (or its equivalent) that a kWh causes.
    """

    price_per_kwh: float | None = None
    currency: str = "EUR"
    co2_g_per_kwh: float | None = None

    def cost_of(self, energy_j: float) -> float | None:
        """What it costs, in `currency`."""
        return None if self.price_per_kwh is None else kwh_of(energy_j) * self.price_per_kwh

    def co2_g_of(self, energy_j: float) -> float | None:
        """CO2 that it causes, g."""
        return None if self.co2_g_per_kwh is None else kwh_of(energy_j) * self.co2_g_per_kwh


def energy_text(energy_j: float) -> str:
    """Joules in the unit that suits them: `214.31 kJ`."""
    for limit, factor, unit in ((1e9, 1e-9, "GJ"), (1e6, 1e-6, "MJ"), (1e4, 1e-3, "kJ")):
        if abs(energy_j) >= limit:
            return f"{energy_j * factor:.4g} {unit}"
    return f"{energy_j:.4g} J"


def kwh_of(energy_j: float) -> float:
    """Joules as kWh."""
    return energy_j / J_PER_KWH


def kwh_text(energy_j: float) -> str:
    """Joules as kWh, for people."""
    return f"{kwh_of(energy_j):.4g} kWh"


def co2_text(co2_g: float) -> str:
    """CO2 in g, or in kg."""
    return f"{co2_g / 1e3:.4g} kg CO2" if abs(co2_g) >= 1e3 else f"{co2_g:.4g} g CO2"


def amounts_text(energy_j: float, factors: Factors) -> str:
    """Joules in all that can be said of them: `214.3 kJ, 0.05953 kWh, 0.01786 EUR, 22.62 g CO2`."""
    cost, co2_g = factors.cost_of(energy_j), factors.co2_g_of(energy_j)
    parts = [energy_text(energy_j), kwh_text(energy_j)]
    if cost is not None:
        parts.append(f"{cost:.4g} {factors.currency}")
    if co2_g is not None:
        parts.append(co2_text(co2_g))
    return ", ".join(parts)


def converted(estimate: Estimate, convert: Callable[[float], float | None]) -> Estimate | None:
    """An estimate in another unit; None where there is no factor."""
    mean = convert(estimate.mean)
    if mean is None:
        return None
    return replace(
        estimate,
        mean=mean,
        low=None if estimate.low is None else convert(estimate.low),
        high=None if estimate.high is None else convert(estimate.high),
    )

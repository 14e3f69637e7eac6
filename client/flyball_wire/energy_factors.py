"""Price and emissions of energy, which the page and reports show beside joules."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

J_PER_KWH = 3.6e6


@dataclass(frozen=True, kw_only=True)
class EnergyFactors:
    """Price and emissions of energy; null: not given, and not shown.

    Attributes:
        price_per_kwh: price of a kWh in `currency`.
        currency: name of the currency.
        co2_g_per_kwh: CO2 emissions (or equivalent) of a kWh in g.
    """

    price_per_kwh: float | None = None
    currency: str = "EUR"
    co2_g_per_kwh: float | None = None

    def cost_of(self, energy_j: float) -> float | None:
        """Return the cost in `currency`; None: no price is given."""
        return None if self.price_per_kwh is None else kwh_of(energy_j) * self.price_per_kwh

    def co2_g_of(self, energy_j: float) -> float | None:
        """Return the CO2 emissions in g; None: no factor is given."""
        return None if self.co2_g_per_kwh is None else kwh_of(energy_j) * self.co2_g_per_kwh


NO_FACTORS = EnergyFactors()


def kwh_of(energy_j: float) -> float:
    """Return an energy in kWh."""
    return energy_j / J_PER_KWH


CURRENCY_RULE = "1 to 12 letters, digits, spaces and currency signs, such as EUR"


def is_currency(name: str) -> bool:
    """Return whether a name obeys CURRENCY_RULE, which excludes markup of Markdown and HTML."""
    return bool(name.strip()) and len(name) <= 12 and all(map(_is_of_currency, name))


def _is_of_currency(character: str) -> bool:
    is_sign = unicodedata.category(character) == "Sc"
    return is_sign or character == " " or character.isalnum()

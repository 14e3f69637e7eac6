"""Time and cost of an instruction by clock, relative to its time at the highest clock.

A step multiplies an instruction's times and energies by one factor, so an instruction's curve is
that of its stage, kind and chunk, whatever its work is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple


class ClockPoint(NamedTuple):
    """Time and energy of one instruction at one clock, at factor 1."""

    #: SM clock, MHz.
    clock_mhz: int
    #: Time, s.
    time_s: float
    #: Energy, J.
    energy_j: float


@dataclass(frozen=True, kw_only=True)
class StepCurve:
    """Clocks of one kind of instruction that a step may use, the fastest first.

    Lower clocks that are not slower and cheaper net of waiting than those before are left out, so
    times rise and costs fall. Clocks are numbered over the whole pipeline, 0 the highest.
    """

    #: Time at the highest clock, s.
    highest_s: float
    #: Per clock that is kept, its time over `highest_s`; rises from 1.
    ratios: tuple[float, ...]
    #: Per clock that is kept, its energy net of waiting at factor 1, J; falls.
    costs_j: tuple[float, ...]
    #: Per clock that is kept, its number in the pipeline.
    numbers: tuple[int, ...]
    #: Per clock of the pipeline, time over `highest_s` of an instruction that runs at it; rises.
    #: A clock without a point counts as the next lower clock.
    ratio_of_number: tuple[float, ...]
    #: Per number of a clock that is kept, its index among them.
    choice_of_number: Mapping[int, int]

    def with_reserve(self, reserve: float) -> StepCurve:
        """Return the curve with this share more time at every clock but the highest."""

        def longer(ratios: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(1.0 if ratio == 1 else ratio * (1 + reserve) for ratio in ratios)

        return replace(
            self, ratios=longer(self.ratios), ratio_of_number=longer(self.ratio_of_number)
        )


def step_curves(
    points: Sequence[Sequence[ClockPoint]], waiting_power_w: Sequence[float]
) -> tuple[tuple[int, ...], list[StepCurve]]:
    """Return the clocks of a pipeline in MHz, the highest first, and the curve of each instruction.

    Args:
        points: per instruction, its points, at least one, in any order.
        waiting_power_w: per instruction, power of its stage while it waits, W.
    """
    # Instructions are many, and most share one object.
    distinct = {id(of_instruction): of_instruction for of_instruction in points}
    clocks = {point.clock_mhz for of_instruction in distinct.values() for point in of_instruction}
    clocks_mhz = tuple(sorted(clocks, reverse=True))
    curves: dict[tuple[int, float], StepCurve] = {}
    for of_instruction, power_w in zip(points, waiting_power_w, strict=True):
        if (id(of_instruction), power_w) not in curves:
            curves[id(of_instruction), power_w] = _step_curve(of_instruction, power_w, clocks_mhz)
    both = zip(points, waiting_power_w, strict=True)
    return clocks_mhz, [curves[id(of_instruction), power_w] for of_instruction, power_w in both]


def _step_curve(
    points: Sequence[ClockPoint], waiting_power_w: float, clocks_mhz: tuple[int, ...]
) -> StepCurve:
    by_clock = sorted(points, key=lambda point: -point.clock_mhz)
    number_of = {clock_mhz: number for number, clock_mhz in enumerate(clocks_mhz)}
    highest_s = by_clock[0].time_s
    ratios: list[float] = []
    costs_j: list[float] = []
    numbers: list[int] = []
    for clock_mhz, time_s, energy_j in by_clock:
        cost_j = energy_j - waiting_power_w * time_s
        ratio = time_s / highest_s
        if ratios and (ratio <= ratios[-1] or cost_j >= costs_j[-1]):
            continue
        ratios.append(ratio)
        costs_j.append(cost_j)
        numbers.append(number_of[clock_mhz])
    return StepCurve(
        highest_s=highest_s,
        ratios=tuple(ratios),
        costs_j=tuple(costs_j),
        numbers=tuple(numbers),
        ratio_of_number=_ratio_of_number(by_clock, clocks_mhz),
        choice_of_number={number: choice for choice, number in enumerate(numbers)},
    )


def _ratio_of_number(
    by_clock: Sequence[ClockPoint], clocks_mhz: tuple[int, ...]
) -> tuple[float, ...]:
    highest_s = by_clock[0].time_s
    ratios: list[float] = []
    slowest, place = 0.0, 0
    for clock_mhz in clocks_mhz:
        while place < len(by_clock) - 1 and by_clock[place].clock_mhz > clock_mhz:
            place += 1
        slowest = max(slowest, by_clock[place].time_s / highest_s)
        ratios.append(slowest)
    return tuple(ratios)

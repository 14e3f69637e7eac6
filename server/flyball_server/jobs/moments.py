"""Moments of measurements by plan version and stage, which outlive the measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from flyball_server.jobs.records import Record

Key = TypeVar("Key")
InstructionKey = tuple[str, int, int | None]
"""Kind, model chunk and requested clock in MHz; None: the driver's choice."""


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Number, mean and sum of squared deviations from the mean of some values.

    They merge without the values (T. F. Chan, G. H. Golub and R. J. LeVeque, Updating formulae and
    a pairwise algorithm for computing sample variances, 1979, eq. 2.1).
    """

    count: int
    mean: float
    m2: float

    @property
    def variance(self) -> float | None:
        """Sample variance; None: fewer than two values."""
        return self.m2 / (self.count - 1) if self.count > 1 else None

    def merged(self, other: Moments) -> Moments:
        """Return the moments of the values of both."""
        count = self.count + other.count
        if not count:
            return self
        offset = other.mean - self.mean
        return Moments(
            count=count,
            mean=self.mean + offset * other.count / count,
            m2=self.m2 + other.m2 + offset**2 * self.count * other.count / count,
        )


def merged_by_key(some: Mapping[Key, Moments], others: Mapping[Key, Moments]) -> dict[Key, Moments]:
    """Return the moments of both under each key."""
    merged = dict(some)
    for key, moments in others.items():
        merged[key] = merged[key].merged(moments) if key in merged else moments
    return merged


@dataclass(frozen=True, kw_only=True)
class StageMoments(Record):
    """Measurements of the ranks of a stage on one plan version, where they ran as planned.

    Attributes:
        plan_version: plan version; None: default clocks.
        times_s, energies_j: moments over ranks and steps, in s and J, by the steps' clocks: 0 on
            the plan, 1 at the highest clocks of a comparison; of a version of online profiling,
            the row of its cycle.
        instructions_s: moments of the times of single instructions, s.
    """

    plan_version: int | None
    stage: int
    times_s: Mapping[int, Moments] = field(default_factory=dict[int, Moments])
    energies_j: Mapping[int, Moments] = field(default_factory=dict[int, Moments])
    instructions_s: Mapping[InstructionKey, Moments] = field(
        default_factory=dict[InstructionKey, Moments]
    )

    @property
    def place(self) -> tuple[int, int]:
        """Return the sort key: version (none first), stage."""
        return self.plan_version or 0, self.stage

    def merged(self, other: StageMoments) -> StageMoments:
        """Return the moments of both, which are of the same version and stage."""
        return self.evolve(
            times_s=merged_by_key(self.times_s, other.times_s),
            energies_j=merged_by_key(self.energies_j, other.energies_j),
            instructions_s=merged_by_key(self.instructions_s, other.instructions_s),
        )


def merged_moments(several: Iterable[StageMoments]) -> dict[tuple[int, int], StageMoments]:
    """Return the moments of each version and stage, by their place."""
    merged: dict[tuple[int, int], StageMoments] = {}
    for each in several:
        known = merged.get(each.place)
        merged[each.place] = each if known is None else known.merged(each)
    return merged


@dataclass(frozen=True, kw_only=True)
class StepMoments(Record):
    """Times and energies of one step over the ranks of a stage that ran a version as planned."""

    step: int
    stage: int
    plan_version: int | None
    time_s: Moments
    energy_j: Moments

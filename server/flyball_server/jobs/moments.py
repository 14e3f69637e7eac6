"""Moments of the times of instructions, by plan version and stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flyball_server.jobs.records import Record

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


@dataclass(frozen=True, kw_only=True)
class StageMoments(Record):
    """Times of instructions of the ranks of a stage on one plan version, as planned."""

    #: Plan version; None: default clocks.
    plan_version: int | None
    stage: int
    #: Moments of the times of single instructions, s.
    instructions_s: Mapping[InstructionKey, Moments] = field(
        default_factory=dict[InstructionKey, Moments]
    )

    @property
    def place(self) -> tuple[int, int]:
        """Return the sort key: version (none first), stage."""
        return self.plan_version or 0, self.stage

    def merged(self, other: StageMoments) -> StageMoments:
        """Return the moments of both, which are of the same version and stage."""
        merged = dict(self.instructions_s)
        for key, moments in other.instructions_s.items():
            merged[key] = merged[key].merged(moments) if key in merged else moments
        return self.evolve(instructions_s=merged)


def merged_moments(several: Iterable[StageMoments]) -> dict[tuple[int, int], StageMoments]:
    """Return the moments of each version and stage, by their place."""
    merged: dict[tuple[int, int], StageMoments] = {}
    for each in several:
        known = merged.get(each.place)
        merged[each.place] = each if known is None else known.merged(each)
    return merged

"""A figure with its 95 % confidence interval, and figures computed from several means.

Intervals are two-sided, by Student's t.
"""

# scipy has no types: its results are unknown to a type checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportMissingImports=false

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from flyball_wire.savings import Estimate

_PROBABILITY = 0.975


def scaled(estimate: Estimate, factor: float, offset: float = 0.0) -> Estimate:
    """Return `offset + factor * estimate`; a negative factor swaps the interval's bounds."""
    mean = offset + factor * estimate.mean
    if estimate.low is None or estimate.high is None:
        return replace(estimate, mean=mean)
    low, high = sorted((offset + factor * estimate.low, offset + factor * estimate.high))
    return replace(estimate, mean=mean, low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class MeanEstimate:
    """A mean, or a figure computed from means, with its variance.

    Attributes:
        variance: standard error squared; None: too few measurements.
        degrees_of_freedom: degrees of freedom of the variance, 0 if it is None.
        num_steps: number of measured steps.
    """

    mean: float
    variance: float | None
    degrees_of_freedom: float
    num_steps: int

    @classmethod
    def of_parts(cls, mean: float, parts: Sequence[float], *, num_steps: int) -> MeanEstimate:
        """Return the mean with a variance estimated from independent parts of the steps.

        Args:
            mean: mean of all steps.
            parts: mean of each part, or its deviation; with fewer than two the variance is None.
            num_steps: number of all steps.
        """
        num = len(parts)
        if num < 2:
            return cls(mean=mean, variance=None, degrees_of_freedom=0, num_steps=num_steps)
        center = math.fsum(parts) / num
        squares = math.fsum((part - center) ** 2 for part in parts)
        return cls(
            mean=mean,
            variance=squares / (num - 1) / num,
            degrees_of_freedom=num - 1,
            num_steps=num_steps,
        )

    def interval(self) -> Estimate:
        """Return the mean with its confidence interval: mean +- t * standard error."""
        if self.variance is None:
            return Estimate(mean=self.mean, low=None, high=None, num_steps=self.num_steps)
        half = quantile_of_t(self.degrees_of_freedom) * math.sqrt(self.variance)
        return Estimate(
            mean=self.mean, low=self.mean - half, high=self.mean + half, num_steps=self.num_steps
        )


def quantile_of_t(degrees_of_freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t."""
    # Imported with the first interval, long after the planner's start.
    from scipy.special import stdtrit  # noqa: PLC0415

    return float(stdtrit(degrees_of_freedom, _PROBABILITY))


def combined(terms: Iterable[tuple[float, MeanEstimate]]) -> MeanEstimate:
    """Return the sum of `factor * mean` of independent estimates (Welch and Satterthwaite)."""
    known = tuple(terms)
    mean = math.fsum(factor * term.mean for factor, term in known)
    num_steps = min(term.num_steps for _, term in known)
    variances = [
        (factor**2 * term.variance, term.degrees_of_freedom)
        for factor, term in known
        if term.variance is not None
    ]
    if len(variances) < len(known):
        return MeanEstimate(mean=mean, variance=None, degrees_of_freedom=0, num_steps=num_steps)
    return MeanEstimate(
        mean=mean,
        variance=math.fsum(variance for variance, _ in variances),
        degrees_of_freedom=_degrees_of_freedom(variances),
        num_steps=num_steps,
    )


def ratio_of(a: MeanEstimate, b: MeanEstimate) -> Estimate | None:
    """Return the ratio of independent means, `a` over `b`; None if a mean is not above 0.

    The logarithm's variance is the sum of the squared relative errors (delta method), so the
    interval is not symmetric about the ratio; degrees of freedom by Welch and Satterthwaite.
    """
    if a.mean <= 0 or b.mean <= 0:
        return None
    ratio = a.mean / b.mean
    num_steps = min(a.num_steps, b.num_steps)
    if a.variance is None or b.variance is None:
        return Estimate(mean=ratio, low=None, high=None, num_steps=num_steps)
    variances = [
        (side.variance / side.mean**2, side.degrees_of_freedom)
        for side in (a, b)
        if side.variance is not None
    ]
    variance = math.fsum(each for each, _ in variances)
    factor = math.exp(quantile_of_t(_degrees_of_freedom(variances)) * math.sqrt(variance))
    return Estimate(mean=ratio, low=ratio / factor, high=ratio * factor, num_steps=num_steps)


def _degrees_of_freedom(variances: list[tuple[float, float]]) -> float:
    total = math.fsum(variance for variance, _ in variances)
    weighted = math.fsum(variance**2 / degrees for variance, degrees in variances)
    if weighted == 0:  # no scatter at all
        return min(degrees for _, degrees in variances)
    return total**2 / weighted

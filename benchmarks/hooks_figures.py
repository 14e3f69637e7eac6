"""Distributions of what benchmarks/hooks.py measures, and which steps count."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hooks_series import Series
from measured_process import BenchmarkError


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Of times, us."""

    num_samples: int
    median_us: float
    p99_us: float
    max_us: float

    @classmethod
    def of(cls, samples_us: Sequence[float]) -> Distribution | None:
        """None: there are no samples."""
        if not samples_us:
            return None
        rising = sorted(samples_us)
        # The smallest sample that at least so many are not above.
        return cls(
            num_samples=len(rising),
            median_us=rising[(len(rising) - 1) // 2],
            p99_us=rising[-(-99 * len(rising) // 100) - 1],
            max_us=rising[-1],
        )


@dataclass(frozen=True, kw_only=True)
class SeriesFigure:
    """One series of one client.

    Attributes:
        client: `flyball`, `zeus` or the bare wake.
        series: what was run.
        others_share: what other processes used of the CPUs meanwhile, 0 to 1.
        controller_share: CPU time of the process that calls NVML, of one CPU, 0 to 1.
        change: the end hook and the next begin hook, where the clock is another than before.
        same: where it is not.
        arrival: from the end hook's beginning to NVML being asked for the clock.
        num_superseded: changes that NVML was never asked for, since a newer one came.
        delivery: from the request to the governor seeing it while it waited for one.
        delivery_in_call: where it was in an NVML call when the request came.
    """

    client: str
    series: Series
    others_share: float
    controller_share: float
    change: Distribution
    same: Distribution
    arrival: Distribution | None
    num_superseded: int
    delivery: Distribution | None
    delivery_in_call: Distribution | None

    @classmethod
    def of(cls, client: str, series: Series, steps: Sequence[dict[str, Any]]) -> SeriesFigure:
        """Of the steps that the drivers found, those in which others used the least.

        As many as one run has; they are chosen by that, not by their own times.
        """
        by_others = sorted(steps, key=lambda step: float(step["others_share"]))
        kept = by_others[: series.num_steps]

        def pooled(name: str) -> list[float]:
            return [sample for step in kept for sample in step[name]]

        change, same = Distribution.of(pooled("change_us")), Distribution.of(pooled("same_us"))
        if change is None or same is None:
            raise BenchmarkError(f"{client}, {series.load}: no hook was called")
        return cls(
            client=client,
            series=series,
            others_share=statistics.fmean(step["others_share"] for step in kept),
            controller_share=statistics.fmean(step["controller_share"] for step in kept),
            change=change,
            same=same,
            arrival=Distribution.of(pooled("arrival_us")),
            num_superseded=sum(step["num_superseded"] for step in kept),
            delivery=Distribution.of(pooled("delivery_us")),
            delivery_in_call=Distribution.of(pooled("delivery_in_call_us")),
        )

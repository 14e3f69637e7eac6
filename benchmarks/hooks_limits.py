"""Limits of Flyball's hooks, held against a bare wake in the same series.

A bare wake is the least that any client does which leaves its requests to another process: two
stores and one write to an eventfd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from benchmark_report import Limit, at_most
from hooks_figures import SeriesFigure
from hooks_load import EAGER_TORCH, GPU_KERNELS, SLEEPING

MAX_MEDIAN_ABOVE_BARE_US = 10.0
MAX_P99_OVER_BARE = 2.0

# The rank's own thread is free to run: here the hook's call is all there is to wait for.
HOOK_LOADS = (SLEEPING, EAGER_TORCH, GPU_KERNELS)

# Flyball's figure, and the bare wake's of the same series.
Pair = tuple[SeriesFigure, SeriesFigure]


def hook_limits(ours: Sequence[SeriesFigure], bare: Sequence[SeriesFigure]) -> list[Limit]:
    """Return two limits for each load that was run, each judged by its worst series.

    Args:
        ours: Flyball's series.
        bare: the bare wake's, of the same series.
    """
    bare_of = {figure.series: figure for figure in bare}
    run = {figure.series.load for figure in ours}
    return list(
        chain.from_iterable(
            _limits(load, [(our, bare_of[our.series]) for our in ours if our.series.load == load])
            for load in HOOK_LOADS
            if load in run
        )
    )


def _limits(load: str, pairs: Sequence[Pair]) -> list[Limit]:
    return [
        at_most(
            f"hook, {load}, another clock: median above the bare wake's, us",
            _worst(pairs, lambda our, bare: our.change.median_us - bare.change.median_us),
            MAX_MEDIAN_ABOVE_BARE_US,
        ),
        at_most(
            f"hook, {load}, another clock: 99th percentile over the bare wake's",
            _worst(pairs, lambda our, bare: our.change.p99_us / bare.change.p99_us),
            MAX_P99_OVER_BARE,
        ),
    ]


def _worst(pairs: Sequence[Pair], compare: Callable[[SeriesFigure, SeriesFigure], float]) -> float:
    return max(compare(our, bare) for our, bare in pairs)

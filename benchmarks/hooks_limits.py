"""What the hooks of benchmarks/hooks.py must keep, beside what a bare wake takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter

from benchmark_report import Limit, at_most
from hooks_figures import SeriesFigure
from hooks_load import C_CALLER, C_THREAD, EAGER_TORCH, GPU_KERNELS, PYTHON_THREAD, SLEEPING
from measured_process import BenchmarkError

MAX_CHANGE_MEDIAN_US, MAX_CHANGE_P99_US = 5.0, 30.0
MAX_SAME_MEDIAN_US = 2.0
MAX_DELIVERY_P99_US = 100.0
# Of one core, on average over a series' steps and what the governor may save up before them.
MAX_POLLING_PERCENT = 3.0

# The rank's own thread is free to run: here the hook's call is all there is to wait for.
TORCH_LOADS = (EAGER_TORCH, GPU_KERNELS)
HOOK_LOADS = (SLEEPING, *TORCH_LOADS)
GIL_LOADS = (PYTHON_THREAD, C_THREAD, C_CALLER)

# Ours, and the bare wake's of the same series.
Pair = tuple[SeriesFigure, SeriesFigure]


def hook_limits(ours: Sequence[SeriesFigure], bare: Sequence[SeriesFigure]) -> list[Limit]:
    """Of the loads that were run; for each limit the worst series of a load.

    Args:
        ours: Flyball's series, hooks apart.
        bare: the bare wake's, the same ones.

    Raises:
        BenchmarkError: a series has no request that the governor waited for.
    """
    bare_of = {figure.series: figure for figure in bare}

    def pairs(loads: Sequence[str]) -> list[Pair]:
        return [(our, bare_of[our.series]) for our in ours if our.series.load in loads]

    run = {figure.series.load for figure in ours}
    calls = [_call_limits(load, pairs([load])) for load in HOOK_LOADS if load in run]
    return [
        *chain.from_iterable(calls),
        *(_delivery_limit(load, pairs([load])) for load in TORCH_LOADS if load in run),
        _delivery_limit("the GIL held", pairs(GIL_LOADS)),
        at_most(
            "governor looking out for requests, % of a core",
            100 * max(figure.polling_share or 0.0 for figure in ours),
            MAX_POLLING_PERCENT,
        ),
    ]


def _call_limits(load: str, pairs: Sequence[Pair]) -> list[Limit]:
    calls: tuple[tuple[str, Callable[[SeriesFigure], float], float], ...] = (
        ("another clock: median", lambda figure: figure.change.median_us, MAX_CHANGE_MEDIAN_US),
        ("another clock: 99th percentile", lambda figure: figure.change.p99_us, MAX_CHANGE_P99_US),
        ("same clock: median", lambda figure: figure.same.median_us, MAX_SAME_MEDIAN_US),
    )
    return [_worst(f"hook, {load}, {name}, us", read, pairs, bound) for name, read, bound in calls]


def _delivery_limit(name: str, pairs: Sequence[Pair]) -> Limit:
    def p99_us(figure: SeriesFigure) -> float:
        if figure.delivery is None:
            raise BenchmarkError(f"{name}: no request came while {figure.client} waited for one")
        return figure.delivery.p99_us

    return _worst(
        f"request to waiting governor, {name}: 99th percentile, us",
        p99_us,
        pairs,
        MAX_DELIVERY_P99_US,
    )


def _worst(
    name: str, read: Callable[[SeriesFigure], float], pairs: Sequence[Pair], bound: float
) -> Limit:
    found = ((read(our), (bare.client, read(bare))) for our, bare in pairs)
    value, peer = max(found, key=itemgetter(0))
    return at_most(name, value, bound, peer=peer)

"""Limits of hooks: each load's worst series, beside the bare wake in the same series."""

from __future__ import annotations

import pytest

from hooks_figures import Distribution, SeriesFigure
from hooks_limits import hook_limits
from hooks_load import EAGER_TORCH, PYTHON_THREAD, SLEEPING
from hooks_series import Series


def figure(
    client: str, load: str, latency_us: int, median_us: float, p99_us: float
) -> SeriesFigure:
    change = Distribution(num_samples=100, median_us=median_us, p99_us=p99_us, max_us=p99_us)
    return SeriesFigure(
        client=client,
        series=Series(load=load, set_latency_us=latency_us, pause_s=0.002, num_steps=1),
        others_share=0.0,
        controller_share=0.0,
        change=change,
        same=change,
        arrival=None,
        num_superseded=0,
        delivery=None,
        delivery_in_call=None,
    )


def test_the_worst_series_of_a_load_is_judged_beside_the_bare_wake_of_the_same() -> None:
    ours = [figure("flyball", EAGER_TORCH, 0, 30, 40), figure("flyball", EAGER_TORCH, 5000, 41, 90)]
    bare = [figure("bare", EAGER_TORCH, 5000, 30, 50), figure("bare", EAGER_TORCH, 0, 29, 19)]
    median, p99 = hook_limits(ours, bare)
    assert (median.value, median.is_kept) == (11, False)
    assert p99.value == pytest.approx(40 / 19)
    assert not p99.is_kept


def test_a_hook_that_takes_as_long_as_the_bare_wake_keeps_both_limits() -> None:
    ours, bare = figure("flyball", SLEEPING, 0, 12, 60), figure("bare", SLEEPING, 0, 12, 60)
    assert [limit.is_kept for limit in hook_limits([ours], [bare])] == [True, True]


def test_a_load_that_holds_the_interpreter_has_no_limit_of_its_own() -> None:
    series = [figure(name, PYTHON_THREAD, 0, 900, 9000) for name in ("flyball", "bare")]
    assert hook_limits(series[:1], series[1:]) == []

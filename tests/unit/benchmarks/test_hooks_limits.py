"""Which series a limit is judged by, and whose figure stands beside it."""

from __future__ import annotations

import pytest

from hooks_figures import Distribution, SeriesFigure
from hooks_limits import hook_limits
from hooks_load import C_CALLER, C_THREAD, EAGER_TORCH, GPU_KERNELS, PYTHON_THREAD, SLEEPING
from hooks_series import Series
from measured_process import BenchmarkError


def distribution(median_us: float, p99_us: float) -> Distribution:
    return Distribution(num_samples=100, median_us=median_us, p99_us=p99_us, max_us=p99_us)


def figure(
    client: str,
    load: str,
    latency_us: int,
    *,
    change_us: tuple[float, float] = (1, 1),
    same_us: float = 1,
    delivery_p99_us: float | None = 1,
    polling_share: float = 0.01,
) -> SeriesFigure:
    return SeriesFigure(
        client=client,
        series=Series(load=load, set_latency_us=latency_us, pause_s=0.002, num_steps=1),
        others_share=0.0,
        controller_share=0.0,
        polling_share=polling_share,
        unwoken_share=1.0,
        change=distribution(*change_us),
        same=distribution(same_us, same_us),
        arrival=None,
        num_superseded=0,
        delivery=None if delivery_p99_us is None else distribution(1, delivery_p99_us),
        delivery_in_call=None,
    )


QUIET = [figure("flyball", load, 0) for load in (SLEEPING, PYTHON_THREAD, C_THREAD, C_CALLER)]
QUIET_BARE = [
    figure("bare wake", load, 0) for load in (SLEEPING, PYTHON_THREAD, C_THREAD, C_CALLER)
]


def test_the_worst_series_of_a_load_counts_beside_the_bare_wake_of_the_same() -> None:
    ours = [
        figure("flyball", EAGER_TORCH, 0, change_us=(2, 31), same_us=3, delivery_p99_us=90),
        figure("flyball", EAGER_TORCH, 5000, change_us=(4, 20), same_us=1, delivery_p99_us=101),
    ]
    bare = [
        figure("bare wake", EAGER_TORCH, 5000, change_us=(50, 60), same_us=5, delivery_p99_us=300),
        figure("bare wake", EAGER_TORCH, 0, change_us=(30, 40), same_us=6, delivery_p99_us=400),
    ]
    found = {
        limit.name: (limit.value, limit.is_kept, limit.peer)
        for limit in hook_limits([*ours, *QUIET], [*bare, *QUIET_BARE])
        if EAGER_TORCH in limit.name
    }
    assert found == {
        f"hook, {EAGER_TORCH}, another clock: median, us": (4, True, ("bare wake", 50)),
        f"hook, {EAGER_TORCH}, another clock: 99th percentile, us": (31, False, ("bare wake", 40)),
        f"hook, {EAGER_TORCH}, same clock: median, us": (3, False, ("bare wake", 6)),
        f"request to waiting governor, {EAGER_TORCH}: 99th percentile, us": (
            101,
            False,
            ("bare wake", 300),
        ),
    }


def test_loads_that_were_not_run_have_no_limits() -> None:
    names = [limit.name for limit in hook_limits(QUIET, QUIET_BARE)]
    assert not any(load in name for load in (EAGER_TORCH, GPU_KERNELS) for name in names)
    assert len([name for name in names if SLEEPING in name]) == 3


def test_all_loads_that_hold_the_gil_are_judged_together() -> None:
    slow = figure("flyball", C_CALLER, 5000, delivery_p99_us=120)
    slow_bare = figure("bare wake", C_CALLER, 5000, delivery_p99_us=150)
    (found,) = (
        limit
        for limit in hook_limits([slow, *QUIET], [slow_bare, *QUIET_BARE])
        if "the GIL held" in limit.name
    )
    assert (found.value, found.is_kept, found.peer) == (120, False, ("bare wake", 150))


def test_what_looking_out_takes_is_that_of_the_dearest_series() -> None:
    dear = figure("flyball", SLEEPING, 5000, polling_share=0.031)
    found = hook_limits([dear, *QUIET], [figure("bare wake", SLEEPING, 5000), *QUIET_BARE])[-1]
    assert found.value == pytest.approx(3.1)
    assert not found.is_kept


def test_a_series_without_a_request_that_was_waited_for_cannot_be_judged() -> None:
    ours = [figure("flyball", EAGER_TORCH, 0, delivery_p99_us=None), *QUIET]
    bare = [figure("bare wake", EAGER_TORCH, 0), *QUIET_BARE]
    with pytest.raises(BenchmarkError, match="no request came while flyball waited for one"):
        hook_limits(ours, bare)

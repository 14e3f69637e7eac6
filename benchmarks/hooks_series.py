"""One series of hooks, paced and timed, the same for Flyball's client and for its peer.

Each step of the series goes through the same plan: forwards at a new clock each, every one
followed by a backward at the same clock. A sample is what a rank calls between two computations:
the end hook of the one, where Flyball requests the next clock, and the begin hook of the next,
where Zeus does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hooks_cpu import CpuUse, cpu_time_ns, wait_until_quiet
from hooks_gpus import HIGHEST_MHZ, STEP_MHZ, CallRecord, NvmlCall
from hooks_load import loaded
from measured_process import BenchmarkError

NUM_MICROBATCHES = 100
WARM_UP_STEPS = 5
SETTLED_S = 0.1
SETTLE_GIVE_UP_S = 20.0


def planned_mhz(microbatch: int) -> int:
    """The clock of a microbatch's forward and backward; no two in a plan are the same."""
    # Neighbours lie far apart, as in a real plan.
    return HIGHEST_MHZ - STEP_MHZ * (1 + microbatch * 7 % NUM_MICROBATCHES)


INSTRUCTIONS = tuple(
    (kind, microbatch, planned_mhz(microbatch))
    for microbatch in range(NUM_MICROBATCHES)
    for kind in ("forward", "backward")
)


@dataclass(frozen=True, kw_only=True)
class Series:
    """One series of hooks to measure.

    Attributes:
        load: one of `hooks_load.LOADS`, or `GPU_KERNELS`.
        set_latency_us: how long NVML takes to set a clock, us.
        pause_s: between two hooks, s.
        num_steps: of `2 * NUM_MICROBATCHES` instructions each, after the warm-up.
        quiet_wait_s: how long each step may wait for other processes to be quiet, s.
    """

    load: str
    set_latency_us: int
    pause_s: float
    num_steps: int
    quiet_wait_s: float = 1.0


@dataclass(frozen=True, kw_only=True)
class TimedHook:
    """The hooks before one computation: the end of the one before, and its own begin.

    Attributes:
        began_ns: CLOCK_MONOTONIC before the first call, ns.
        time_ns: of both calls, ns.
        mhz: the clock that the instruction wants.
        is_change: it is another than that of the instruction before.
        delivery_ns: when the governor was asked and when it saw that, ns; None: not known.
    """

    began_ns: int
    time_ns: int
    mhz: int
    is_change: bool
    delivery_ns: tuple[int, int] | None


class HookedRank(Protocol):
    """A rank with hooks, of whichever library."""

    def on_step_begin(self) -> None:
        """A step begins."""
        ...

    def on_step_end(self) -> None:
        """A step is over."""
        ...

    @property
    def begin_hook(self) -> Callable[..., None]:
        """Return the hook that is called with the kind, and the microbatch where it wants it."""
        ...

    @property
    def wants_microbatch(self) -> bool:
        """Return whether the hook takes the microbatch."""
        ...

    def end_hook(self, kind: str) -> None:
        """An instruction is over."""
        ...

    def take_delivery_ns(self) -> tuple[int, int] | None:
        """Moments of the controller's last request and its receipt, ns, where they can be read."""
        ...

    @property
    def controller_pid(self) -> int:
        """The process that calls NVML."""
        ...


def run_series(series: Series, rank: HookedRank, record: CallRecord) -> list[dict[str, Any]]:
    """For each step its samples, all in us, see `_samples`, and who used the CPUs.

    `others_share` is what others took of all CPUs' time, `controller_share` what the controller
    took of one CPU's.
    """
    own = (os.getpid(), rank.controller_pid)
    with loaded(series.load) as pause:
        record.begin(set_latency_us=0)
        for _ in range(WARM_UP_STEPS):
            _run_step(rank, pause, series.pause_s)
        _settle(record)
        record.begin(set_latency_us=series.set_latency_us)
        steps: list[tuple[dict[str, float], list[TimedHook]]] = []
        for _ in range(series.num_steps):
            wait_until_quiet(own, series.quiet_wait_s)
            used = CpuUse(own)
            began_ns, began_cpu_ns = time.monotonic_ns(), cpu_time_ns(rank.controller_pid)
            hooks = _run_step(rank, pause, series.pause_s)
            taken_ns = cpu_time_ns(rank.controller_pid) - began_cpu_ns
            shares = {
                "others_share": used.others_share(),
                "controller_share": taken_ns / (time.monotonic_ns() - began_ns),
            }
            steps.append((shares, hooks))
        _settle(record)
    calls = [call for call in record.calls() if call.pid == rank.controller_pid]
    ends_ns = [*(hooks[0].began_ns for _, hooks in steps[1:]), time.monotonic_ns()]
    return [
        {**shares, **_samples(hooks, calls, until_ns)}
        for (shares, hooks), until_ns in zip(steps, ends_ns, strict=True)
    ]


def _run_step(rank: HookedRank, pause: Callable[[float], None], pause_s: float) -> list[TimedHook]:
    hooks: list[TimedHook] = []
    begin, now_ns = rank.begin_hook, time.monotonic_ns
    before_mhz = 0
    rank.on_step_begin()
    # Of the end hook: a step's first instruction has none.
    end_began_ns, end_ns = now_ns(), 0
    for kind, microbatch, mhz in INSTRUCTIONS:
        keywords: Mapping[str, int] = {"microbatch": microbatch} if rank.wants_microbatch else {}
        began_ns = now_ns()
        begin(kind, **keywords)
        time_ns = now_ns() - began_ns + end_ns
        pause(pause_s)
        hooks.append(
            TimedHook(
                began_ns=end_began_ns,
                time_ns=time_ns,
                mhz=mhz,
                is_change=mhz != before_mhz,
                delivery_ns=rank.take_delivery_ns(),
            )
        )
        before_mhz = mhz
        end_began_ns = now_ns()
        rank.end_hook(kind)
        end_ns = now_ns() - end_began_ns
    rank.on_step_end()
    return hooks


def _settle(record: CallRecord) -> None:
    """Wait until the controller has nothing more to do.

    Raises:
        BenchmarkError: it has not come to an end.
    """
    give_up_s = time.monotonic() + SETTLE_GIVE_UP_S
    while time.monotonic() < give_up_s:
        num_calls = _num_set(record)
        time.sleep(SETTLED_S)
        if _num_set(record) == num_calls:
            return
    raise BenchmarkError(f"clocks were still being set {SETTLE_GIVE_UP_S:g} s after the last hook")


def _num_set(record: CallRecord) -> int:
    return sum(call.mhz >= 0 for call in record.calls())


def _samples(hooks: list[TimedHook], calls: list[NvmlCall], until_ns: int) -> dict[str, Any]:
    """One step's times in us, each a list, without the step's first instruction.

    `change` and `same`: the hooks' calls, where the clock is another than before and where not.
    `arrival`: from the hooks' beginning to NVML being asked for the clock; `num_superseded` were
    never asked for. `delivery`: from the request to the controller seeing it while it waited for
    one; `delivery_in_call` where it was in an NVML call when the request came.

    Args:
        hooks: of the step.
        calls: all of the controller's.
        until_ns: when the next step began, or all was over, ns.
    """
    # The step's first comes after a wait that is this benchmark's own and has no set length;
    # Flyball has requested its clock before.
    counted = hooks[1:]
    arrivals = _arrivals_us(counted, calls, until_ns)
    waited: list[float] = []
    in_call: list[float] = []
    for hook in counted:
        if hook.delivery_ns is not None:
            requested_ns, delivered_ns = hook.delivery_ns
            was_in_call = any(
                call.began_ns < delivered_ns and call.ended_ns > requested_ns for call in calls
            )
            (in_call if was_in_call else waited).append((delivered_ns - requested_ns) / 1e3)
    return {
        "change_us": [hook.time_ns / 1e3 for hook in counted if hook.is_change],
        "same_us": [hook.time_ns / 1e3 for hook in counted if not hook.is_change],
        "arrival_us": arrivals,
        "num_superseded": sum(hook.is_change for hook in counted) - len(arrivals),
        "delivery_us": waited,
        "delivery_in_call_us": in_call,
    }


def _arrivals_us(hooks: list[TimedHook], calls: list[NvmlCall], until_ns: int) -> list[float]:
    """For each change that NVML was asked for, how long after its hooks began, us.

    No clock comes twice in a step, so a call between the hook and the next step is this hook's.
    """
    asked_ns: dict[int, list[int]] = {}
    for call in calls:
        asked_ns.setdefault(call.mhz, []).append(call.began_ns)
    arrivals: list[float] = []
    for hook in hooks:
        if hook.is_change:
            found_ns = [ns for ns in asked_ns.get(hook.mhz, ()) if hook.began_ns <= ns < until_ns]
            if found_ns:
                arrivals.append((found_ns[0] - hook.began_ns) / 1e3)
    return arrivals

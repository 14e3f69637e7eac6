"""Bounds, defaults and texts of a planning request; imports no planner."""

from __future__ import annotations

import decimal
from dataclasses import replace

from flyball_profiles.clock_transitions import (
    MAX_TRANSITION_S,
    ClockTransitions,
    TransitionsError,
)
from flyball_server.planning.errors import PlanningError
from flyball_wire.plan_options import (
    MAX_DWELL_MS,
    MAX_GPUS_AT_ONCE,
    MAX_GPUS_IN_NODE,
    MAX_RESERVE,
    MAX_TAIL_MS,
    MAX_TRANSFER_MS,
    PlanOptions,
    Policy,
)

DEFAULT_RECONFIGURE_GRANULARITY_MHZ = 30
# Of an iteration's time, the most that calls for the GPUs of a node take.
MAX_CALL_SHARE = 0.5


def check_options(options: PlanOptions, num_stages: int) -> None:
    """Check the reserve, times and limits of clock changes, tail and transfers of a plan.

    Args:
        options: options of a plan.
        num_stages: number of its stages.

    Raises:
        PlanningError: an option is out of its bounds, given twice, or would have no effect.
    """
    _check_reserve(options.reserve, options.policy)
    clock_transitions(options)
    iteration_delays_s(options, num_stages)
    _check_switches(options)


def _check_reserve(reserve: float | None, policy: Policy) -> None:
    if reserve is None:
        return
    if not 0 <= reserve <= MAX_RESERVE:
        raise PlanningError(
            f"must be a share from 0 to {MAX_RESERVE:g}, not {reserve:g}", field="reserve"
        )
    if reserve and policy != Policy.FRONTIER:
        raise PlanningError(f"is for policy {Policy.FRONTIER}, not {policy}", field="reserve")


def clock_transitions(options: PlanOptions) -> ClockTransitions | None:
    """Return the times of clock changes that a plan is evaluated with; None: they take none.

    Raises:
        PlanningError: both options are given, or one is out of its bounds.
    """
    num_gpus = 1 if options.gpus_at_once is None else options.gpus_at_once
    if not 1 <= num_gpus <= MAX_GPUS_AT_ONCE:
        raise PlanningError(
            f"must be from 1 to {MAX_GPUS_AT_ONCE}, not {num_gpus}", field="gpus_at_once"
        )
    num_in_node = 1 if options.gpus_in_node is None else options.gpus_in_node
    if not 1 <= num_in_node <= MAX_GPUS_IN_NODE:
        raise PlanningError(
            f"must be from 1 to {MAX_GPUS_IN_NODE}, not {num_in_node}", field="gpus_in_node"
        )
    if options.transition_ms is None:
        if options.transitions is None:
            return None
        try:
            times = options.transitions.of_queue(num_gpus)
            return times.beside_other_stages() if num_in_node > num_gpus else times
        except TransitionsError as error:
            raise PlanningError(str(error), field="gpus_at_once") from None
    if options.transitions is not None:
        raise PlanningError("give it or transitions, not both", field="transition_ms")
    if not 0 <= options.transition_ms <= MAX_TRANSITION_S * 1e3:
        raise PlanningError(
            f"must be from 0 to {MAX_TRANSITION_S * 1e3:g} ms, not {options.transition_ms:g}",
            field="transition_ms",
        )
    return ClockTransitions.exact(options.transition_ms / 1e3) if options.transition_ms else None


def iteration_delays_s(
    options: PlanOptions, num_stages: int, *, is_periodic: bool = False
) -> tuple[float, tuple[float, ...]]:
    """Return the tail of an iteration in s, and its transfers between neighbouring stages, s.

    Args:
        options: options of a plan.
        num_stages: number of its stages.
        is_periodic: the schedule never flushes: its iterations have no end, and its transfers no
            effect.

    Raises:
        PlanningError: a time is out of its bounds or would have no effect, or the number of
            transfers does not fit.
    """
    tail_ms, hops_ms = options.tail_ms or 0.0, options.transfer_ms or ()
    for field, times_ms, most_ms in (
        ("tail_ms", (tail_ms,), MAX_TAIL_MS),
        ("transfer_ms", hops_ms, MAX_TRANSFER_MS),
    ):
        for time_ms in times_ms:
            if not 0 <= time_ms <= most_ms:
                raise PlanningError(
                    f"must be from 0 to {most_ms:g} ms, not {time_ms:g}", field=field
                )
        if any(times_ms) and is_periodic:
            raise PlanningError(
                f"has no effect on {options.schedule}, whose iterations never end", field=field
            )
    if len(hops_ms) > 1 and len(hops_ms) != num_stages - 1:
        raise PlanningError(
            f"{len(hops_ms)} values for {num_stages} stages; give one, or one for each pair of"
            f" neighbours, {num_stages - 1}",
            field="transfer_ms",
        )
    return tail_ms / 1e3, tuple(time_ms / 1e3 for time_ms in hops_ms)


def within_calls(options: PlanOptions, iteration_time_s: float, num_stages: int) -> PlanOptions:
    """Return the options with no more clock changes than the calls of a node leave time for.

    Args:
        options: options of a plan.
        iteration_time_s: iteration time at the highest clocks, s.
        num_stages: number of stages, of all pipelines that have clocks of their own.
    """
    times, num_gpus = options.transitions, options.gpus_in_node
    if times is None or num_gpus is None or num_gpus < 2 or not times.is_queued:
        return options
    # Each GPU of the node makes as many calls as a stage on average has changes.
    of_stage = MAX_CALL_SHARE * iteration_time_s / (num_gpus * times.call_mean_s)
    most = int(of_stage * num_stages)
    if options.max_switches is not None:
        most = min(most, options.max_switches)
    return replace(options, max_switches=most)


def call_share(
    times: ClockTransitions, num_gpus: int, changes_per_stage: float, iteration_time_s: float
) -> float:
    """Return the share of an iteration that calls for the GPUs of a node take; 0: not known.

    Args:
        times: times of clock changes.
        num_gpus: number of GPUs of all stages in the node.
        changes_per_stage: mean number of clock changes of a stage in an iteration.
        iteration_time_s: time of an iteration, s.
    """
    if not times.is_queued:
        return 0.0
    return num_gpus * changes_per_stage * times.call_mean_s / iteration_time_s


def is_limited(options: PlanOptions) -> bool:
    """Return whether the clock changes of a plan are limited."""
    return options.max_switches is not None or options.min_dwell_ms is not None


def _check_switches(options: PlanOptions) -> None:
    most, dwell_ms = options.max_switches, options.min_dwell_ms
    if most is not None and most < 0:
        raise PlanningError(f"must be at least 0, not {most}", field="max_switches")
    if dwell_ms is not None and not 0 <= dwell_ms <= MAX_DWELL_MS:
        raise PlanningError(
            f"must be from 0 to {MAX_DWELL_MS:g} ms, not {dwell_ms:g}", field="min_dwell_ms"
        )
    for field, value in (("max_switches", most), ("min_dwell_ms", dwell_ms)):
        if value is None:
            continue
        if options.policy != Policy.FRONTIER:
            raise PlanningError(
                f"is for policy {Policy.FRONTIER}, not {options.policy}", field=field
            )
        if options.target.startswith("power:"):
            raise PlanningError("is for targets of time, not for power:", field=field)


def with_known_transitions(options: PlanOptions, of_gpu: ClockTransitions | None) -> PlanOptions:
    """Return the options with the times of clock changes that the GPU table has, unless given.

    Args:
        options: options of a plan.
        of_gpu: times of its GPU; None: not known.

    Raises:
        PlanningError: `gpus_at_once` or `gpus_in_node` would have no effect.
    """
    if options.transition_ms is None and options.transitions is None:
        options = replace(options, transitions=of_gpu)
    known = options.transitions
    for field, num_gpus in (
        ("gpus_at_once", options.gpus_at_once),
        ("gpus_in_node", options.gpus_in_node),
    ):
        if num_gpus is not None and num_gpus > 1 and not (known is not None and known.is_queued):
            raise PlanningError(
                "has no effect: it needs the time of a call that sets a clock, call_ms in the"
                " table [transitions], and calls that queue in a node",
                field=field,
            )
    return options


def rounded_up(value: float) -> str:
    """Six digits, so rounded that asking for exactly the printed figure is granted."""
    context = decimal.Context(prec=6, rounding=decimal.ROUND_CEILING)
    return f"{context.create_decimal_from_float(value).normalize():f}"

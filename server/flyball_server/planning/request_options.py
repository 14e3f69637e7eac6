"""Values that follow from the options of a planning request; imports no planner."""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from dataclasses import replace

from flyball_profiles.clock_transitions import ClockTransitions, TransitionsError
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.errors import PlanningError
from flyball_wire.plan_options import PlanOptions

DEFAULT_RECONFIGURE_GRANULARITY_MHZ = 30
# Of an iteration's time, the most that calls for the GPUs of a node take.
MAX_CALL_SHARE = 0.5


def limit_target(
    profiles: Sequence[StageProfile], limits_w: Sequence[float | None] = ()
) -> str | None:
    """Return the target `power:` for the sum of the GPUs' power limits; None: not all are known.

    Args:
        profiles: profiles whose energies the plan counts, of as many GPUs each.
        limits_w: by stage, present power limit of a GPU in W; None or absent: that which the stage
            was profiled under.
    """
    sum_w = 0.0
    for profile in profiles:
        for stage, num_ranks in enumerate(profile.num_ranks_per_stage):
            limit_w = limits_w[stage] if stage < len(limits_w) else None
            under = profile.conditions[stage] if profile.conditions else None
            if limit_w is None and under is not None:
                limit_w = under.power_limit_w
            if not limit_w:
                return None
            sum_w += num_ranks * limit_w
    return f"power:{sum_w:.10g}"


def clock_transitions(options: PlanOptions) -> ClockTransitions | None:
    """Return the times of clock changes that a plan is evaluated with; None: they take none.

    Raises:
        PlanningError: the GPUs of a node would take too long to change their clocks together.
    """
    if options.transition_ms is not None:
        delay_s = options.transition_ms / 1e3
        return ClockTransitions.exact(delay_s) if delay_s else None
    if options.transitions is None:
        return None
    num_gpus = options.gpus_at_once or 1
    try:
        times = options.transitions.of_queue(num_gpus)
    except TransitionsError as error:
        raise PlanningError(str(error), field="gpus_at_once") from None
    return times.beside_other_stages() if (options.gpus_in_node or 1) > num_gpus else times


def iteration_delays_s(
    options: PlanOptions, *, is_periodic: bool = False
) -> tuple[float, tuple[float, ...]]:
    """Return the tail of an iteration in s, and its transfers between neighbouring stages, s.

    Args:
        options: options of a plan.
        is_periodic: the schedule never flushes: its iterations have no end, and its transfers no
            effect.

    Raises:
        PlanningError: a time would have no effect.
    """
    tail_ms, hops_ms = options.tail_ms or 0.0, options.transfer_ms or ()
    for field, has_time in (("tail_ms", tail_ms > 0), ("transfer_ms", any(hops_ms))):
        if has_time and is_periodic:
            raise PlanningError(
                f"has no effect on {options.schedule}, whose iterations never end", field=field
            )
    return tail_ms / 1e3, options.transfer_s


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

"""Times beside the instructions that a job's plan counts, with their origin."""

from __future__ import annotations

from collections.abc import Iterable

from flyball_server.jobs.planning_inputs import MeasuredDelays, PlanningInputs
from flyball_server.jobs.wanted.request import has_given_transitions
from flyball_wire.closed_loop import DelaySource, PlannedDelays
from flyball_wire.messages import JobSpec


def planned_delays(spec: JobSpec, planned_inputs: PlanningInputs) -> PlannedDelays | None:
    """Return the times that the newest plan counts; None: none are given, and none measured.

    Args:
        spec: specification of the job.
        planned_inputs: planning inputs of its newest plan.
    """
    measured = planned_inputs.delays
    is_given = spec.gpus_at_once is not None
    num_gpus = spec.gpus_at_once if is_given else planned_inputs.gpus_at_once
    if num_gpus == 1:
        num_gpus = None
    is_node_given = spec.gpus_in_node is not None
    num_in_node = spec.gpus_in_node if is_node_given else planned_inputs.gpus_in_node
    if num_in_node is not None and num_in_node <= (num_gpus or 1):
        num_in_node = None
    beside = (measured, spec.tail_ms, spec.transfer_ms, num_gpus, num_in_node)
    if all(delays is None for delays in beside):
        return None
    tail_ms, hops_ms = spec.tail_ms or 0.0, spec.transfer_ms or ()
    tail_source = None if spec.tail_ms is None else DelaySource.GIVEN
    transfer_source = None if spec.transfer_ms is None else DelaySource.GIVEN
    jitter, up_ms, down_ms = 0.0, None, None
    if measured is not None:
        jitter = measured.jitter
        if tail_source is None:
            tail_ms, tail_source = 1e3 * measured.tail_s, DelaySource.MEASURED
        if transfer_source is None:
            hops_ms = tuple(1e3 * hop_s for hop_s in measured.transfer_s)
            transfer_source = DelaySource.MEASURED
        if not has_given_transitions(spec):
            up_ms, down_ms = _ms(measured.up_s), _ms(measured.down_s)
    parts = [
        *_part(tail_source, f"a tail of {tail_ms:.4g} ms" if tail_ms else "no tail"),
        *_part(transfer_source, _transfers(hops_ms)),
        *([f"{100 * jitter:.2g} % jitter"] if jitter else []),
        *_changes(up_ms, down_ms),
        *_in_node(num_gpus, "change their clocks together", is_given=is_given),
        *_in_node(num_in_node, "set clocks one at a time", is_given=is_node_given),
    ]
    return PlannedDelays(
        tail_ms=tail_ms,
        tail_source=tail_source,
        transfer_ms=hops_ms,
        transfer_source=transfer_source,
        jitter_percent=100 * jitter if jitter else None,
        up_ms=up_ms,
        down_ms=down_ms,
        gpus_at_once=num_gpus,
        gpus_in_node=num_in_node,
        num_steps=None if measured is None else measured.num_steps,
        version=None if measured is None else measured.version,
        text=", ".join(parts) + _origin(measured),
    )


def _origin(measured: MeasuredDelays | None) -> str:
    if measured is None:
        return ""
    return f"; measured in {measured.num_steps} steps of v{measured.version} where not given"


def _part(source: DelaySource | None, what: str) -> tuple[str, ...]:
    if source is None:
        return ()
    return (f"{what} (given)" if source == DelaySource.GIVEN else what,)


def _transfers(hops_ms: Iterable[float]) -> str:
    times = ", ".join(f"{hop_ms:.4g}" for hop_ms in hops_ms)
    return f"transfers of {times} ms" if times else "no transfer times"


def _in_node(num_gpus: int | None, what: str, *, is_given: bool) -> tuple[str, ...]:
    source = DelaySource.GIVEN if is_given else "as the ranks are placed"
    return () if num_gpus is None else (f"{num_gpus} GPUs of a node that {what} ({source})",)


def _changes(up_ms: float | None, down_ms: float | None) -> tuple[str, ...]:
    certain = [
        f"{late_ms:.3g} ms late {direction}"
        for late_ms, direction in ((up_ms, "up"), (down_ms, "down"))
        if late_ms is not None
    ]
    return (f"clock changes {' and '.join(certain)}",) if certain else ()


def _ms(time_s: float | None) -> float | None:
    return None if time_s is None else 1e3 * time_s

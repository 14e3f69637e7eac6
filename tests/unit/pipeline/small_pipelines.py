"""Small pipelines to retime, and iterations of them in which each delay is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from flyball_pipeline.retiming import RetimedPipeline
from flyball_pipeline.step_curves import ClockPoint

Node = tuple[int, str, int]
"""Stage, kind, microbatch."""
WAITING_W = 80.0
FORWARD = (
    ClockPoint(1400, 0.10, 30.0),
    ClockPoint(1300, 0.11, 27.0),
    ClockPoint(1200, 0.125, 25.5),
    ClockPoint(1000, 0.16, 27.0),
)
BACKWARD = (
    ClockPoint(1400, 0.20, 62.0),
    ClockPoint(1300, 0.22, 55.0),
    ClockPoint(1200, 0.26, 53.0),
    ClockPoint(1000, 0.34, 57.0),
)
CURVES = {"forward": FORWARD, "backward": BACKWARD}


def orders(num_stages: int, num_microbatches: int, *, gpipe: bool = False) -> list[list[Node]]:
    """Return the order of each stage, 1F1B or GPipe."""
    of_stages = []
    for stage in range(num_stages):
        num_ahead = num_microbatches if gpipe else min(num_stages - stage, num_microbatches)
        order = [(stage, "forward", each) for each in range(num_ahead)]
        for each in range(num_microbatches):
            order.append((stage, "backward", each))
            if num_ahead + each < num_microbatches:
                order.append((stage, "forward", num_ahead + each))
        of_stages.append(order)
    return of_stages


@dataclass(frozen=True)
class SmallPipeline:
    """Nodes and edges, as `RetimedPipeline` takes them."""

    nodes: tuple[Node, ...]
    edges: dict[str, Any]

    def retimed(self, **others: Any) -> RetimedPipeline:
        """Return it with the points of `CURVES`, or others."""
        parts: dict[str, Any] = {
            "points": [CURVES[kind] for _, kind, _ in self.nodes],
            "waiting_power_w": [WAITING_W] * (1 + max(stage for stage, _, _ in self.nodes)),
        }
        return RetimedPipeline(**(self.edges | parts | others))


def small_pipeline(of_stages: list[list[Node]]) -> SmallPipeline:
    """Return the pipeline with these orders."""
    nodes = [node for order in of_stages for node in order]
    number = {node: index for index, node in enumerate(nodes)}
    last = len(of_stages) - 1
    before: list[int] = []
    source: list[int] = []
    for stage, order in enumerate(of_stages):
        for place, (_, kind, each) in enumerate(order):
            before.append(number[order[place - 1]] if place else -1)
            if kind == "forward":
                source.append(number[stage - 1, kind, each] if stage else -1)
            else:
                of = (stage + 1, kind, each) if stage < last else (stage, "forward", each)
                source.append(number[of])
    waiting = set(range(len(nodes)))
    topological: list[int] = []
    while waiting:
        ready = [n for n in sorted(waiting) if before[n] not in waiting and source[n] not in waiting]
        topological += ready
        waiting -= set(ready)
    return SmallPipeline(
        tuple(nodes),
        {
            "stage": [stage for stage, _, _ in nodes],
            "order_predecessor": before,
            "data_predecessor": source,
            "topological_order": topological,
        },
    )


@st.composite
def pipelines(draw: st.DrawFn) -> SmallPipeline:
    """Return 1F1B or GPipe of up to 4 stages and 5 microbatches."""
    shape = (draw(st.integers(1, 4)), draw(st.integers(1, 5)))
    return small_pipeline(orders(*shape, gpipe=draw(st.booleans())))


def factors_of(pipeline: SmallPipeline) -> st.SearchStrategy[list[float]]:
    """Return work of each node."""
    num = len(pipeline.nodes)
    return st.lists(st.floats(0.2, 3.0), min_size=num, max_size=num)


def longest_path_s(
    pipeline: SmallPipeline, durations_s: Sequence[float], transfer_s: Sequence[float] = ()
) -> float:
    """Return the end of the last node, s."""
    ends_s = [0.0] * (len(durations_s) + 1)
    edges = pipeline.edges
    for node in edges["topological_order"]:
        input_s = ends_s[edges["data_predecessor"][node]]
        if transfer_s and edges["data_predecessor"][node] >= 0:
            input_s += transfer_s[node]
        begin_s = max(ends_s[edges["order_predecessor"][node]], input_s)
        ends_s[node] = begin_s + durations_s[node]
    return max(ends_s)


def time_s(kind: str, clock_mhz: int) -> float:
    """Return the time of an instruction at a clock at factor 1, s."""
    return next(point.time_s for point in CURVES[kind] if point.clock_mhz == clock_mhz)


def cost_j(pipeline: SmallPipeline, clocks_mhz: Sequence[int], factors: Sequence[float]) -> float:
    """Return the energy of a step net of waiting, J."""
    return sum(
        factor * (point.energy_j - WAITING_W * point.time_s)
        for (_, kind, _), clock, factor in zip(pipeline.nodes, clocks_mhz, factors, strict=True)
        for point in CURVES[kind]
        if point.clock_mhz == clock
    )


def late_end_s(
    pipeline: SmallPipeline,
    clocks_mhz: Sequence[int],
    factors: Sequence[float],
    in_force_mhz: Sequence[int],
    delay_s: Callable[[bool], float],
) -> float:
    """Return the end of a step whose clock changes are late, s, change by change.

    Args:
        pipeline: the pipeline.
        clocks_mhz: per node, its clock.
        factors: per node, its work.
        in_force_mhz: per stage, the clock in force as the step before ended, at 0 s.
        delay_s: draws the delay of a change up (true) or down, s.
    """
    edges, ends_s = pipeline.edges, [0.0] * (len(pipeline.nodes) + 1)
    # Per stage, when each clock takes effect, in the order of the requests.
    changes = [[(-1.0, mhz)] for mhz in in_force_mhz]
    for node in edges["topological_order"]:
        stage, kind, _ = pipeline.nodes[node]
        free_s = ends_s[edges["order_predecessor"][node]]
        asked = changes[stage][-1][1]
        if clocks_mhz[node] != asked:
            effect_s = free_s + delay_s(clocks_mhz[node] > asked)
            # A change that would come after this one never does.
            changes[stage] = [each for each in changes[stage] if each[0] < effect_s]
            changes[stage].append((effect_s, clocks_mhz[node]))
        now_s, left = max(free_s, ends_s[edges["data_predecessor"][node]]), 1.0
        for place, (effect_s, mhz) in enumerate(changes[stage]):
            until_s = changes[stage][place + 1][0] if place + 1 < len(changes[stage]) else 1e9
            if until_s <= now_s:
                continue
            assert effect_s <= now_s + 1e-12
            whole_s = factors[node] * time_s(kind, mhz)
            past_s = min(until_s - now_s, left * whole_s)
            now_s, left = now_s + past_s, left - past_s / whole_s
            if left <= 1e-15:
                break
        ends_s[node] = now_s
    return max(ends_s)

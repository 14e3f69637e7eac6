"""Small pipelines to retime, and iterations of them in which each delay is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from flyball_pipeline.dag import NONE, DependencyDag, build_dag
from flyball_pipeline.instruction import equal_stages
from flyball_pipeline.paths import earliest_finish_s
from flyball_pipeline.retiming import RetimedPipeline
from flyball_pipeline.schedules.inputs import ScheduleInputs
from flyball_pipeline.schedules.table import make_schedule
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


@dataclass(frozen=True)
class SmallPipeline:
    """A pipeline of the points of `CURVES`."""

    dag: DependencyDag

    @property
    def nodes(self) -> list[Node]:
        """Stage, kind and microbatch of each node."""
        both = zip(self.dag.stage, self.dag.instruction, strict=True)
        return [(stage, kind.value, microbatch) for stage, (kind, microbatch, _) in both]

    def retimed(self, **others: object) -> RetimedPipeline:
        """Return it, with other arguments of `RetimedPipeline` where given."""
        parts: dict[str, Any] = {
            "dag": self.dag,
            "points": [CURVES[kind] for _, kind, _ in self.nodes],
            "waiting_power_w": [WAITING_W] * (1 + max(self.dag.stage)),
        }
        return RetimedPipeline(**(parts | others))


def small_pipeline(num_stages: int, num_microbatches: int, order: str = "1f1b") -> SmallPipeline:
    """Return a pipeline of this order."""
    inputs = ScheduleInputs(shape=equal_stages(num_stages, num_microbatches))
    return SmallPipeline(build_dag(make_schedule(order, inputs)))


@st.composite
def pipelines(draw: st.DrawFn) -> SmallPipeline:
    """Return 1F1B or GPipe of up to 4 stages and 5 microbatches."""
    order = draw(st.sampled_from(["1f1b", "gpipe"]))
    return small_pipeline(draw(st.integers(1, 4)), draw(st.integers(1, 5)), order)


def factors_of(pipeline: SmallPipeline) -> st.SearchStrategy[list[float]]:
    """Return work of each node."""
    num = len(pipeline.nodes)
    return st.lists(st.floats(0.2, 3.0), min_size=num, max_size=num)


def longest_path_s(dag: DependencyDag, durations_s: Sequence[float]) -> float:
    """Return the end of the last node, s."""
    return max(earliest_finish_s(dag, durations_s))


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
    gap_s: float = 0.0,
) -> float:
    """Return the end of a step whose clock changes are late, s, change by change.

    Args:
        pipeline: the pipeline.
        clocks_mhz: per node, its clock.
        factors: per node, its work.
        in_force_mhz: per stage, the clock in force as the step before ended.
        delay_s: draws the delay of a change up (true) or down, s.
        gap_s: time from there, where first clocks are requested, to the step's begin at 0 s.
    """
    dag, ends_s = pipeline.dag, [0.0] * (len(pipeline.nodes) + 1)
    # Per stage, when each clock takes effect, in the order of the requests.
    changes = [[(-1.0 - gap_s, mhz)] for mhz in in_force_mhz]
    for node in dag.topological_order:
        stage, kind, _ = pipeline.nodes[node]
        before = dag.order_predecessor[node]
        free_s = -gap_s if before == NONE else ends_s[before]
        asked = changes[stage][-1][1]
        if clocks_mhz[node] != asked:
            effect_s = free_s + delay_s(clocks_mhz[node] > asked)
            # A change that would come after this one never does.
            changes[stage] = [each for each in changes[stage] if each[0] < effect_s]
            changes[stage].append((effect_s, clocks_mhz[node]))
        begin_s = max(free_s, ends_s[dag.data_predecessor[node]])
        ends_s[node] = end_at_s(kind, factors[node], begin_s, changes[stage])
    return max(ends_s)


def end_at_s(kind: str, factor: float, now_s: float, changes: Sequence[tuple[float, int]]) -> float:
    """Return the end of an instruction, s.

    Args:
        kind: its kind.
        factor: its work.
        now_s: its begin, s.
        changes: from when on which clock is in force, in order of time.
    """
    left = 1.0
    for place, (effect_s, mhz) in enumerate(changes):
        until_s = changes[place + 1][0] if place + 1 < len(changes) else 1e9
        if until_s <= now_s:
            continue
        assert effect_s <= now_s + 1e-12
        whole_s = factor * time_s(kind, mhz)
        past_s = min(until_s - now_s, left * whole_s)
        now_s, left = now_s + past_s, left - past_s / whole_s
        if left <= 1e-15:
            break
    return now_s

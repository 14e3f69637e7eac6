"""The two shapes of an instruction's measured points that the optimisation works with.

With c = E - r P t (J), what a point costs beyond waiting for as long: the staircase of points
that no other point beats in both time and cost, and the lower convex hull of it, which any mix of
clocks stays above (Perseus, Chung et al., SOSP 2024, section 4, with the hull in place of a fit).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flyball_pipeline.step_curves import ClockPoint
from flyball_profiles.stage_profile import OperatingPoint
from flyball_server.planning.model.pipeline_model import PipelineModel

# Times that differ by less than this share are one time to the hull: between them a slope would
# be all rounding error, and so steep that no solver bears it.
SAME_TIME = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class CostPoint:
    """One measured point; `choice` is its index among the instruction's operating points."""

    time_s: float
    cost_j: float
    choice: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CostCurve:
    """One (stage, kind)'s points.

    Attributes:
        staircase: rising time, strictly falling cost; the first is the fastest point.
        hull: its lower convex hull, from the fastest time on; where several points share a
            time (`SAME_TIME`), it has the first one's time and the last one's cost.
        exact_hull: the hull with all times as they are, for bounds.
    """

    staircase: tuple[CostPoint, ...]
    hull: tuple[CostPoint, ...]
    exact_hull: tuple[CostPoint, ...]


@dataclass(frozen=True, kw_only=True)
class ModelCurves:
    """The curves of a pipeline, each once.

    Attributes:
        curves: the distinct ones.
        curve_of_node: per node of the DAG, an index into `curves`.
    """

    curves: tuple[CostCurve, ...]
    curve_of_node: tuple[int, ...]

    @functools.cached_property
    def curve_array(self) -> NDArray[np.int64]:
        """`curve_of_node` as an array; shape (num_nodes,)."""
        return np.array(self.curve_of_node, dtype=np.int64)


def cost_curve(points: Sequence[OperatingPoint | ClockPoint], blocking_power_w: float) -> CostCurve:
    """Staircase and hull of measured points.

    Args:
        points: operating points of one (stage, kind), at least one.
        blocking_power_w: blocking power of all ranks whose energy the points hold, W.
    """
    by_time = sorted(
        (point.time_s, point.energy_j - blocking_power_w * point.time_s, choice)
        for choice, point in enumerate(points)
    )
    staircase: list[CostPoint] = []
    for time_s, cost_j, choice in by_time:
        if not staircase or cost_j < staircase[-1].cost_j:
            staircase.append(CostPoint(time_s=time_s, cost_j=cost_j, choice=choice))
    exact_hull = _lower_hull(staircase)
    one_per_time = _one_per_time(staircase)
    hull = exact_hull if one_per_time == staircase else _lower_hull(one_per_time)
    return CostCurve(staircase=tuple(staircase), hull=hull, exact_hull=exact_hull)


def _lower_hull(staircase: Sequence[CostPoint]) -> tuple[CostPoint, ...]:
    hull: list[CostPoint] = []
    for point in staircase:
        while len(hull) > 1 and _is_above_chord(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return tuple(hull)


def _one_per_time(staircase: Sequence[CostPoint]) -> list[CostPoint]:
    """Return the staircase, a run of nearly equal times as one point below all of the run."""
    points: list[CostPoint] = []
    for point in staircase:
        if points and point.time_s <= points[-1].time_s * (1 + SAME_TIME):
            points[-1] = replace(point, time_s=points[-1].time_s)
        else:
            points.append(point)
    return points


def model_curves(model: PipelineModel) -> ModelCurves:
    """The curves of every instruction of a pipeline; those that share their points share one."""
    power_w = model.stage_blocking_power_w
    groups, group_of_node = model.groups
    return ModelCurves(
        curves=tuple(cost_curve(points, power_w[stage]) for stage, points in groups),
        curve_of_node=group_of_node,
    )


def _is_above_chord(left: CostPoint, middle: CostPoint, right: CostPoint) -> bool:
    to_middle = (middle.cost_j - left.cost_j) * (right.time_s - left.time_s)
    to_right = (right.cost_j - left.cost_j) * (middle.time_s - left.time_s)
    return to_middle >= to_right

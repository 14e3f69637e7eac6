"""A reserve for noise: instructions may take longer than their profile without a longer iteration.

A plan of least energy leaves nothing waiting: every path through the pipeline is as long as the
deadline. When instructions then take a little more or less than their profile says, one of these
many paths is always the longer one, and the iteration takes longer than at the highest clocks,
where a single path is the longest. So each instruction is planned as if it took `reserve` times
its time longer, as far as that leaves the baseline's iteration time within reach: what lies on
the longest path at the highest clocks gets none.
"""

from __future__ import annotations

import math
from dataclasses import replace

from flyball_profiles.stage_profile import OperatingPoint, ProfileError
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.finish_times import FinishTimes
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.request_options import check_reserve

# Shares are rounded down to so many, that instructions go on sharing their tables of points.
_NUM_LEVELS = 16
# Each round gives out what the one before has left.
_ROUNDS = 6


def with_reserve(
    model: PipelineModel, reserve: float, *, iteration_time_s: float | None = None
) -> PipelineModel:
    """The pipeline as it is to be planned; the same energy for each choice of clocks.

    An iteration of it takes no less than one of the model, and no more at the highest clocks.

    Args:
        model: as profiled.
        reserve: by how much each instruction may take longer, as a share of its time, 0 to
            MAX_RESERVE.
        iteration_time_s: what an iteration takes at the highest clocks, s, where other pipelines
            make it longer; None: what this one takes.

    Raises:
        PlanningError: the reserve is out of its bounds, or makes an instruction longer than any
            may be.
    """
    check_reserve(reserve)
    if reserve / _NUM_LEVELS == 0:
        return model
    power_w = model.stage_blocking_power_w
    made: dict[tuple[int, int, float], tuple[OperatingPoint, ...]] = {}
    points: list[tuple[OperatingPoint, ...]] = []
    for node, share in enumerate(_shares(model, reserve, iteration_time_s)):
        stage, of_node = model.dag.stage[node], model.points[node]
        key = (stage, id(of_node), share)
        if key not in made:
            try:
                made[key] = tuple(_longer(point, share, power_w[stage]) for point in of_node)
            except ProfileError as error:
                raise PlanningError(
                    f"{reserve:g} is too much for instructions this long: {error.message}",
                    field="reserve",
                ) from None
        points.append(made[key])
    return replace(model, points=tuple(points))


def _longer(point: OperatingPoint, share: float, power_w: float) -> OperatingPoint:
    """The point with its time longer; what is added costs what waiting does."""
    added_s = share * point.time_s
    return replace(
        point, time_s=point.time_s + added_s, energy_j=point.energy_j + power_w * added_s
    )


def _shares(model: PipelineModel, reserve: float, iteration_time_s: float | None) -> list[float]:
    """Per node, by which share of its time it may take longer at the highest clocks.

    A node gets the share of its time that its float is of the iteration. No path gets longer than
    the iteration by that: its nodes' floats are at most what it is shorter, and their times add up
    to no more than the iteration's.
    """
    dag = model.dag
    profiled_s = model.durations_s(model.baseline())
    finish_times = FinishTimes(dag)
    iteration_time_s = iteration_time_s or max(finish_times.earliest_s(profiled_s))
    shares = [0.0] * dag.num_nodes
    for _ in range(_ROUNDS):
        durations_s = [
            duration_s * (1 + share) for duration_s, share in zip(profiled_s, shares, strict=True)
        ]
        finish_s = finish_times.earliest_s(durations_s)
        latest_s = finish_times.latest_s(durations_s, iteration_time_s)
        shares = [
            min(reserve, share + max(0.0, latest - finish) / iteration_time_s)
            for share, latest, finish in zip(shares, latest_s, finish_s, strict=True)
        ]
    level = reserve / _NUM_LEVELS
    return [level * math.floor(share / level) for share in shares]

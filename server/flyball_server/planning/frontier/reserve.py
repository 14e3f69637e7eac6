"""Pipelines whose instructions may take longer than profiled without a longer iteration."""

from __future__ import annotations

import math
from dataclasses import replace

from flyball_pipeline.paths import earliest_finish_s, latest_finish_s
from flyball_profiles.stage_profile import OperatingPoint, ProfileError
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.pipeline_model import PipelineModel

# Levels to which shares are rounded down, so that instructions go on sharing tables of points.
_NUM_LEVELS = 16
# Each round gives out what the round before has left.
_ROUNDS = 6


def with_reserve(model: PipelineModel, reserve: float) -> PipelineModel:
    """Return the pipeline to plan; each choice of clocks has the same energy.

    An iteration of it takes no less than one of the model, and no more at the highest clocks.

    Args:
        model: as profiled.
        reserve: possible lengthening of each instruction, as a share of its time, 0 to
            MAX_RESERVE.

    Raises:
        PlanningError: the reserve makes an instruction longer than any may be.
    """
    if reserve / _NUM_LEVELS == 0:
        return model
    power_w = model.stage_blocking_power_w
    made: dict[tuple[int, int, float], tuple[OperatingPoint, ...]] = {}
    points: list[tuple[OperatingPoint, ...]] = []
    for node, share in enumerate(_shares(model, reserve)):
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
    """Return the point with a longer time; the added time costs blocking power."""
    added_s = share * point.time_s
    return replace(
        point, time_s=point.time_s + added_s, energy_j=point.energy_j + power_w * added_s
    )


def _shares(model: PipelineModel, reserve: float) -> list[float]:
    """Return the share by which each node may take longer at the highest clocks.

    A node gets the share of its time that its float is of the iteration. No path gets longer than
    the iteration by that: its nodes' floats are at most what it is shorter, and their times add up
    to no more than the iteration's.
    """
    dag = model.dag
    profiled_s = model.durations_s(model.baseline())
    iteration_time_s = max(earliest_finish_s(dag, profiled_s))
    shares = [0.0] * dag.num_nodes
    for _ in range(_ROUNDS):
        durations_s = [
            duration_s * (1 + share) for duration_s, share in zip(profiled_s, shares, strict=True)
        ]
        finish_s = earliest_finish_s(dag, durations_s)
        latest_s = latest_finish_s(dag, durations_s, iteration_time_s)
        shares = [
            min(reserve, share + max(0.0, latest - finish) / iteration_time_s)
            for share, latest, finish in zip(shares, latest_s, finish_s, strict=True)
        ]
    level = reserve / _NUM_LEVELS
    return [level * math.floor(share / level) for share in shares]

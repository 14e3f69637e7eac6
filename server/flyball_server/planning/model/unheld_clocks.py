"""Clocks that GPUs do not hold, but for a limit run below: one point under several locks."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_profiles.stage_profile import OperatingPoint
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel


def with_fewest_changes(model: PipelineModel, assignment: Assignment) -> Assignment:
    """Return the assignment with locks of neighbours where a clock is not held anyway.

    Under each such lock an instruction takes the same time and energy, so none needs a change of
    the clock that a neighbour has.
    """
    if model.schedule.is_periodic or not any(points[0].held_by for points in model.points):
        return assignment
    choices = list(assignment)
    for nodes in model.dag.nodes_of(model.schedule):
        for place, node in enumerate(nodes):
            points = model.points[node]
            if not points[choices[node]].held_by:
                continue
            beside = [nodes[place - 1], nodes[(place + 1) % len(nodes)]]
            near_mhz = [model.points[node][choices[node]].frequency_mhz for node in beside]
            num_changes = [
                sum(point.frequency_mhz != mhz for mhz in near_mhz)
                for point in points[: num_unheld(points)]
            ]
            fewest = min(num_changes)
            if num_changes[choices[node]] > fewest:
                choices[node] = num_changes.index(fewest)
    return choices


def num_unheld(points: Sequence[OperatingPoint]) -> int:
    """Return the number of an instruction's highest clocks that are not held; one point."""
    held = (place for place, point in enumerate(points) if not point.held_by)
    return next(held, len(points))


def limits_text(models: Sequence[PipelineModel]) -> str:
    """Return a few words on the clocks that are not held; empty: all are."""
    unheld = [
        points
        for model in models
        for _, points in model.groups[0]
        if points[0].held_by and num_unheld(points) < len(points)
    ]
    if not unheld:
        return ""
    highest_mhz = [points[num_unheld(points)].frequency_mhz for points in unheld]
    low_mhz, high_mhz = min(highest_mhz), max(highest_mhz)
    held = f"{high_mhz} MHz" if low_mhz == high_mhz else f"{low_mhz} to {high_mhz} MHz"
    limits = " and ".join(sorted({points[0].held_by for points in unheld}))
    return (
        f"clocks above {held} are not held ({limits}): the baseline is what the GPUs do"
        " when left alone"
    )

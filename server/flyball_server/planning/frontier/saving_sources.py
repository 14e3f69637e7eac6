"""Sources of a plan's saving: the iteration time, imbalance of the stages, bubbles.

An account per stage, by the most that it can save if its instructions may take a given time: along
the lower convex hulls of its points, waiting deducted, as in `curves`. With T and T0 the iteration
times of plan and baseline and r = max(1, T / T0): what a stage saves within r times its own busy
time comes from the longer iteration (nothing where r = 1), the next within r times the busy time of
the heaviest stage from imbalance, the rest from bubbles.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

from flyball_server.planning.frontier.curves import CostCurve, model_curves
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import Simulation
from flyball_wire.predictions import SavingSources

# A longer iteration by no more than this share is rounding.
_SAME_TIME = 1e-9


def saving_sources(
    model: PipelineModel, simulation: Simulation, baseline: Simulation
) -> SavingSources:
    """Return the sources of a simulated plan's saving; their sum is the saving.

    Args:
        model: the pipeline, or several as one model.
        simulation: of the plan.
        baseline: of the highest clocks.
    """
    stages = _stage_accounts(model, simulation, baseline)
    baseline_time_s = baseline.iteration_time_s
    heaviest_s = max(stage.busy_s for stage in stages)
    longer_s = simulation.iteration_time_s - baseline_time_s
    is_longer = longer_s > _SAME_TIME * baseline_time_s
    ratio = 1 + longer_s / baseline_time_s if is_longer else 1.0
    imbalance_j = bubbles_j = 0.0
    iteration_time_j = -longer_s * sum(model.stage_blocking_power_w)
    for stage in stages:
        own_j = stage.most_saved_j(ratio * stage.busy_s) if is_longer else 0.0
        by_time_j = min(stage.saved_j, own_j) if is_longer else 0.0
        balanced_j = stage.most_saved_j(ratio * heaviest_s)
        by_balance_j = min(stage.saved_j - by_time_j, balanced_j - own_j)
        iteration_time_j += by_time_j
        imbalance_j += by_balance_j
        bubbles_j += stage.saved_j - by_time_j - by_balance_j
    return SavingSources(
        imbalance_j=imbalance_j,
        bubbles_j=bubbles_j,
        iteration_time_j=iteration_time_j,
    )


@dataclass
class _StageAccount:
    """Account of one stage: busy time and cost at the highest clocks, and the plan's saving."""

    busy_s: float = 0.0
    cost_j: float = 0.0
    saved_j: float = 0.0
    curves: tuple[tuple[CostCurve, int], ...] = ()

    def most_saved_j(self, time_s: float) -> float:
        """Return the most that the stage saves if it is busy for `time_s`, J: its hulls joined."""
        cost_j = sum(num * curve.exact_hull[0].cost_j for curve, num in self.curves)
        left_s = time_s - sum(num * curve.exact_hull[0].time_s for curve, num in self.curves)
        pieces = [
            (num * (slower.time_s - faster.time_s), num * (slower.cost_j - faster.cost_j))
            for curve, num in self.curves
            for faster, slower in itertools.pairwise(curve.exact_hull)
        ]
        for piece_s, piece_j in sorted(pieces, key=lambda piece: piece[1] / piece[0]):
            if left_s <= 0:
                break
            cost_j += piece_j * min(1.0, left_s / piece_s)
            left_s -= piece_s
        return self.cost_j - cost_j


def _stage_accounts(
    model: PipelineModel, simulation: Simulation, baseline: Simulation
) -> list[_StageAccount]:
    curves, power_w = model_curves(model), model.stage_blocking_power_w
    accounts = [_StageAccount() for _ in range(model.schedule.num_stages)]
    counts = [Counter[int]() for _ in accounts]
    for node, stage in enumerate(model.dag.stage):
        account, highest_s = accounts[stage], baseline.busy_s[node]
        counts[stage][curves.curve_of_node[node]] += 1
        cost_j = baseline.busy_j[node] - power_w[stage] * highest_s
        account.busy_s += highest_s
        account.cost_j += cost_j
        account.saved_j += cost_j - simulation.busy_j[node]
        account.saved_j += power_w[stage] * simulation.busy_s[node]
    for account, num_of in zip(accounts, counts, strict=True):
        account.curves = tuple((curves.curves[curve], num) for curve, num in num_of.items())
    return accounts

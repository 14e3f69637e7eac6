"""Plans whose leverage in a regression is limited.

Energies that were fitted by regression say little of combinations of clocks that the regression
has not seen, and the plan of least energy looks for such combinations. A plan is within the limit
if no stage's leverage is above it. It is made from the plan without a limit: single instructions
change their clocks, the best change first, where energy and a price of the leverage beyond the
limit fall together and the iteration takes no longer. The price rises until the limit is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.paths import earliest_finish_s, latest_finish_s
from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.frontier.targets import ClockTables, clock_tables
from flyball_server.planning.model.array_dag import FloatArray
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import RELATIVE_TIME_TOLERANCE
from flyball_server.planning.planner import PlanRequest, make_plan, simulated_choice
from flyball_server.planning.policies._base import PolicyChoice
from flyball_server.planning.simulated_plan import SimulatedPlan

# The first price of a unit of leverage, as a share of the energy, and how often it is doubled.
_FIRST_PRICE, _MAX_RISES = 0.0005, 16
# Changes below this share of the energy are rounding errors.
_LEAST_CHANGE = 1e-9


@dataclass(frozen=True, kw_only=True)
class LeverageLimit:
    """Limit on the leverage of each stage.

    A stage's leverage is the squared length of a vector: `of_stage`, plus `of_instruction` for
    each of its instructions.

    Attributes:
        of_stage: shape (num_stages, num_rows).
        of_instruction: by stage, kind and clock in MHz; each of shape (num_rows,).
        largest: largest leverage that is allowed.
    """

    of_stage: FloatArray
    of_instruction: Mapping[tuple[int, InstructionKind, int], FloatArray]
    largest: float


def plan_within(request: PlanRequest, limit: LeverageLimit) -> SimulatedPlan | None:
    """Return a plan for the request's target within the limit, at clocks of the profile.

    It takes no longer than the plan without a limit. Clocks change at once.

    Returns:
        None where no plan within the limit is found.

    Raises:
        PlanningError, TargetUnreachableError: as for `make_plan`.
    """
    solved = make_plan(request)
    search = _Search(solved, limit)
    price_j = _FIRST_PRICE * solved.plan.predicted.energy_j
    for _ in range(_MAX_RISES):
        search.improve(price_j)
        if search.is_within:
            break
        price_j *= 2
    else:
        return None
    assignment = search.choices.tolist()
    choice = PolicyChoice(
        assignment=assignment,
        lower_bound_j=solved.plan.predicted.lower_bound_j,
        reserve=solved.plan.reserve,
    )
    return simulated_choice(request, [solved.model], choice)


class _Search:
    """Changes of single instructions' clocks.

    Attributes:
        choices: per node, an index into its operating points; shape (num_nodes,).
    """

    def __init__(self, solved: SimulatedPlan, limit: LeverageLimit) -> None:
        model = solved.model
        self.choices = np.array(solved.assignment)
        self._dag, self._deadline_s = model.dag, solved.plan.iteration_time_s
        self._largest, self._of_stage = limit.largest, limit.of_stage
        self._stage = np.array(model.dag.stage)
        self._nodes = np.arange(len(self._stage))
        # Of each node's points; those that it does not have cost infinitely much.
        tables = clock_tables(model)
        self._times_s = tables.times_s[tables.group_of_node]
        self._costs_j = tables.costs_j[tables.group_of_node]
        self._vectors = _vectors(model, limit, tables)

    @property
    def is_within(self) -> bool:
        """True if no stage's leverage is above the limit."""
        return bool((self._leverages(self._stage_vectors()) <= self._largest).all())

    def _leverages(self, vectors: FloatArray) -> FloatArray:
        leverages: FloatArray = np.square(vectors).sum(axis=-1)
        return leverages

    def _stage_vectors(self) -> FloatArray:
        vectors = self._of_stage.copy()
        np.add.at(vectors, self._stage, self._vectors[self._nodes, self.choices])
        return vectors

    def improve(self, price_j: float) -> None:
        """Change clocks as long as energy and the price of leverage above the limit fall."""
        least_j = _LEAST_CHANGE * float(np.abs(self._costs_j[self._nodes, self.choices]).sum())
        while True:
            cancellation_point()
            changes_j = self._changes_j(price_j)
            node, choice = np.unravel_index(int(changes_j.argmin()), changes_j.shape)
            if changes_j[node, choice] >= -least_j:
                return
            self.choices[node] = choice

    def _changes_j(self, price_j: float) -> FloatArray:
        """Return the change of energy and price by each change of a clock, infinite if too late."""
        now = self._nodes, self.choices
        durations_s = self._times_s[now]
        finish_s = earliest_finish_s(self._dag, durations_s.tolist())
        latest_s = latest_finish_s(self._dag, durations_s.tolist(), self._deadline_s)
        float_s = np.subtract(latest_s, finish_s) + RELATIVE_TIME_TOLERANCE * self._deadline_s
        vectors = self._stage_vectors()[self._stage]
        changed = (vectors - self._vectors[now])[:, None] + self._vectors
        beyond = np.maximum(self._leverages(changed) - self._largest, 0)
        beyond -= np.maximum(self._leverages(vectors) - self._largest, 0)[:, None]
        changes_j = self._costs_j - self._costs_j[now][:, None] + price_j * beyond
        return np.where(self._times_s - durations_s[:, None] <= float_s[:, None], changes_j, np.inf)


def _vectors(model: PipelineModel, limit: LeverageLimit, tables: ClockTables) -> FloatArray:
    """Return the vector of each node's points; shape (num_nodes, num_points, num_rows)."""
    groups, group_of_node = model.groups
    kind = {
        group: instruction.kind
        for group, instruction in zip(group_of_node, model.dag.instruction, strict=True)
    }
    vectors = np.zeros((*tables.times_s.shape, limit.of_stage.shape[1]))
    for group, (stage, points) in enumerate(groups):
        for place, point in enumerate(points):
            vectors[group, place] = limit.of_instruction[stage, kind[group], point.frequency_mhz]
    of_nodes: FloatArray = vectors[tables.group_of_node]
    return of_nodes

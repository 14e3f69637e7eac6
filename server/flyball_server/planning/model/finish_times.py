"""Finish times of one large DAG, asked for again and again: compiled.

The same additions in the same order as in `simulator`, so the same figures to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flyball_server.planning.frontier.compilation import compiled_function
from flyball_server.planning.model.dag import DependencyDag
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import (
    earliest_finish_s,
    iteration_energy_j,
    latest_finish_s,
)

# Below, Python is about as fast, and nothing need be loaded.
COMPILED_FROM = 4_000


class FinishTimes:
    """Finish times of one DAG for whatever durations.

    Args:
        dag: whose nodes they are.
        compiled_from: with so many nodes, by compiled code; None: COMPILED_FROM.
    """

    def __init__(self, dag: DependencyDag, *, compiled_from: int | None = None) -> None:
        self._dag = dag
        least = COMPILED_FROM if compiled_from is None else compiled_from
        self._is_compiled = dag.num_nodes >= least
        if self._is_compiled:
            self._order, self._predecessors = dag.order_array, dag.predecessor_array

    def earliest_s(self, durations_s: Sequence[float]) -> list[float]:
        """Per node, when it finishes if all start as early as they can, s."""
        if not self._is_compiled:
            return earliest_finish_s(self._dag, durations_s)
        durations = np.array(durations_s, dtype=np.float64)
        finish_s: list[float] = _earliest(self._order, self._predecessors, durations).tolist()
        return finish_s

    def latest_s(self, durations_s: Sequence[float], iteration_time_s: float) -> list[float]:
        """Per node, when it must have finished for the iteration to take no longer than this, s."""
        if not self._is_compiled:
            return latest_finish_s(self._dag, durations_s, iteration_time_s)
        durations = np.array(durations_s, dtype=np.float64)
        finish_s: list[float] = _latest(
            self._order, self._predecessors, durations, iteration_time_s
        ).tolist()
        return finish_s


def predicted_time_and_energy(
    model: PipelineModel, assignment: Sequence[int]
) -> tuple[float, float]:
    """Iteration time, s, and energy, J: to the last bit as the simulator has them."""
    durations_s = model.durations_s(assignment)
    iteration_time_s = max(FinishTimes(model.dag).earliest_s(durations_s))
    return iteration_time_s, iteration_energy_j(model, assignment, iteration_time_s)


@compiled_function
def _earliest(
    order: NDArray[np.int64], predecessors: NDArray[np.int64], durations_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    finish_s = np.zeros(len(durations_s) + 1)  # the last one stands for NONE, which is -1
    for node in order:
        before, source = finish_s[predecessors[0, node]], finish_s[predecessors[1, node]]
        finish_s[node] = (before if before > source else source) + durations_s[node]
    return finish_s[:-1]


@compiled_function
def _latest(
    order: NDArray[np.int64],
    predecessors: NDArray[np.int64],
    durations_s: NDArray[np.float64],
    iteration_time_s: float,
) -> NDArray[np.float64]:
    finish_s = np.full(len(durations_s), iteration_time_s)
    for node in order[::-1]:
        start_s = finish_s[node] - durations_s[node]
        for which in range(2):
            before = predecessors[which, node]
            if before >= 0 and start_s < finish_s[before]:
                finish_s[before] = start_s
    return finish_s

"""Least energy of a recorded step at its deadline, by linear programming.

Each instruction's cost net of waiting is the lower convex hull of its points over their times, as
in docs/derivations.md, "The linear program"; here each has its own factor.
"""

# highspy has no types: what it returns is unknown to a type checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence

import highspy
import numpy as np
from numpy.typing import NDArray

from flyball_pipeline.dag import NONE
from flyball_pipeline.step_curves import ClockPoint
from flyball_server.planning.frontier.curves import cost_curve
from flyball_server.planning.frontier.highs_relaxation import QuietHighs
from flyball_server.replay.steps.step_models import PipelineStep


class StepBound:
    """Bounds of pipelines of any order, one after the other."""

    def __init__(self) -> None:
        self._highs = QuietHighs()
        self._highs.setOptionValue("threads", 1)
        # By the points that they are made of, which are kept with them, and waiting power in W.
        self._hulls: dict[tuple[int, float], tuple[object, NDArray[np.float64]]] = {}

    def least_j(self, pipeline: PipelineStep, deadline_s: float) -> float:
        """Return what no clocks are below that keep the deadline: energy net of waiting, J.

        Args:
            pipeline: the pipeline in this step.
            deadline_s: end of its last instruction, s, at least its own time at the highest clocks.

        Raises:
            ArithmeticError: the solver found no optimum.
        """
        model = pipeline.model
        hulls = [
            self._hull(points, model.power_w[stage])
            for stage, points in zip(model.dag.stage, model.points, strict=True)
        ]
        program, least_j = _program(pipeline, hulls, deadline_s)
        self._highs.passModel(program)
        self._highs.run()
        if self._highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise ArithmeticError(f"HiGHS ended with {self._highs.getModelStatus()}")
        return least_j + float(self._highs.getInfo().objective_function_value)

    def _hull(self, points: Sequence[ClockPoint], power_w: float) -> NDArray[np.float64]:
        """Return corners of a hull: time in s and cost in J; shape (num_corners, 2)."""
        key = id(points), power_w
        if key not in self._hulls:
            hull = cost_curve(points, power_w).exact_hull
            corners = np.array([(corner.time_s, corner.cost_j) for corner in hull])
            self._hulls[key] = (points, corners)
        return self._hulls[key][1]


def _program(
    pipeline: PipelineStep, hulls: Sequence[NDArray[np.float64]], deadline_s: float
) -> tuple[highspy.HighsLp, float]:
    """Return the program in units of the deadline, and the cost at the fastest points, J.

    Columns are ends of instructions, and parts of their hulls' segments. A row says of an edge that
    the later instruction ends no sooner than the earlier, a transfer and its own time.
    """
    model, factors = pipeline.model, pipeline.factors
    dag, num = model.dag, model.dag.num_nodes
    rows: list[NDArray[np.int64]] = []
    columns: list[NDArray[np.int64]] = []
    values: list[NDArray[np.float64]] = []
    least_row: list[float] = []
    costs, uppers = [np.zeros(num)], [np.full(num, 1.0)]
    lowers, least_j, next_column = [np.zeros(num)], 0.0, num
    for node in range(num):
        corners = hulls[node]
        time_s = factors[node] * corners[0, 0]
        least_j += factors[node] * float(corners[0, 1])
        steps = np.diff(corners, axis=0)
        parts = np.arange(next_column, next_column + len(steps))
        next_column += len(steps)
        costs.append(steps[:, 1] / steps[:, 0] * deadline_s)
        uppers.append(factors[node] * steps[:, 0] / deadline_s)
        lowers.append(np.zeros(len(steps)))
        sources = {dag.order_predecessor[node], dag.data_predecessor[node]}
        for source in sorted(sources - {NONE}) or [NONE]:
            delay_s = dag.input_delay_s[node] if source == dag.data_predecessor[node] else 0.0
            ends = np.array([node] if source == NONE else [node, source])
            of_row = np.concatenate([ends, parts])
            rows.append(np.full(len(of_row), len(least_row)))
            columns.append(of_row)
            values.append(
                np.concatenate([np.array([1.0, -1.0])[: len(ends)], np.full(len(parts), -1.0)])
            )
            least_row.append((time_s + delay_s) / deadline_s)
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = next_column, len(least_row)
    program.col_cost_ = np.concatenate(costs)
    program.col_lower_, program.col_upper_ = np.concatenate(lowers), np.concatenate(uppers)
    program.row_lower_ = np.array(least_row) * (1 - 1e-12)
    program.row_upper_ = np.full(len(least_row), highspy.kHighsInf)
    counts = [len(row) for row in rows]
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    program.a_matrix_.index_ = np.concatenate(columns).astype(np.int32)
    program.a_matrix_.value_ = np.concatenate(values)
    return program, least_j

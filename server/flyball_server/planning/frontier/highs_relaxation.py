"""The relaxed problem as a linear program in HiGHS: one model, solved again as T changes.

For pipelines of up to some thousand instructions; larger ones are the interior point's.
"""

# highspy has no types: what it returns is unknown to a type checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyright: reportOptionalSubscript=false

from __future__ import annotations

import highspy
import numpy as np

from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.frontier.event_network import BEGIN, DEADLINE, EventNetwork
from flyball_server.planning.frontier.relaxation import RelaxedOptimum, relaxed_optimum

_EDGE_WEIGHTS, _DEVEX = "simplex_dual_edge_weight_strategy", 1


class HighsRelaxation:
    """Dual simplex on the primal program, warm from the deadline before.

    Columns are the event times and the arcs' segments; row a says that arc a's window is its
    minimum plus its segments' parts, and the row's dual is the arc's price of time. HiGHS's
    tolerances are absolute: so that nanoseconds come out as exactly as hours, its unit of time
    is a mean instruction, and its unit of power the median slope of the costs.
    """

    def __init__(self, network: EventNetwork) -> None:
        self._network = network
        self._unit_s = float(network.min_window_s[: network.num_instructions].mean())
        gains_w = np.abs(network.slope_w[network.slope_w < 0])
        self._unit_w = float(np.sort(gains_w)[len(gains_w) // 2]) if len(gains_w) else 1.0
        self._highs = QuietHighs()
        # Each solve begins with the last solve's basis; steepest-edge weights are not kept.
        for option, value in (("threads", 1), ("presolve", "off"), (_EDGE_WEIGHTS, _DEVEX)):
            self._highs.setOptionValue(option, value)
        self._highs.passModel(_program(network, self._unit_s, self._unit_w))

    def solve(self, deadline_s: float) -> RelaxedOptimum:
        """See `Relaxation`."""
        deadline = deadline_s / self._unit_s
        self._highs.changeColBounds(DEADLINE, deadline, deadline)
        cancellation_point()
        self._highs.run()
        if self._highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise ArithmeticError(
                f"HiGHS ended with {self._highs.getModelStatus()} at a deadline of {deadline_s} s"
            )
        solution = self._highs.getSolution()
        return relaxed_optimum(
            self._network,
            deadline_s,
            np.asarray(solution.col_value[: self._network.num_events]) * self._unit_s,
            np.asarray(solution.row_dual) * self._unit_w,
        )


class QuietHighs(highspy.Highs):  # type: ignore[misc]
    """HiGHS without the callbacks of its constructor, which prints a banner to standard output."""

    def __init__(self) -> None:
        super(highspy.Highs, self).__init__()
        self.setOptionValue("output_flag", False)


def _program(network: EventNetwork, unit_s: float, unit_w: float) -> highspy.HighsLp:
    num_arcs, num_events = len(network.tail), network.num_events
    arc_of_part, segment_of_part = np.nonzero(network.length_s)
    num_parts = len(arc_of_part)
    arcs = np.arange(num_arcs)
    rows = np.concatenate([arcs, arcs, arc_of_part])
    columns = np.concatenate([network.head, network.tail, num_events + np.arange(num_parts)])
    values = np.concatenate([np.ones(num_arcs), -np.ones(num_arcs), -np.ones(num_parts)])
    by_row = np.argsort(rows, kind="stable")
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = num_events + num_parts, num_arcs
    program.col_cost_ = np.concatenate(
        [np.zeros(num_events), network.slope_w[arc_of_part, segment_of_part] / unit_w]
    )
    program.col_lower_ = np.zeros(num_events + num_parts)
    upper = np.concatenate(
        [np.full(num_events, np.inf), network.length_s[arc_of_part, segment_of_part] / unit_s]
    )
    upper[BEGIN] = 0.0
    program.col_upper_ = upper
    program.row_lower_ = program.row_upper_ = network.min_window_s / unit_s
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.searchsorted(rows[by_row], np.arange(num_arcs + 1))
    program.a_matrix_.index_ = columns[by_row]
    program.a_matrix_.value_ = values[by_row]
    return program

"""Formula for a plan's reserve from the scatter of the profiled times.

A plan of least energy has many paths as long as its deadline. With noise the longest of them
counts, and the mean iteration gets longer; at the highest clocks one path stands out.

Node times are normal, with standard deviation `s_i t_i`; `s_i^2` is the mean of `jitter^2 +
time_error^2` over the node's points. The node starts at the later of two finishes, of which mean
and variance are those of independent ones: C. E. Clark, "The greatest of a finite set of random
variables", Operations Research 9 (1961), equations 2 to 4. One pass over the DAG gives the mean
iteration: `M` of the plan, with deadline `D`, and `H` of the highest clocks, with time `T`. Paths
share instructions, so the plan without a reserve is longer by

    L = 0.8 (M T / (D H) - 1).

A reserve `r` leaves about `L exp(-r / u)`, with `u = 0.7 s` and the root mean square `s` of `s_i`.
The choice is

    r = u ln(L / max(0.003, u / 3)), at least 0:

it leaves 0.003, or stops where more reserve shortens the mean iteration by a third of itself. What
is predicted with it is `L` of the plan that has it. 0.8 and 0.7 are from the simulations of
decision 34, which also show that a time's error, the same in all runs, counts as much as jitter.
"""

from __future__ import annotations

import math

import numpy as np

from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.model.array_dag import FloatArray
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import time_and_energy
from flyball_wire.closed_loop import NO_RESERVE, Reserve, ReserveChoice
from flyball_wire.plan_options import MAX_RESERVE, PlanOptions

MAX_LENGTHENING, LEAST_GAIN = 0.003, 1 / 3
SHARED_PATHS, DECAY = 0.8, 0.7
LEAST_NOISE = 1e-4  # smaller shares are rounding errors
NUM_PARTS = 10_000  # reserves are rounded up to multiples of 1 / NUM_PARTS
_LEAST_DEVIATION_S = 1e-12
_erf = np.vectorize(math.erf, otypes=[float])


def solver_with_reserve(
    model: PipelineModel, options: PlanOptions, deadline_s: float
) -> tuple[DeadlineSolver, Reserve]:
    """Return a solver of the pipeline with the reserve that is given, or chosen for its noise.

    Args:
        model: the pipeline, as profiled, with clock changes that take no time.
        options: options of the plan.
        deadline_s: latest end of an iteration, s; infinite: no reserve is chosen.
    """
    solver = DeadlineSolver(model, reserve=options.reserve or 0.0)
    if options.reserve is not None or not math.isfinite(deadline_s):
        return solver, Reserve(share=solver.reserve)
    squares = _squares(model)
    jitter, time_error, noise = np.sqrt([*squares.mean(axis=1), squares.sum(axis=0).mean()])
    if noise < LEAST_NOISE:
        return solver, NO_RESERVE
    deadline_s = min(max(deadline_s, solver.fastest_time_s), solver.slowest_time_s)
    relaxed, of_nodes = solver.relax(deadline_s), np.sqrt(squares.sum(axis=0))
    highest_s = np.array(model.durations_s(model.baseline()))
    highest_time_s, highest_j = time_and_energy(model, model.baseline())
    allowed_s = deadline_s * mean_time_s(model, highest_s, of_nodes) / highest_time_s

    def lengthening(durations_s: FloatArray) -> float:
        return SHARED_PATHS * max(0.0, mean_time_s(model, durations_s, of_nodes) / allowed_s - 1)

    before = after = lengthening(solver.durations_s(relaxed))
    share, cost_j = reserve_against(before, float(noise)), 0.0
    if share:
        solver = DeadlineSolver(model, reserve=share)
        with_it = solver.relax(max(deadline_s, solver.fastest_time_s))
        longer_s = np.array(solver.planned.durations_s(model.baseline()))
        after = lengthening(solver.durations_s(with_it) * highest_s / longer_s)
        cost_j = max(0.0, with_it.lower_bound_j - relaxed.lower_bound_j)
    choice = ReserveChoice(
        jitter_percent=100 * float(jitter),
        time_error_percent=100 * float(time_error),
        slowdown_without_percent=100 * before,
        slowdown_percent=100 * after,
        cost_points=100 * cost_j / highest_j,
    )
    return solver, Reserve(share=share, choice=choice)


def reserve_against(lengthening: float, noise: float) -> float:
    """Return the reserve for a plan that noise lengthens by this share without one."""
    unit = DECAY * noise
    wanted = unit * math.log(max(1.0, lengthening / max(MAX_LENGTHENING, LEAST_GAIN * unit)))
    return min(MAX_RESERVE, math.ceil(wanted * NUM_PARTS - 1e-6) / NUM_PARTS)


def _squares(model: PipelineModel) -> FloatArray:
    """Return each node's mean square of jitter and of time error as shares; (2, num_nodes)."""
    tables, table_of_node = model.groups
    of_tables = [
        np.square([(point.jitter, point.time_error_s / point.time_s) for point in points]).mean(
            axis=0
        )
        for _, points in tables
    ]
    squares: FloatArray = np.array(of_tables)[list(table_of_node)].T
    return squares


def mean_time_s(model: PipelineModel, durations_s: FloatArray, noise: FloatArray) -> float:
    """Return the mean time of an iteration, s, as if what a node waits for were independent.

    Args:
        model: the pipeline.
        durations_s: mean time of each node, s; shape (num_nodes,).
        noise: standard deviation of each node's time, as a share of it; shape (num_nodes,).
    """
    dag, own_variance = model.dag, (noise * durations_s) ** 2
    mean_s = np.full(dag.num_nodes + 1, dag.tail_s)  # the last value stands for NONE
    variance = np.zeros(dag.num_nodes + 1)
    for nodes, before, source in dag.levels:
        spread = np.where(before == source, 0.0, variance[before] + variance[source])
        input_s = mean_s[source] + dag.input_delay_array_s[nodes, 0]
        start = _later((mean_s[before], variance[before]), (input_s, variance[source]), spread)
        mean_s[nodes] = start[0] + durations_s[nodes]
        variance[nodes] = start[1] + own_variance[nodes]
    end = np.zeros(()), np.zeros(())
    for last in dag.last_of_stages:
        end = _later(end, (mean_s[last], variance[last]), end[1] + variance[last])
    return float(end[0])


def _later(
    one: tuple[FloatArray, FloatArray], other: tuple[FloatArray, FloatArray], spread: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return mean and variance of the later of two times.

    Args:
        one: mean in s, and variance.
        other: likewise.
        spread: variance of their difference.
    """
    deviation_s = np.sqrt(spread) + _LEAST_DEVIATION_S
    difference_s = one[0] - other[0]
    ratio = difference_s / deviation_s
    is_one = (1 + _erf(ratio / math.sqrt(2))) / 2
    density_s = deviation_s * np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    above_s = difference_s * is_one + density_s
    square = (difference_s**2 + one[1]) * is_one + other[1] * (1 - is_one)
    return other[0] + above_s, np.maximum(square + difference_s * density_s - above_s**2, 0.0)

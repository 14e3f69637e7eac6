"""Choice of a plan's reserve from the scatter of the profiled times.

A plan of least energy has many paths as long as its deadline, and with noise the longest of them
counts: the mean iteration gets longer. At the highest clocks one path stands out, and the mean
hardly changes. The choice compares the two by a Monte Carlo simulation with common random numbers:
each run of an instruction varies by the profile's jitter, and each profiled point, in all of its
runs, by the standard error of its time. The simulated plan is the relaxed optimum; with a reserve,
each instruction of it gives up its share, so that a single linear program serves all reserves. A
plan of one clock per instruction is a little faster, since clocks are rounded up.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from flyball_profiles.stage_profile import OperatingPoint
from flyball_server.planning.frontier.solver import DeadlineSolver, reserve_shares
from flyball_server.planning.model.dag import IndexArray
from flyball_server.planning.model.finish_times import FloatArray, earliest_finishes_s
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import simulate, time_and_energy
from flyball_wire.closed_loop import ReserveChoice
from flyball_wire.plan_options import MAX_RESERVE, PlanOptions

# Limit on the relaxed optimum's lengthening by noise, beyond that of the highest clocks. With one
# clock per instruction the lengthening is then below 0.003.
MAX_LENGTHENING = 0.0035
# Reserves are tried in steps of STEP_SHARE of the lengthening without a reserve, until the plan is
# short enough or a step gains less than LEAST_GAIN of its size.
STEP_SHARE, LEAST_GAIN, MAX_STEPS = 0.25, 0.25, 12
# Reserves are rounded up to multiples of 1 / NUM_PARTS.
NUM_PARTS = 10_000
# Draws of an iteration; fewer for more instructions, which bounds the memory.
MAX_DRAWS, MIN_DRAWS, INSTRUCTIONS_DRAWN = 256, 64, 2_000_000
# Smaller shares are rounding errors, not noise.
LEAST_NOISE = 1e-4
SHORTEST = 0.01  # of an instruction, as a share of its time
SEED = 6


class IterationNoise:
    """Seeded draws of a pipeline's iterations.

    Args:
        model: the pipeline, with the scatter of its times as profiled.

    Attributes:
        jitter, time_error: standard deviation of a single run, and standard error of the profiled
            time, of the instructions at the highest clocks, root mean square, as shares.
        is_known: whether any point has one of them, beyond rounding.
    """

    def __init__(self, model: PipelineModel) -> None:
        self._dag, self._first_points = model.dag, [points[0] for points in model.points]
        groups, group_of_node = model.groups
        self._table, tables = np.array(group_of_node), [points for _, points in groups]
        self._times_s = _padded(tables, lambda point: point.time_s)
        self._jitter = _padded(tables, lambda point: point.jitter)
        self._error = _padded(tables, lambda point: point.time_error_s / point.time_s)
        self.is_known = bool(max(self._jitter.max(), self._error.max()) >= LEAST_NOISE)
        self.jitter = _root_mean_square([point.jitter for point in self._first_points])
        self.time_error = _root_mean_square(
            [point.time_error_s / point.time_s for point in self._first_points]
        )

    @functools.cached_property
    def _draws(self) -> tuple[FloatArray, FloatArray]:
        """Return standard normal draws per node, and per table and point."""
        num_nodes = self._dag.num_nodes
        num_draws = min(MAX_DRAWS, max(MIN_DRAWS, INSTRUCTIONS_DRAWN // num_nodes))
        generator = np.random.default_rng(SEED)
        of_nodes = generator.standard_normal((num_nodes, num_draws))
        return of_nodes, generator.standard_normal((*self._times_s.shape, num_draws))

    def mean_time_s(self, durations_s: FloatArray) -> float:
        """Return the mean iteration time, s.

        Args:
            durations_s: time of each instruction without noise, s; it scatters as the profiled
                point that is nearest to it; shape (num_nodes,).
        """
        of_nodes, of_points = self._draws
        table = self._table
        point: IndexArray = np.abs(self._times_s[table] - durations_s[:, None]).argmin(axis=1)
        factors = 1 + self._jitter[table, point][:, None] * of_nodes
        factors += self._error[table, point][:, None] * of_points[table, point]
        drawn_s = durations_s[:, None] * np.maximum(factors, SHORTEST)
        return float(earliest_finishes_s(self._dag, drawn_s).max(axis=0).mean())


def _padded(
    tables: Sequence[Sequence[OperatingPoint]], of_point: Callable[[OperatingPoint], float]
) -> FloatArray:
    """Return a row of values per table, its last one repeated; shape (num_tables, any)."""
    most = max(map(len, tables))
    return np.array(
        [[of_point(one[min(at, len(one) - 1)]) for at in range(most)] for one in tables]
    )


def _root_mean_square(values: Sequence[float]) -> float:
    return math.sqrt(math.fsum(value**2 for value in values) / len(values))


class NoiseReserve:
    """Choice of a reserve for one deadline.

    Args:
        model: the pipeline, as profiled, with clock changes that take no time.
        noise: noise of its instructions.
        deadline_s: latest end of an iteration, s; finite.

    Attributes:
        share: the reserve.
    """

    def __init__(self, model: PipelineModel, noise: IterationNoise, deadline_s: float) -> None:
        self._noise, self._model = noise, model
        solver = DeadlineSolver(model)
        self._deadline_s = min(max(deadline_s, solver.fastest_time_s), solver.slowest_time_s)
        self._relaxed = solver.relax(self._deadline_s)
        self._durations_s = solver.durations_s(self._relaxed)
        highest = model.baseline()
        self._highest_s = np.array(model.durations_s(highest))
        highest_time_s, self._highest_j = time_and_energy(model, highest)
        # As much longer than without noise as the highest clocks are.
        self._allowed_s = self._deadline_s * noise.mean_time_s(self._highest_s) / highest_time_s
        self._without = self._lengthening(self._durations_s)
        self.share = self._found()

    def choice(
        self, solver: DeadlineSolver, model: PipelineModel, assignment: Assignment
    ) -> ReserveChoice:
        """Return the reserve with its reason and its price.

        Args:
            solver: solver of the pipeline with this reserve.
            model: the pipeline that the plan is for, with the times of its clock changes.
            assignment: the plan.
        """
        busy_s = np.array(simulate(model, assignment).busy_s)
        deadline_s = max(self._deadline_s, solver.fastest_time_s)
        cost_j = solver.relax(deadline_s).lower_bound_j - self._relaxed.lower_bound_j
        return ReserveChoice(
            jitter_percent=100 * self._noise.jitter,
            time_error_percent=100 * self._noise.time_error,
            slowdown_without_percent=100 * self._without,
            slowdown_percent=100 * self._lengthening(busy_s),
            cost_points=100 * max(0.0, cost_j) / self._highest_j if self.share else 0.0,
        )

    def _lengthening(self, durations_s: FloatArray) -> float:
        return max(0.0, self._noise.mean_time_s(durations_s) / self._allowed_s - 1)

    def _with(self, share: float) -> float:
        shares = np.array(reserve_shares(self._model, share))
        return self._lengthening(np.maximum(self._highest_s, self._durations_s / (1 + shares)))

    def _found(self) -> float:
        """Return the least reserve with which iterations are short enough, or one worth keeping."""
        step, before = STEP_SHARE * self._without, self._without
        share = 0.0
        while before > MAX_LENGTHENING and share < min(MAX_STEPS * step, MAX_RESERVE):
            now = self._with(share + step)
            if before - now < LEAST_GAIN * step:
                break
            part = min(1.0, (before - MAX_LENGTHENING) / (before - now))
            share, before = share + part * step, now
        return min(MAX_RESERVE, math.ceil(share * NUM_PARTS - 1e-6) / NUM_PARTS)


def noise_reserve(
    model: PipelineModel, options: PlanOptions, deadline_s: float
) -> NoiseReserve | None:
    """Return the choice of a reserve; None: one is given, no noise is known, or no deadline is.

    Args:
        model: the pipeline, as profiled, with clock changes that take no time.
        options: options of the plan.
        deadline_s: latest end of an iteration, s; infinite: it may take any time.
    """
    if options.reserve is not None or not math.isfinite(deadline_s):
        return None
    noise = IterationNoise(model)
    return NoiseReserve(model, noise, deadline_s) if noise.is_known else None

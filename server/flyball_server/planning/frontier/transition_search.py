"""Clocks of least energy where clock changes take time: a search from a plan made without delays.

A plan that is made as if clocks changed at once is late under delays, and changes clocks where
that is not worth it. The search changes the clocks of short runs of instructions and runs whole
iterations under the delays (`model/late_clocks.py`), hundreds of plans at once: a step
tries many changes of the current plan, each by itself, and then the good ones together, the best
first, the best two, and so on, as far as they do not overlap. Which ones are good is drawn by a
temperature that falls, and lateness has a price that rises, so the search passes through plans
that are late and ends with one that is not.

Where delays vary, a plan's time is what no delays between their 5th and 95th percentiles exceed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyball_pipeline.dag import NONE
from flyball_pipeline.paths import latest_finish_s
from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.model.array_dag import BoolArray, FloatArray, IndexArray, every_row
from flyball_server.planning.model.early_requests import EarlyRequestBatch
from flyball_server.planning.model.late_clocks import LateClockSimulator
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import RELATIVE_TIME_TOLERANCE
from flyball_wire.plan_options import Effort, PlanOptions

# Changes that a step tries, and sets of them, by the number of instructions: memory and time.
MAX_CHANGES = {Effort.LOW: 192, Effort.NORMAL: 192, Effort.HIGH: 384}
MIN_CHANGES, INSTRUCTIONS_AT_ONCE = 16, 80_000
CHANGES_PER_SET = 6
# Steps of a search, by the number of instructions.
STEPPED = {Effort.LOW: 20_000, Effort.NORMAL: 60_000, Effort.HIGH: 600_000}
MIN_STEPS = {Effort.LOW: 10, Effort.NORMAL: 30, Effort.HIGH: 300}
MAX_STEPS = {Effort.LOW: 100, Effort.NORMAL: 300, Effort.HIGH: 3_000}
# A search is some in a row, each from the best plan so far: their share of the steps, and their
# first temperatures in mean cost steps between neighbouring clocks. Where delays are short the
# first is the one that counts, where they are long the second. The last one goes downhill only.
PHASES = ((0.25, 3.2), (0.35, 10.0), (0.15, 5.0), (0.15, 3.2), (0.1, 0.0))
COOLING_POWER = 3
# Raising clocks until a plan is in time: share of the late instructions in the first round, its
# growth from round to round, by which part of the difference a clock is raised, and most rounds.
RAISED_SHARE, RAISED_GROWTH, RAISED_PART, MAX_RAISES = 0.1, 1.03, 0.1, 300
MIN_RAISES = 20
# The same where a search ends late, which it does by little.
MAX_REPAIRS = 60
# The price of lateness in prices of time: the first, the last, and where nothing else is left.
FIRST_PRICE, LAST_PRICE, FINAL_PRICE = 2.0, 20.0, 1000.0
# The price of a clock change beyond the limits, in mean cost steps for each price of time.
SWITCH_STEPS = 20.0
# Of the changes: those of one instruction, of some in a row, and of whole stages.
ONE_SHARE, SOME_SHARE = 0.6, 0.35
MAX_IN_A_ROW = 8
# Of the changes: those to the clock of a neighbour; the others are steps up or down.
NEIGHBOUR_SHARE = 0.6
SMALL_SHARE, SMALL_STEP, LARGE_STEP = 0.75, 2, 4
# In the choice of a set, what each further change in it is worth, in temperatures.
CHANGE_WORTH = 0.25
_SEED = 1


def is_tiny(model: PipelineModel) -> bool:
    """Return whether all plans of a pipeline are tried."""
    num_plans = math.prod(map(len, model.points))
    return num_plans * model.dag.num_nodes <= INSTRUCTIONS_AT_ONCE


class TransitionSearch:
    """Search for the clocks of one pipeline whose clock changes take time, or are limited.

    Args:
        model: the pipeline, with the times of its clock changes.
        cost_step_j: how much a step to the next lower clock saves on average, J; 0: no search.
        options: effort of the search, and limits of clock changes.
        asks_early: clocks are requested ahead of an instruction's end. A plan is then found only
            if no delays make it longer than clocks that change at once.
    """

    def __init__(
        self,
        model: PipelineModel,
        cost_step_j: float,
        options: PlanOptions,
        *,
        asks_early: bool = False,
    ) -> None:
        self._options, effort = options, options.effort
        self._batch = (EarlyRequestBatch if asks_early else LateClockSimulator)(model)
        self._is_free = not (options.limits_changes or asks_early)
        self._cost_step_j = cost_step_j
        clocked, dag = model.clocked, model.dag
        group_of = dict(zip(clocked.node, clocked.group, strict=True))
        group = np.array([group_of[node] for node in range(dag.num_nodes)])
        self._dag, self._num_nodes = dag, dag.num_nodes
        self._every = every_row(list(map(len, model.points))) if is_tiny(model) else None
        # Stages of a steady-state period do not wait for each other.
        self._has_paths = clocked.num_instructions == dag.num_nodes
        self._before = np.array(dag.order_predecessor)
        stage = np.array(dag.stage)
        self._num_clocks = np.array(list(map(len, clocked.clocks_mhz)))[stage]
        most = int(self._num_clocks.max())
        self._clock_of_choice = _padded(clocked.clock_of_choice, most)[group]
        self._choice_of_clock = np.array(
            [_choices(of_choice, most) for of_choice in clocked.clock_of_choice]
        )[group]
        self._times_s = _padded(clocked.times_s, most)[group]
        stages: IndexArray = np.arange(len(clocked.first) + 1)
        ends: IndexArray = np.searchsorted(stage, stages)
        self._first, self._end = ends[stage], ends[stage + 1]
        self._num_changes = min(
            MAX_CHANGES[effort], max(MIN_CHANGES, INSTRUCTIONS_AT_ONCE // self._num_nodes)
        )
        wanted = max(MIN_STEPS[effort], STEPPED[effort] // self._num_nodes)
        # Where delays vary and several changes are on their way, a plan's time takes long to bound.
        share = 1.0 if effort is Effort.HIGH else 1 / self._batch.judging_effort
        wanted = max(MIN_STEPS[effort], round(share * min(wanted, MAX_STEPS[effort])))
        self._num_steps = wanted if cost_step_j else 0
        self._raised_share = share

    def times_s(self, assignments: Sequence[Assignment]) -> list[float]:
        """Return what no iteration of a plan exceeds under the delays, s."""
        times_s: list[float] = self._judged(np.array(assignments))[0].tolist()
        return times_s

    def energy_j(self, assignment: Assignment) -> float:
        """Return the energy of an iteration at the median delays, J."""
        return float(self._judged(np.array([assignment]))[1][0])

    def num_beyond(self, choices: IndexArray) -> IndexArray:
        """Return by how many changes each plan is beyond its limits; shape (num_plans,).

        With early requests those that no bound is known for count too.
        """
        options, beyond = self._options, self._batch.num_unbounded(choices)
        if options.max_switches is not None:
            beyond += np.maximum(0, self._batch.num_switches(choices) - options.max_switches)
        if options.min_dwell_ms:
            run, _ = self._batch.judged(choices)
            beyond += self._batch.num_short_dwells(choices, run, options.min_dwell_ms / 1e3)
        return beyond

    def raised(
        self, assignment: Assignment, deadline_s: float, max_rounds: int = MAX_RAISES
    ) -> Assignment:
        """Return the plan with clocks raised, bit by bit, until it meets the deadline.

        An instruction that takes long because it begins at a lower clock than its own, and that is
        on a path that is too long, has the clock of the instruction before it raised towards its
        own. Some of them at a time: after each the paths are others. Where there are none, all
        clocks of such paths are raised.
        """
        choices = np.array(assignment)
        if not (self._has_paths and np.isfinite(deadline_s)):
            return assignment
        draws, nodes = np.random.default_rng(_SEED), np.arange(self._num_nodes)
        for number in range(max(MIN_RAISES, round(self._raised_share * max_rounds))):
            cancellation_point()
            clocks = self._clock_of_choice[nodes, choices]
            is_on_path, is_long = self._too_long(choices, clocks, deadline_s)
            if not is_on_path.any():
                break
            late = np.flatnonzero(is_on_path & is_long & (self._before != NONE))
            wanted = clocks.copy()
            if len(late):
                late = late[draws.random(len(late)) < RAISED_SHARE * RAISED_GROWTH**number]
                before = self._before[late]
                by = np.ceil(RAISED_PART * (clocks[before] - clocks[late])).astype(np.int64)
                np.minimum.at(wanted, before, clocks[before] - by)
            else:
                wanted = np.where(is_on_path, np.maximum(0, clocks - 1), clocks)
            choices = self._choice_of_clock[nodes, wanted]
        raised: Assignment = choices.tolist()
        return raised

    def _too_long(
        self, choices: IndexArray, clocks: IndexArray, deadline_s: float
    ) -> tuple[BoolArray, BoolArray]:
        """Per node, whether it is on a path that is too long, and longer than at its own clock."""
        tolerance_s = RELATIVE_TIME_TOLERANCE * deadline_s
        time_s = self._judged(choices[None])[0][0]
        run = self._batch.estimated(choices[None])
        durations_s = run.duration_s[0]
        if time_s <= deadline_s + tolerance_s:
            none = np.zeros(self._num_nodes, dtype=np.bool_)
            return none, none
        end_s = deadline_s + min(0.0, run.iteration_time_s[0] - time_s)
        latest_s = np.array(latest_finish_s(self._dag, durations_s.tolist(), end_s))
        is_on_path = self._dag.tail_s + run.start_s[0] + durations_s > latest_s + tolerance_s
        own_s = self._times_s[np.arange(self._num_nodes), clocks]
        return is_on_path, durations_s > own_s * (1 + RELATIVE_TIME_TOLERANCE)

    def improved(
        self,
        assignments: Iterable[Assignment],
        deadline_s: float,
        time_price_w: float,
    ) -> Assignment | None:
        """Return the plan of least energy that is found; None: none meets the deadline.

        Of a tiny pipeline it is the best of all plans.

        Args:
            assignments: plans to begin with; the search goes on from the best one.
            deadline_s: iteration time, under all delays, s.
            time_price_w: about the energy that a second of the iteration's time is worth, W.
        """
        choices = np.array(list(assignments)) if self._every is None else self._every
        times_s, energies_j = self._judged(choices)
        late_s = np.maximum(0.0, times_s - deadline_s)
        costs_j = energies_j + FIRST_PRICE * time_price_w * late_s
        start = choices[int((costs_j + self._beyond_j(choices, FIRST_PRICE)).argmin())]
        found = _Best(deadline_s * (1 + RELATIVE_TIME_TOLERANCE))
        self._see(found, choices, times_s, energies_j)
        if self._every is not None:
            return None if found.choices is None else found.choices.tolist()
        draws = np.random.default_rng(_SEED)
        for share, hot in PHASES:
            phase = _Phase(
                deadline_s=deadline_s,
                time_price_w=time_price_w,
                hot_j=hot * self._cost_step_j,
                num_steps=round(share * self._num_steps),
            )
            ended = self._anneal(start, phase, found, draws)
            repaired = np.array([self.raised(ended.tolist(), deadline_s, MAX_REPAIRS)])
            self._see(found, repaired, *self._judged(repaired))
            if found.choices is not None:
                start = found.choices
        return None if found.choices is None else found.choices.tolist()

    def _anneal(
        self, choices: IndexArray, phase: _Phase, found: _Best, draws: np.random.Generator
    ) -> IndexArray:
        """Return the plan that a phase ends with; it may be late."""
        now_s = self._judged(choices[None])[0][0]
        for step in range(phase.num_steps):
            cancellation_point()
            hot_j, dear = phase.at(step)
            price_w = dear * phase.time_price_w
            changed = self._changed(choices, draws)
            times_s, energies_j = self._estimated(np.concatenate([choices[None], changed]))
            times_s += now_s - times_s[0]
            scores_j = phase.scores_j(times_s, energies_j, price_w)
            scores_j += self._beyond_j(np.concatenate([choices[None], changed]), dear)
            worse_j = scores_j[1:] - scores_j[0]
            allowed_j = hot_j * draws.exponential(size=len(worse_j))
            is_good = (worse_j < allowed_j) & (changed != choices).any(axis=1)
            order = np.argsort(worse_j - allowed_j)
            sets = self._sets(choices, changed[order[is_good[order]]])
            if not len(sets):
                continue
            times_s, energies_j = self._judged(sets)
            self._see(found, sets, times_s, energies_j)
            worth_j = CHANGE_WORTH * hot_j * np.arange(len(sets))
            scores_j = phase.scores_j(times_s, energies_j, price_w) - worth_j
            scores_j += self._beyond_j(sets, dear)
            best = int(scores_j.argmin())
            choices, now_s = sets[best], times_s[best]
        return choices

    def _see(
        self, found: _Best, choices: IndexArray, times_s: FloatArray, energies_j: FloatArray
    ) -> None:
        """Keep the best of these plans that is within the limits, if it is better."""
        if not self._is_free:
            times_s = times_s.copy()
            times_s[self.num_beyond(choices) > 0] = np.inf
        found.see(choices, times_s, energies_j)

    def _beyond_j(self, choices: IndexArray, dear: float) -> FloatArray | float:
        """Return the price of the changes beyond the limits, J; `dear`: as that of lateness."""
        if self._is_free:
            return 0.0
        beyond = self.num_beyond(choices).astype(np.float64)
        return beyond * (dear * SWITCH_STEPS * self._cost_step_j)

    def _estimated(self, choices: IndexArray) -> tuple[FloatArray, FloatArray]:
        """Return times in s and energies in J: where delays vary, with the likely worst of each."""
        run = self._batch.estimated(choices)
        return run.iteration_time_s, run.total_energy_j

    def _judged(self, choices: IndexArray) -> tuple[FloatArray, FloatArray]:
        """Return times in s that are never exceeded, and energies in J at the median delays."""
        run, latest_s = self._batch.judged(choices)
        return latest_s, run.total_energy_j

    def _changed(self, choices: IndexArray, draws: np.random.Generator) -> IndexArray:
        """Return random changes of a plan, each by itself; shape (num_changes, num_nodes)."""
        num, nodes = self._num_changes, np.arange(self._num_nodes)
        clocks = self._clock_of_choice[nodes, choices]
        kind, begin = draws.random(num), draws.integers(0, self._num_nodes, num)
        in_a_row = np.where(kind < ONE_SHARE, 1, draws.integers(2, MAX_IN_A_ROW + 1, num))
        is_stage = kind >= ONE_SHARE + SOME_SHARE
        first, end = self._first[begin], self._end[begin]
        begin = np.where(is_stage, first, begin)
        stop = np.where(is_stage, end, np.minimum(begin + in_a_row, end))
        # Beyond a stage's begin is its end: an iteration follows one of the same plan.
        left = np.where(begin > first, begin - 1, end - 1)
        right = np.where(stop < end, stop, first)
        neighbour = np.where(draws.random(num) < 0.5, left, right)
        most = np.where(draws.random(num) < SMALL_SHARE, SMALL_STEP, LARGE_STEP)
        step = draws.integers(1, most + 1) * draws.choice([-1, 1], num)
        takes = draws.random(num) < NEIGHBOUR_SHARE
        wanted = np.where(takes[:, None], clocks[neighbour][:, None], clocks + step[:, None])
        wanted = np.clip(wanted, 0, self._num_clocks - 1)
        is_in = (nodes >= begin[:, None]) & (nodes < stop[:, None])
        return np.where(is_in, self._choice_of_clock[nodes, wanted], choices)

    def _sets(self, choices: IndexArray, changed: IndexArray) -> IndexArray:
        """Return the plan with the first change, with the first two, ...; none overlap."""
        sets: list[IndexArray] = []
        is_changed = np.zeros(self._num_nodes, dtype=np.bool_)
        for assignment in changed:
            differs = assignment != choices
            if (is_changed & differs).any():
                continue
            is_changed |= differs
            sets.append(np.where(differs, assignment, sets[-1] if sets else choices))
            if len(sets) * CHANGES_PER_SET >= self._num_changes:
                break
        return np.array(sets)


@dataclass(frozen=True, kw_only=True)
class _Phase:
    """Temperature and price of lateness during an annealing of `num_steps` steps."""

    deadline_s: float
    time_price_w: float
    hot_j: float
    num_steps: int

    def at(self, step: int) -> tuple[float, float]:
        """Return a step's temperature, J, and its price of lateness in prices of time."""
        if not self.hot_j:
            return 0.0, FINAL_PRICE
        share = step / self.num_steps
        dear = FIRST_PRICE * (LAST_PRICE / FIRST_PRICE) ** share
        return self.hot_j * (1 - share) ** COOLING_POWER, dear

    def scores_j(self, times_s: FloatArray, energies_j: FloatArray, price_w: float) -> FloatArray:
        """Return plans' energies with the price of their lateness, J."""
        scores_j: FloatArray = energies_j + price_w * np.maximum(0.0, times_s - self.deadline_s)
        return scores_j


class _Best:
    """The plan of least energy that was seen to meet the deadline; `choices` is None until then."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._energy_j = np.inf
        self.choices: IndexArray | None = None

    def see(self, choices: IndexArray, times_s: FloatArray, energies_j: FloatArray) -> None:
        """Keep the best of these plans, if it is better."""
        # The time of a plan that is beyond its limits is infinite; so may be the deadline.
        is_found = (times_s <= self._deadline_s) & np.isfinite(times_s)
        energies_j = np.where(is_found, energies_j, np.inf)
        best = int(energies_j.argmin())
        if energies_j[best] < self._energy_j:
            self._energy_j, self.choices = float(energies_j[best]), choices[best]


def _choices(clock_of_choice: Sequence[int], num_clocks: int) -> list[int]:
    """Return per clock the choice with the lowest clock that is at least as high, or the first."""
    return [
        max(0, sum(of_choice <= clock for of_choice in clock_of_choice) - 1)
        for clock in range(num_clocks)
    ]


def _padded(rows: Sequence[Sequence[Any]], num_columns: int) -> NDArray[Any]:
    """Return rows of at most so many columns, their last entries repeated."""
    return np.array([[*row, *[row[-1]] * (num_columns - len(row))] for row in rows])

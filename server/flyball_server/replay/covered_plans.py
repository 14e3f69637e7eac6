"""Flyball's plans of a recorded workload, and the search among those that the fit carries.

The planner's own plan is free: it takes any clock that was measured. Where the fit does not carry
it (`coverage`), a plan within the fit is searched for. It starts from stages as they were
recorded: each stage takes its clocks of one of the runs, where that costs least in time; what one
run had together was seen together. Then single instructions change to the free plan's clock, the
largest gain first, as long as the iteration takes no longer and the fit carries it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.dag import DependencyDag
from flyball_server.planning.model.finish_times import earliest_finish_s, latest_finish_s
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.profiling.mixed_model import FloatArray
from flyball_server.replay.coverage import MAX_LEVERAGE, Coverage
from flyball_server.replay.runs_fit import PlanClocks, PlanPrediction, RunsFit
from flyball_wire.plan_options import Effort, PlanOptions

# Of a deadline: sums of the same times in another order differ by rounding.
_TOLERANCE = 1e-9
_ROUNDS = 3
# Recorded plans of least energy to start from.
_NUM_STARTS = 4
# The search keeps off the limit: the plan that it finds ends a little before the deadline.
_SEARCHED = 0.98


@dataclass(frozen=True, kw_only=True)
class JudgedPlan:
    """A plan, its prediction, and whether the fit carries it.

    Attributes:
        leverage: largest of its stages, in units of the largest fitted run's.
    """

    clocks: PlanClocks
    predicted: PlanPrediction
    leverage: float

    @property
    def is_covered(self) -> bool:
        """Return whether the fit carries it."""
        return self.leverage <= MAX_LEVERAGE


@dataclass(frozen=True, kw_only=True)
class CoveredPlanner:
    """Plans of a fitted workload.

    Attributes:
        cost_j: per stage, what an instruction at each point costs beyond waiting as long, J;
            shape (num_stages, num_points).
        time_s: per stage, of each point, s; same shape.
    """

    fit: RunsFit
    coverage: Coverage
    recorded: tuple[PlanClocks, ...]
    cost_j: FloatArray
    time_s: FloatArray

    @classmethod
    def of_fit(cls, fit: RunsFit) -> CoveredPlanner:
        """Return the planner of a fit."""
        time_s = np.array([curves.times.mean_s for curves in fit.curves])
        energy_j = np.array([energies.mean_j for energies in fit.energies])
        waiting_w = fit.workload.num_ranks * np.array(fit.blocking_power_w)
        return cls(
            fit=fit,
            coverage=Coverage.of_fit(fit),
            recorded=tuple(fit.workload.clocks_in(run.clocks_mhz) for run in fit.fitted),
            cost_j=energy_j - waiting_w[:, None] * time_s,
            time_s=time_s,
        )

    def judged(self, clocks: PlanClocks) -> JudgedPlan:
        """A plan with its prediction."""
        predicted = self.fit.predict(clocks)
        return JudgedPlan(
            clocks=clocks,
            predicted=predicted,
            leverage=self.coverage.largest(clocks, predicted.idle_s),
        )

    def free(self, iteration_time_s: float) -> JudgedPlan | None:
        """Return the plan of least energy within this time, of any measured clocks.

        Args:
            iteration_time_s: with the tail, s.

        Returns:
            None where no plan is as fast, or the fit's energies cannot be planned with.
        """
        deadline_s = iteration_time_s - self.fit.tail_s
        workload = self.fit.workload
        try:
            solved = make_plan(
                PlanRequest(
                    profile=self.fit.profile(),
                    num_microbatches=workload.recording.schedule.num_microbatches,
                    options=PlanOptions(
                        schedule=workload.recording.schedule.name,
                        target=f"deadline:{deadline_s * (1 + _TOLERANCE)!r}",
                        effort=Effort.LOW,
                        blocking_power_w=self.fit.blocking_power_w,
                    ),
                )
            )
        except PlanningError:
            return None
        clock_of = {mhz: place for place, mhz in enumerate(workload.points.clocks_mhz)}
        point = [
            kind * len(clock_of) + clock_of[points[choice].frequency_mhz]
            for kind, points, choice in zip(
                workload.kind.tolist(), solved.model.points, solved.assignment, strict=True
            )
        ]
        return self.judged(self._clocks(np.array(point, dtype=np.int64)))

    def within(self, iteration_time_s: float, free: JudgedPlan | None) -> JudgedPlan | None:
        """A plan within this time that the fit carries.

        Args:
            iteration_time_s: with the tail, s.
            free: the free plan of that time; itself where the fit carries it.

        Returns:
            None where no combination of recorded stages is as fast.
        """
        if free is not None and free.is_covered:
            return free
        deadline_s = (iteration_time_s - self.fit.tail_s) * (1 + _TOLERANCE)
        point = self._of_recorded_stages(deadline_s)
        if point is None:
            return None
        for _ in range(_ROUNDS):
            if free is None or not self._move_towards(free.clocks.point, point, deadline_s):
                break
        found = self.judged(self._clocks(point))
        return found if found.is_covered else None

    def _clocks(self, point: NDArray[np.int64]) -> PlanClocks:
        stage = self.recorded[0].stage
        counts = np.zeros_like(self.recorded[0].counts)
        np.add.at(counts, (stage, point), 1.0)
        return PlanClocks(stage=stage, point=point, counts=counts)

    def _longest_s(self, point: NDArray[np.int64]) -> float:
        durations_s = self.time_s[self.recorded[0].stage, point]
        return max(earliest_finish_s(self.fit.workload.dag, durations_s.tolist()))

    def _is_carried(self, stage: int, counts: FloatArray, deadline_s: float) -> bool:
        idle_s = deadline_s + self.fit.tail_s - float(counts @ self.time_s[stage])
        return self.coverage.leverage(stage, counts, idle_s) <= _SEARCHED * MAX_LEVERAGE

    def _of_recorded_stages(self, deadline_s: float) -> NDArray[np.int64] | None:
        """Each stage as in one of the runs, the least energy within the deadline found."""
        stages = range(len(self.time_s))
        carried = np.array(
            [
                [self._is_carried(stage, plan.counts[stage], deadline_s) for plan in self.recorded]
                for stage in stages
            ]
        )
        starts = [
            plan
            for run, plan in enumerate(self.recorded)
            if carried[:, run].all() and self._longest_s(plan.point) <= deadline_s
        ]
        starts.sort(key=lambda plan: self._energy_j(plan.point))
        found = [self._exchanged(plan, carried, deadline_s) for plan in starts[:_NUM_STARTS]]
        return min(found, key=self._energy_j, default=None)

    def _exchanged(
        self, start: PlanClocks, carried: NDArray[np.bool_], deadline_s: float
    ) -> NDArray[np.int64]:
        """Return a run's plan with stages exchanged for other runs' while that saves energy."""
        point, energy_j = start.point, self._energy_j(start.point)
        is_better = True
        while is_better:
            is_better = False
            for stage, run in np.argwhere(carried).tolist():
                tried = np.where(start.stage == stage, self.recorded[run].point, point)
                tried_j = self._busy_cost_j(tried)
                if tried_j >= self._busy_cost_j(point):
                    continue
                time_s = self._longest_s(tried)
                tried_j += self._waiting_w * time_s
                if time_s <= deadline_s and tried_j < energy_j * (1 - _TOLERANCE):
                    point, energy_j, is_better = tried, tried_j, True
        return point.copy()

    def _busy_cost_j(self, point: NDArray[np.int64]) -> float:
        return float(self.cost_j[self.recorded[0].stage, point].sum())

    def _energy_j(self, point: NDArray[np.int64]) -> float:
        """Energy of an iteration less what GPUs draw in its tail, J."""
        return self._busy_cost_j(point) + self._waiting_w * self._longest_s(point)

    @property
    def _waiting_w(self) -> float:
        return self.fit.workload.num_ranks * sum(self.fit.blocking_power_w)

    def _move_towards(
        self, wanted: NDArray[np.int64], point: NDArray[np.int64], deadline_s: float
    ) -> int:
        """Change instructions of `point` to the wanted ones; return how many were changed."""
        dag, stage_of = self.fit.workload.dag, self.recorded[0].stage
        gain_j = self.cost_j[stage_of, point] - self.cost_j[stage_of, wanted]
        counts = self._clocks(point).counts
        durations_s = self.time_s[stage_of, point].tolist()
        floats_s = _floats_s(dag, durations_s, deadline_s)
        num_changed = 0
        for node in np.argsort(-gain_j).tolist():
            if gain_j[node] <= 0:
                break
            stage = int(stage_of[node])
            longer_s = float(self.time_s[stage, wanted[node]]) - durations_s[node]
            if longer_s > floats_s[node]:
                continue
            tried = counts[stage].copy()
            tried[point[node]] -= 1
            tried[wanted[node]] += 1
            if not self._is_carried(stage, tried, deadline_s):
                continue
            counts[stage] = tried
            point[node] = wanted[node]
            durations_s[node] += longer_s
            floats_s = _floats_s(dag, durations_s, deadline_s)
            num_changed += 1
        return num_changed


def _floats_s(dag: DependencyDag, durations_s: Sequence[float], deadline_s: float) -> list[float]:
    finish_s = earliest_finish_s(dag, durations_s)
    latest_s = latest_finish_s(dag, durations_s, deadline_s)
    return [latest - finish for latest, finish in zip(latest_s, finish_s, strict=True)]


NUM_FRONTIER_PLANS = 8


def covered_frontier(
    planner: CoveredPlanner, report: Callable[[int], None] = lambda _: None
) -> list[JudgedPlan]:
    """Plans within the fit, from the fastest recorded plan's time to the slowest one's.

    Args:
        planner: of a fit.
        report: called with the number of plans made so far.
    """
    times_s = [planner.judged(plan).predicted.iteration_time_s for plan in planner.recorded]
    found: list[JudgedPlan] = []
    for number, time_s in enumerate(np.linspace(min(times_s), max(times_s), NUM_FRONTIER_PLANS)):
        plan = planner.within(float(time_s), planner.free(float(time_s)))
        if plan is not None:
            found.append(plan)
        report(number + 1)
    return found

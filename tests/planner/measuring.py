"""A planned job whose two ranks post what they measure, as clients of a live planner."""

from __future__ import annotations

import random
from collections.abc import Iterable

from tests.planner.live import LivePlanner
from tests.planner.patience import wait_until

from flyball_wire import routes
from flyball_wire.closed_loop import ComparisonStatus
from flyball_wire.codec import decode
from flyball_wire.rank_plan import RankPlan

REPORT = routes.fill(routes.REPORT, job_id="job")
COMPARISON = routes.fill(routes.COMPARISON, job_id="job")
BASELINE_J, PLAN_J, NOISE = 250.0, 225.0, 0.005
SM_CLOCK_MHZ = 1290.0


def put_enveloped_job(planner: LivePlanner) -> None:
    """A job of two ranks with plan version 1, by the policy that is quickest to plan."""
    planner.put_job(policy="envelope").raise_for_status()
    planner.put_profile().raise_for_status()
    planner.put_ranks()


class MeasuringRanks:
    """Two ranks that take 0.9 s a step, and 250 J each at the highest clocks, 225 J on the plan.

    Attributes:
        next_step: of both.
    """

    def __init__(self, planner: LivePlanner) -> None:
        self._http = planner.http
        self._planner = planner
        self._chance = random.Random(11)
        self._plan: RankPlan | None = None
        self._first_step = 0
        self.next_step = 0

    def take_newest_plan(self) -> int:
        """Both fetch the newest version, acknowledge it, and train until its first step."""
        path = routes.fill(routes.RANK_PLAN, job_id="job", rank=0)
        fields = self._http.get(path).json()
        version = fields["version"]
        for rank in (0, 1):
            answer = self._planner.acknowledge(rank, version, self.next_step)
        first_step = answer.json()["first_step"]
        self.measure(first_step - self.next_step)
        self._plan = decode(RankPlan, fields)
        self._first_step = first_step
        return int(version)

    def measure(self, num_steps: int, *, ranks: Iterable[int] = (0, 1)) -> None:
        """Train so many steps and post them."""
        numbers = range(self.next_step, self.next_step + num_steps)
        for rank in ranks:
            steps = [self._step(step) for step in numbers]
            path = routes.fill(routes.RANK_MEASUREMENTS, job_id="job", rank=rank)
            self._http.post(path, json={"steps": steps}).raise_for_status()
        self.next_step += num_steps

    def is_baseline(self, step: int) -> bool:
        """Return whether the version in force lets this step run at the highest clocks."""
        if self._plan is None:
            return True
        plan = self._plan
        if not plan.cycle:
            return False
        rows_mhz = [
            tuple(map(plan.sm_clocks_mhz.__getitem__, plan.cycle_row(number)))
            for number in plan.cycle
        ]
        row_mhz = rows_mhz[(step - self._first_step) % len(rows_mhz)]
        return row_mhz == tuple(map(max, *rows_mhz))

    def wait_for_version(self, version: int) -> None:
        """Until the planner has made it."""
        path = routes.fill(routes.JOB, job_id="job")
        wait_until(lambda: self._http.get(path).json()["newest_version"] == version)

    def wait_for_comparison(self, state: str) -> ComparisonStatus:
        """Until the comparison is in this state."""
        wait_until(lambda: self._http.get(COMPARISON).json()["state"] == state)
        return ComparisonStatus(**self._http.get(COMPARISON).json())

    def _step(self, step: int) -> dict[str, object]:
        energy_j = BASELINE_J if self.is_baseline(step) else PLAN_J
        return {
            "step": step,
            "plan_version": None if self._plan is None else self._plan.version,
            "time_s": 0.9 * (1 + self._chance.gauss(0, NOISE)),
            "energy_j": energy_j * (1 + self._chance.gauss(0, NOISE)),
            "sm_clock_mhz": SM_CLOCK_MHZ,
        }

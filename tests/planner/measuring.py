"""Ranks of a live planner's job that take its plans and post what they measure."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.planner.live import LivePlanner
from tests.planner.patience import wait_until
from tests.planner.samples import HEADER, planned_instructions
from tests.unit.replay.synthetic_runs import CLOCKS, Truth

from flyball_wire import routes
from flyball_wire.closed_loop import ComparisonStatus
from flyball_wire.codec import decode
from flyball_wire.plans.rank_plan import RankPlan

REPORT = routes.fill(routes.REPORT, job_id="job")
COMPARISON = routes.fill(routes.COMPARISON, job_id="job")
TARGET = routes.fill(routes.TARGET, job_id="job")
BASELINE_J, PLAN_J, NOISE = 250.0, 225.0, 0.005
SM_CLOCK_MHZ = 1290.0


def put_enveloped_job(planner: LivePlanner) -> None:
    """A job of two ranks with plan version 1, by the policy that is quickest to plan."""
    planner.put_job(policy="envelope").raise_for_status()
    planner.put_profile().raise_for_status()
    planner.put_ranks()


class PostingRanks(ABC):
    """Ranks that train together.

    Attributes:
        next_step: of all ranks.
    """

    def __init__(self, planner: LivePlanner, num_ranks: int) -> None:
        self._http = planner.http
        self._planner, self._num_ranks = planner, num_ranks
        self._plans: list[dict[str, Any]] = []
        self._first_step = 0
        self.next_step = 0

    def take_newest_plan(self) -> int:
        """All fetch the newest version, acknowledge it, and train until its first step."""
        plans = [
            self._http.get(routes.fill(routes.RANK_PLAN, job_id="job", rank=rank)).json()
            for rank in range(self._num_ranks)
        ]
        version = int(plans[0]["version"])
        for rank in range(self._num_ranks):
            answer = self._planner.acknowledge(rank, version, self.next_step)
        self._first_step = answer.json()["first_step"]
        self.measure(self._first_step - self.next_step)
        self._plans = plans
        return version

    @abstractmethod
    def measure(self, num_steps: int) -> None:
        """Train so many steps and post them."""

    @property
    def version(self) -> int | None:
        """Version of the plan in force; None: none."""
        return self._plans[0]["version"] if self._plans else None

    def _post(self, rank: int, steps: Sequence[Mapping[str, object]]) -> None:
        path = routes.fill(routes.RANK_MEASUREMENTS, job_id="job", rank=rank)
        self._http.post(path, json={"steps": steps}).raise_for_status()


class MeasuringRanks(PostingRanks):
    """Two ranks that take 0.9 s a step, and 250 J each at the highest clocks, 225 J on the plan."""

    def __init__(self, planner: LivePlanner) -> None:
        super().__init__(planner, 2)
        self._chance = random.Random(11)

    def measure(self, num_steps: int, *, ranks: Iterable[int] = (0, 1)) -> None:
        """Train so many steps and post those of some ranks."""
        for rank in ranks:
            numbers = range(self.next_step, self.next_step + num_steps)
            self._post(rank, [self._step(step) for step in numbers])
        self.next_step += num_steps

    def is_baseline(self, step: int) -> bool:
        """Return whether the version in force lets this step run at the highest clocks."""
        if not self._plans:
            return True
        plan = decode(RankPlan, self._plans[0])
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
            "plan_version": self.version,
            "time_s": 0.9 * (1 + self._chance.gauss(0, NOISE)),
            "energy_j": energy_j * (1 + self._chance.gauss(0, NOISE)),
            "sm_clock_mhz": SM_CLOCK_MHZ,
        }


class TruthfulRanks(PostingRanks):
    """One rank a stage; each step takes the truth's time and energy, with noise.

    The job's profile has the truth's times and energies that are far from it.
    """

    def __init__(
        self,
        planner: LivePlanner,
        truth: Truth,
        *,
        noise_percent: float = 0.0,
        reports_clocks: bool = False,
    ) -> None:
        super().__init__(planner, truth.num_stages)
        self.truth = truth
        self._noise = noise_percent / 100
        self._chance = random.Random(5)
        self._reports_clocks = reports_clocks

    def register(self, policy: str = "envelope") -> None:
        """Register the job, its profile and its ranks."""
        self._planner.put_job(
            num_stages=self.truth.num_stages,
            num_microbatches=self.truth.num_microbatches,
            policy=policy,
            effort="low",
        ).raise_for_status()
        self._planner.put_profile(self._profile()).raise_for_status()
        self._planner.put_ranks(self.truth.num_stages)

    def run(self, num_steps: int, **target: object) -> int:
        """Put a target, train until its version holds, and this number of steps on it.

        Returns:
            The version.
        """
        if target:
            self._http.put(TARGET, json=target).raise_for_status()
        version = self.take_newest_plan()
        self.measure(num_steps)
        return version

    @property
    def clocks_mhz(self) -> list[list[int]]:
        """By stage, the clocks of the plan in force; empty: none is."""
        return [[mhz for _, _, mhz, _ in planned_instructions(plan)] for plan in self._plans]

    def measure(self, num_steps: int, *, num_unplanned: int = 0) -> None:
        """Run and post so many steps on the version in force; default clocks: the highest."""
        clocks = self.clocks_mhz or self.truth.plan(lambda *_: CLOCKS[0])
        time_s, energies_j = self.truth.iteration(clocks)
        times_s = [time_s * self._noisy() for _ in range(num_steps)]
        for rank, energy_j in enumerate(energies_j):
            steps = [
                {
                    "step": self.next_step + place,
                    "plan_version": self.version,
                    "time_s": each_s,
                    "energy_j": energy_j * self._noisy(),
                    "num_unplanned": num_unplanned,
                    "by_clock": self._by_clock(rank, clocks[rank]),
                }
                for place, each_s in enumerate(times_s)
            ]
            self._post(rank, steps)
        self.next_step += num_steps

    def _noisy(self) -> float:
        return 1 + self._chance.gauss(0, self._noise)

    def _by_clock(self, stage: int, clocks_mhz: list[int]) -> list[list[object]] | None:
        if not self._reports_clocks:
            return None
        counts: dict[tuple[str, int], int] = defaultdict(int)
        for (kind, _), mhz in zip(self.truth.orders()[stage], clocks_mhz, strict=True):
            counts[kind, mhz] += 1
        return [
            [kind, 0, mhz, count, self.truth.time_s(stage, kind, mhz), 0.0]
            for (kind, mhz), count in counts.items()
        ]

    def _profile(self) -> str:
        """Return the truth's times beside energies that rise with the clock, but not as it does."""
        return HEADER + "".join(
            f"{stage},{kind},{mhz},{self.truth.time_s(stage, kind, mhz)},{mhz / 1400 * 40}\n"
            for stage in range(self.truth.num_stages)
            for kind in ("forward", "backward")
            for mhz in CLOCKS
        )

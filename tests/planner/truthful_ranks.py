"""A job of a live planner whose emulated ranks post what a pipeline of known truth takes."""

from __future__ import annotations

import random
from collections import defaultdict

from tests.planner.live import LivePlanner
from tests.planner.samples import HEADER, planned_instructions
from tests.unit.replay.synthetic_runs import CLOCKS, Truth

from flyball_wire import routes

TARGET = routes.fill(routes.TARGET, job_id="job")


class TruthfulRanks:
    """One rank a stage; each step takes the truth's time and energy, with noise.

    The job's profile has the truth's times and energies that are far from it.

    Attributes:
        next_step: of all ranks.
    """

    def __init__(
        self,
        planner: LivePlanner,
        truth: Truth,
        *,
        noise_percent: float = 0.0,
        reports_clocks: bool = False,
    ) -> None:
        self._planner, self.truth = planner, truth
        self._noise = noise_percent / 100
        self._chance = random.Random(5)
        self._reports_clocks = reports_clocks
        self._version = 0
        self.clocks_mhz: list[list[int]] = []
        self.next_step = 0

    def register(self, policy: str = "envelope") -> None:
        """Register the job, its profile and its ranks."""
        self._planner.put_job(
            num_stages=self.truth.num_stages,
            num_microbatches=self.truth.num_microbatches,
            policy=policy,
        ).raise_for_status()
        self._planner.put_profile(self._profile()).raise_for_status()
        self._planner.put_ranks(self.truth.num_stages)

    def run(self, num_steps: int, **target: object) -> int:
        """Put a target, train until its version holds, and this number of steps on it.

        Returns:
            The version.
        """
        if target:
            self._planner.http.put(TARGET, json=target).raise_for_status()
        plans = [
            self._planner.http.get(routes.fill(routes.RANK_PLAN, job_id="job", rank=stage)).json()
            for stage in range(self.truth.num_stages)
        ]
        version = plans[0]["version"]
        for rank in range(self.truth.num_stages):
            answer = self._planner.acknowledge(rank, version, self.next_step)
        self.measure(answer.json()["first_step"] - self.next_step)
        self._version = version
        self.clocks_mhz = [[mhz for _, _, mhz, _ in planned_instructions(plan)] for plan in plans]
        self.measure(num_steps)
        return int(version)

    def measure(self, num_steps: int, *, num_unplanned: int = 0) -> None:
        """Run and post so many steps on the version in force; default clocks: the highest."""
        clocks = self.clocks_mhz or self.truth.plan(lambda *_: CLOCKS[0])
        time_s, energies_j = self.truth.iteration(clocks)
        times_s = [time_s * self._noisy() for _ in range(num_steps)]
        for rank, energy_j in enumerate(energies_j):
            steps = [
                {
                    "step": self.next_step + place,
                    "plan_version": self._version or None,
                    "time_s": each_s,
                    "energy_j": energy_j * self._noisy(),
                    "num_unplanned": num_unplanned,
                    "by_clock": self._by_clock(rank, clocks[rank]),
                }
                for place, each_s in enumerate(times_s)
            ]
            path = routes.fill(routes.RANK_MEASUREMENTS, job_id="job", rank=rank)
            self._planner.http.post(path, json={"steps": steps}).raise_for_status()
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

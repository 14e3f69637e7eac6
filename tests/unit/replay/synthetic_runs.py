"""Recorded runs of a pipeline whose truth is known: made by a simulator of their own."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from flyball_server.replay.recorded_runs import Recording
from flyball_wire.codec import decode

CLOCKS = (1400, 1300, 1200, 1100, 1000)
NUM_STAGES, NUM_MICROBATCHES = 3, 8

Document = dict[str, Any]


def one_f_one_b(stage: int, num_stages: int, num_microbatches: int) -> list[tuple[str, int]]:
    """One stage's order, from its definition."""
    warmup = min(num_stages - 1 - stage, num_microbatches)
    order = [("forward", microbatch) for microbatch in range(warmup)]
    for microbatch in range(num_microbatches):
        if warmup + microbatch < num_microbatches:
            order.append(("forward", warmup + microbatch))
        order.append(("backward", microbatch))
    return order


@dataclass(frozen=True, kw_only=True)
class Truth:
    """A pipeline.

    Attributes:
        limit_mhz: above it a GPU runs no faster, and draws no more.
        tail_s: of each iteration, s.
        waiting_w: of a GPU that waits.
    """

    num_stages: int = NUM_STAGES
    num_microbatches: int = NUM_MICROBATCHES
    limit_mhz: int = 10_000
    tail_s: float = 0.4
    waiting_w: float = 80.0

    def time_s(self, stage: int, kind: str, mhz: int) -> float:
        """Half of it takes as long at every clock."""
        work_s = (0.1 if kind == "forward" else 0.2) * (1 + 0.1 * stage)
        return work_s * (0.5 + 0.5 * 1400 / min(mhz, self.limit_mhz))

    def energy_j(self, stage: int, kind: str, mhz: int) -> float:
        """Power rises with the square of the clock."""
        power_w = 100 + 150 * (min(mhz, self.limit_mhz) / 1400) ** 2
        return power_w * self.time_s(stage, kind, mhz)

    def orders(self) -> list[list[tuple[str, int]]]:
        """All stages' orders."""
        return [
            one_f_one_b(stage, self.num_stages, self.num_microbatches)
            for stage in range(self.num_stages)
        ]

    def iteration(self, clocks_mhz: Sequence[Sequence[int]]) -> tuple[float, list[float]]:
        """Return its time, s, and the stages' energies, J."""
        orders = self.orders()
        at = {
            (stage, *one): place
            for stage, order in enumerate(orders)
            for place, one in enumerate(order)
        }

        @cache
        def end_s(stage: int, place: int) -> float:
            kind, microbatch = orders[stage][place]
            before = [0.0 if place == 0 else end_s(stage, place - 1)]
            source = (stage - 1, "forward") if kind == "forward" else (stage + 1, "backward")
            if source == (self.num_stages, "backward"):
                source = (stage, "forward")
            if source[0] >= 0:
                before.append(end_s(source[0], at[*source, microbatch]))
            return max(before) + self.time_s(stage, kind, clocks_mhz[stage][place])

        last = 2 * self.num_microbatches - 1
        time_s = max(end_s(stage, last) for stage in range(self.num_stages)) + self.tail_s
        energies = []
        for stage, order in enumerate(orders):
            ran = [(kind, mhz) for (kind, _), mhz in zip(order, clocks_mhz[stage], strict=True)]
            busy_s = sum(self.time_s(stage, *one) for one in ran)
            busy_j = sum(self.energy_j(stage, *one) for one in ran)
            energies.append(busy_j + self.waiting_w * (time_s - busy_s))
        return time_s, energies

    def run(
        self,
        name: str,
        clocks_mhz: Sequence[Sequence[int]],
        noise: Callable[[], float] = lambda: 1.0,
        num_iterations: int = 4,
    ) -> Document:
        """One run, each iteration's time and each energy times `noise()`."""
        time_s, energies = self.iteration(clocks_mhz)
        counts: dict[tuple[int, str, int], int] = {}
        for stage, order in enumerate(self.orders()):
            for (kind, _), mhz in zip(order, clocks_mhz[stage], strict=True):
                counts[stage, kind, mhz] = counts.get((stage, kind, mhz), 0) + 1
        return {
            "name": name,
            "clocks_mhz": [list(of_stage) for of_stage in clocks_mhz],
            "iteration_time_s": [time_s * noise() for _ in range(num_iterations)],
            "energy_j_per_stage": [energy_j * noise() for energy_j in energies],
            "instruction_times": [
                {
                    "stage": stage,
                    "instruction": kind,
                    "frequency_mhz": mhz,
                    "time_s_median": self.time_s(stage, kind, mhz),
                    "samples": count * num_iterations,
                }
                for (stage, kind, mhz), count in sorted(counts.items())
            ],
        }

    def plan(self, clock_of: Callable[[int, str, int], int]) -> list[list[int]]:
        """The clocks that `clock_of(stage, kind, microbatch)` gives."""
        return [
            [clock_of(stage, *one) for one in order] for stage, order in enumerate(self.orders())
        ]

    def document(self, runs: Sequence[Document]) -> Document:
        """These runs as a file."""
        return {
            "model": "synthetic",
            "partition": "even",
            "gpu": "none",
            "dp": 1,
            "pp": self.num_stages,
            "tp": 1,
            "microbatch_size": 1,
            "num_microbatches": self.num_microbatches,
            "schedule": "1f1b",
            "runs": list(runs),
        }


def plans_of(truth: Truth, count: int, seed: int = 0) -> list[list[list[int]]]:
    """Return the highest clocks, then plans in which each stage has a clock for either kind."""
    chance = random.Random(seed)
    plans = [truth.plan(lambda *_: CLOCKS[0])]
    for _ in range(count - 1):
        clocks = {
            (stage, kind): (chance.choice(CLOCKS), chance.choice(CLOCKS))
            for stage in range(truth.num_stages)
            for kind in ("forward", "backward")
        }
        plans.append(
            [
                [clocks[stage, kind][microbatch % 2] for kind, microbatch in order]
                for stage, order in enumerate(truth.orders())
            ]
        )
    return plans


def synthetic_document(
    truth: Truth | None = None, *, count: int = 16, noise_percent: float = 0.0, seed: int = 0
) -> Document:
    """Runs under random plans."""
    truth = truth or Truth()
    chance = random.Random(seed + 1)
    return truth.document(
        [
            truth.run(
                "baseline" if place == 0 else f"plan-{place}",
                plan,
                lambda: 1 + chance.gauss(0, noise_percent / 100),
            )
            for place, plan in enumerate(plans_of(truth, count, seed))
        ]
    )


def recording_of(document: Document) -> Recording:
    """Return the recording that a document holds."""
    return decode(Recording, document)

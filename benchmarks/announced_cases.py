"""Trainings of `announced_steps.py`: their ranks, the lengths of their sequences, their profile."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from flyball_client.session.rank_session import RankSession
from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.work import WorkCoefficients, step_work
from flyball_profiles.stage_profile import OperatingPoint, StageProfile

SEED = 1788
NUM_STEPS, NUM_PAIRS = 8, 10
WAYS = ("announced", "highest")
BLOCKING_POWER_W = 80.0
HIGHEST_MHZ = 1410
# Of an instruction's time on the profile's batch: constant, per token, per squared token.
TRUE = WorkCoefficients(0.15, 1.2e-4, 2.2e-8)
MEAN_TOKENS, NUM_SEQUENCES = 420, 8
# Share of an instruction's time that shrinks as the clock rises.
SCALING = 0.9


def points(shortest_s: float, num_gpus: int) -> tuple[OperatingPoint, ...]:
    """Return points of GPUs that draw 80 + 220 f^3 W at the share f of their highest clock.

    Args:
        shortest_s: time at the highest clock, s.
        num_gpus: number of GPUs whose energy a point has.
    """
    found: list[OperatingPoint] = []
    for mhz in range(HIGHEST_MHZ, 800, -45):
        share = mhz / HIGHEST_MHZ
        time_s = shortest_s * (1 - SCALING + SCALING / share)
        energy_j = num_gpus * time_s * (80 + 220 * share**3)
        found.append(OperatingPoint(frequency_mhz=mhz, time_s=time_s, energy_j=energy_j))
    return tuple(found)


def sequence_lengths(draw: random.Random) -> list[int]:
    """Return the lengths of a microbatch's sequences: log-normal, a heavy tail."""
    return [
        min(4096, 1 + int(draw.lognormvariate(math.log(MEAN_TOKENS), 0.9)))
        for _ in range(NUM_SEQUENCES)
    ]


def num_planned(session: RankSession) -> float:
    """Return the number of steps so far that had plans of their own."""
    return session.metrics(prefix="")["total_num_steps_with_own_plan"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training whose steps differ.

    Attributes:
        text: framework and ranks.
        num_pipelines: data-parallel ranks, of `num_stages` each.
        num_microbatches: of a step.
        shortest_s: time of each kind of instruction at the highest clock, at factor 1, s.
        meets_often: True: ranks of a stage meet in each instruction; False: at the step's end.
    """

    text: str
    num_pipelines: int
    num_stages: int = 1
    num_microbatches: int = 1
    shortest_s: dict[InstructionKind, float]
    meets_often: bool = False

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return self.num_pipelines * self.num_stages

    def profile(self) -> StageProfile:
        """Return the profile that the GPUs emulate, and that the planner is given."""
        return StageProfile(
            points={
                (stage, kind): points(time_s, self.num_pipelines)
                for stage in range(self.num_stages)
                for kind, time_s in self.shortest_s.items()
            },
            num_ranks_per_stage=(self.num_pipelines,) * self.num_stages,
        )

    def lengths(self, step: int, pipeline: int) -> list[list[int]]:
        """Return by microbatch the lengths of a step's sequences."""
        draw = random.Random(f"{SEED} {step} {pipeline}")
        return [sequence_lengths(draw) for _ in range(self.num_microbatches)]

    def factor(self, step: int, pipeline: int, microbatch: int) -> float:
        """Return the time of a microbatch's instructions over that in the profile."""
        return TRUE.factor(step_work(self.lengths(step, pipeline))[microbatch])


_KINDS = {InstructionKind.FORWARD: 0.045, InstructionKind.BACKWARD: 0.09}
CASES = {
    "ddp": Case(
        text="DDP, 4 ranks",
        num_pipelines=4,
        shortest_s={InstructionKind.STEP: 0.3},
    ),
    "fsdp2": Case(
        text="FSDP2, 4 ranks, 4 microbatches",
        num_pipelines=4,
        num_microbatches=4,
        shortest_s=_KINDS,
        meets_often=True,
    ),
    "deepspeed": Case(
        text="DeepSpeed, 2 stages x 2 pipelines, 4 microbatches",
        num_pipelines=2,
        num_stages=2,
        num_microbatches=4,
        shortest_s=_KINDS,
    ),
}

"""Step plans made of predicted work: errors of prediction, and the reserve that they need."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flyball_pipeline.retiming import NO_RESERVE, StepReserve, own_times, retime
from flyball_server.replay.steps.judged_steps import AT_ONCE, JudgedBy, JudgedStep, judged_at_once
from flyball_server.replay.steps.step_models import PipelineStep, Steps

# By which share of time steps may be longer on average, on the steps that the reserve is chosen on.
LONGER = 0.001
# Of predictions that the reserve is tried on, and halvings of its interval.
_NUM_DRAWS, _NUM_HALVINGS = 3, 6
# A prediction that is this share of the truth or less is no prediction.
_LEAST = 0.1


@dataclass(frozen=True, kw_only=True)
class PredictionError:
    """Errors of predicted times: normal, with one deviation."""

    #: Standard deviation as a share of the time.
    deviation: float
    #: True: one error for all instructions of a microbatch in a pipeline; false: one for each.
    is_shared: bool = False

    def predicted(self, pipeline: PipelineStep, rng: random.Random) -> tuple[float, ...]:
        """Return predicted factors of a pipeline's step, by node."""
        if not self.deviation:
            return pipeline.factors
        of_microbatch: dict[int, float] = {}
        predicted: list[float] = []
        for factor, instruction in zip(
            pipeline.factors, pipeline.model.dag.instruction, strict=True
        ):
            microbatch = instruction.microbatch
            error = of_microbatch.get(microbatch) if self.is_shared else None
            if error is None:
                error = of_microbatch[microbatch] = self.deviation * rng.gauss(0, 1)
            predicted.append(factor * max(_LEAST, 1 + error))
        return tuple(predicted)


EXACT = PredictionError(deviation=0.0)


def planned_steps(
    steps: Sequence[Sequence[PipelineStep]],
    error: PredictionError,
    reserves: Sequence[StepReserve],
    seed: int,
) -> Iterator[list[tuple[int, ...]]]:
    """Yield the clocks of each step by pipeline and node, MHz, made of predicted work.

    Args:
        steps: the steps, one after the other.
        error: errors of prediction.
        reserves: reserve of each step.
        seed: of the errors.
    """
    rng = random.Random(seed)
    in_force: dict[int, list[int]] = {}
    for pipelines, reserve in zip(steps, reserves, strict=True):
        factors = [error.predicted(pipeline, rng) for pipeline in pipelines]
        slowest_s = max(
            own_times(pipeline.model.retimed, of_pipeline)[0]
            for pipeline, of_pipeline in zip(pipelines, factors, strict=True)
        )
        planned: list[tuple[int, ...]] = []
        for pipeline, of_pipeline in zip(pipelines, factors, strict=True):
            clocks = retime(
                pipeline.model.retimed,
                of_pipeline,
                [slowest_s],
                in_force_mhz=in_force.get(pipeline.dp_rank, ()),
                gap_s=pipeline.model.gap_s,
                reserve=reserve,
            )
            last = pipeline.model.dag.last_of_stages
            in_force[pipeline.dp_rank] = [clocks[node] for node in last]
            planned.append(clocks)
        yield planned


def chosen_reserves(
    steps: Steps, error: PredictionError, seed: int, world: JudgedBy = AT_ONCE
) -> tuple[StepReserve, ...]:
    """Return a reserve for each step, chosen on others: the least that keeps `LONGER`.

    Of a reserve of the step and one of each instruction the one that saves more counts. Every
    second step has the reserve that the others need, with other errors; a single step has its own.

    Args:
        steps: the steps.
        error: errors of prediction.
        seed: of the errors and delays that the reserve is tried on.
        world: times of clock changes that it is tried with.
    """
    if not error.deviation:
        return (NO_RESERVE,) * len(steps)
    halves = (steps[::2], steps[1::2] or steps)
    of_halves = [_Reserves(half, error, seed, world).best() for half in halves]
    return tuple(of_halves[1 - number % 2] for number in range(len(steps)))


class _Reserves:
    """Reserves that are tried on some steps.

    Args:
        steps: the steps.
        error: errors of prediction.
        seed: of the errors and delays.
        world: times of clock changes.
    """

    def __init__(
        self,
        steps: Sequence[Sequence[PipelineStep]],
        error: PredictionError,
        seed: int,
        world: JudgedBy,
    ) -> None:
        self._steps, self._error, self._seed, self._world = steps, error, seed, world

    def best(self) -> StepReserve:
        """Return the reserve of least energy that keeps `LONGER`."""
        highest_s = sum(
            judged_at_once(step, [pipeline.model.highest_mhz for pipeline in step]).time_s
            for step in self._steps
        )
        # What late changes cost without errors is no matter of the reserve.
        exact_s = self._tried(NO_RESERVE, EXACT).time_s
        most_s = (1 + LONGER) * max(highest_s, exact_s)
        found: list[tuple[bool, float, StepReserve]] = []
        for kind in StepReserve._fields:
            low, high = 0.0, 4 * self._error.deviation
            best = self._tried(StepReserve(**{kind: high}), self._error)
            for _ in range(_NUM_HALVINGS):
                middle = (low + high) / 2
                tried = self._tried(StepReserve(**{kind: middle}), self._error)
                if tried.time_s <= most_s:
                    high, best = middle, tried
                else:
                    low = middle
            found.append((best.time_s > most_s, best.energy_j, StepReserve(**{kind: high})))
        return min(found)[-1]

    def _tried(self, reserve: StepReserve, error: PredictionError) -> JudgedStep:
        """Return mean time and energy of all steps planned so, over the draws."""
        judged = [
            step
            for seed in range(self._seed, self._seed + _NUM_DRAWS)
            for step in self._world.judged(
                self._steps,
                planned_steps(self._steps, error, [reserve] * len(self._steps), seed),
                seed,
            )
        ]
        return JudgedStep(*(sum(values) / _NUM_DRAWS for values in zip(*judged, strict=True)))

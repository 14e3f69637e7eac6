"""Online profiling of steps whose work is announced: instructions as so many of the mean work."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

import pytest

from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.work import StepWork, WorkCoefficients, step_work
from flyball_server.profiling.observations import InstructionTimes
from flyball_server.profiling.work_fit import FEWEST_MICROBATCHES
from flyball_server.profiling.worked_steps import WorkedRank, averaged, mean_work

TRUE = {
    InstructionKind.FORWARD: WorkCoefficients(0.01, 2e-5, 0.0),
    InstructionKind.BACKWARD: WorkCoefficients(0.0, 1e-5, 5e-9),
}
"""Time at 1400 MHz in s; inversely proportional to the clock."""


def ran(work: StepWork, **clocks_mhz: int) -> WorkedRank:
    """A rank of stage 0 in a step, `forward` and `backward` at these clocks."""
    instructions = tuple(
        InstructionTimes(
            kind=kind,
            chunk=0,
            sm_clock_mhz=mhz,
            count=len(work),
            mean_s=1400 / mhz * fmean(map(true.factor, work)),
            variance_s2=1.0,
        )
        for kind, true in TRUE.items()
        for mhz in [clocks_mhz.get(str(kind), 1400)]
    )
    return WorkedRank(stage=0, work=work, instructions=instructions)


def drawn(chance: random.Random) -> StepWork:
    """Four microbatches of one sequence each."""
    return step_work([[chance.lognormvariate(8, 0.4)] for _ in range(4)])


def test_instructions_count_as_their_work_is_over_the_mean() -> None:
    """So their time is that of the mean work, whatever clock they run at."""
    chance = random.Random(1)
    highest = [ran(drawn(chance)) for _ in range(30)]
    found = mean_work(highest, {0: 1400})
    assert found is not None
    assert found.error < 1e-6
    means_s = {
        kind: fmean(fmean(map(true.factor, rank.work)) for rank in highest)
        for kind, true in TRUE.items()
    }
    for rank in (*highest[:3], ran(drawn(chance), forward=1200, backward=900)):
        counted = found.counted(rank)
        assert counted is not None
        for raw, each in zip(rank.instructions, counted, strict=True):
            assert each.sm_clock_mhz is not None
            assert each.mean_s == pytest.approx(1400 / each.sm_clock_mhz * means_s[each.kind])
            # No time is lost: the step is as busy as it was.
            assert each.count * each.mean_s == pytest.approx(raw.count * raw.mean_s)
            # The scatter of the work is no error of the times.
            assert each.variance_s2 < 1e-9


def test_given_factors_are_taken_as_they_are() -> None:
    chance = random.Random(2)
    works = [step_work([chance.uniform(0.5, 2) for _ in range(4)]) for _ in range(20)]
    ranks = [
        WorkedRank(
            stage=0,
            work=work,
            instructions=tuple(
                replace(each, mean_s=0.1 * fmean(factor for (factor,) in work))
                for each in ran(work).instructions
            ),
        )
        for work in works
    ]
    found = mean_work(ranks, {0: 1400})
    assert found is not None
    for rank in ranks:
        counted = found.counted(rank)
        assert counted is not None
        assert [each.mean_s for each in counted] == pytest.approx([0.1, 0.1])


def test_too_few_steps_at_the_highest_clocks_say_nothing() -> None:
    chance = random.Random(3)
    highest = [ran(drawn(chance)) for _ in range(FEWEST_MICROBATCHES)]
    assert mean_work(highest, {0: 1400}) is not None
    assert mean_work(highest[1:], {0: 1400}) is None
    slow = [ran(drawn(chance), forward=1200, backward=1200) for _ in range(30)]
    assert mean_work([*highest[1:], *slow], {0: 1400}) is None
    # Nor do they of work that is given otherwise.
    factors = mean_work([ran(drawn(chance)) for _ in range(20)], {0: 1400})
    assert factors is not None
    other_stage = replace(highest[0], stage=1)
    assert factors.counted(other_stage) is None


def test_a_stage_is_the_mean_of_its_pipelines_ranks() -> None:
    """By hand: 4 of 0.1 s and 6 of 0.2 s are 5 of 0.16 s; 2 of another clock, and none, 1."""
    times = InstructionTimes(
        kind=InstructionKind.FORWARD,
        chunk=0,
        sm_clock_mhz=1400,
        count=4.0,
        mean_s=0.1,
        variance_s2=0.5,
    )
    other = replace(times, sm_clock_mhz=1200, count=2.0, mean_s=0.3)
    found = averaged([(times, other), (replace(times, count=6.0, mean_s=0.2, variance_s2=1.0),)])
    assert [each.sm_clock_mhz for each in found] == [1400, 1200]
    assert [each.count for each in found] == [5.0, 1.0]
    assert [each.mean_s for each in found] == pytest.approx([0.16, 0.3])
    assert found[0].variance_s2 == pytest.approx(0.8)

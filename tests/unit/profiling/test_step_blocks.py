import numpy as np
import pytest

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.profiling.energy_regression import StepBlocks, StepNoise, step_noise
from flyball_server.profiling.observations import InstructionClass, InstructionTimes, StageStep
from flyball_server.profiling.stage_points import StagePoints, StepTable

POINTS = StagePoints(classes=(InstructionClass(InstructionKind.FORWARD),), clocks_mhz=(1410, 1200))


def table_of(steps: list[tuple[int, int, float | None]]) -> StepTable:
    """Of (step, instructions at 1200 MHz, energy in J); four instructions each."""
    return StepTable.of_steps(
        POINTS,
        [
            StageStep(
                stage=0,
                step=step,
                version=1,
                iteration_time_s=5.0,
                energy_j=energy_j,
                instructions=tuple(
                    InstructionTimes(
                        kind=InstructionKind.FORWARD,
                        chunk=0,
                        sm_clock_mhz=mhz,
                        count=count,
                        mean_s=1.0,
                        variance_s2=0.0,
                    )
                    for mhz, count in ((1410, 4 - num_slow), (1200, num_slow))
                    if count
                ),
            )
            for step, num_slow, energy_j in steps
        ],
    )


def test_neighbours_at_the_same_clocks_are_one_block() -> None:
    blocks = StepBlocks.of_table(
        table_of([(3, 0, 10.0), (4, 0, 11.0), (5, 2, 9.0), (6, 2, 8.0), (8, 2, 7.0)])
    )
    assert blocks.num_steps.tolist() == [2, 2, 1]
    assert blocks.energy_j.tolist() == [21, 17, 7]
    assert blocks.counts.tolist() == [[8, 0], [4, 4], [2, 2]]
    assert blocks.idle_s.tolist() == [2, 2, 1]
    # Between steps 6 and 8 a reading is missing.
    assert blocks.follows.tolist() == [True, False]


def test_a_step_without_energy_is_in_no_block() -> None:
    blocks = StepBlocks.of_table(table_of([(0, 0, 10.0), (1, 0, None), (2, 0, 12.0)]))
    assert blocks.energy_j.tolist() == [10, 12]
    assert blocks.follows.tolist() == [False]


def test_a_shared_reading_enters_two_blocks_with_opposite_signs() -> None:
    blocks = StepBlocks.of_table(table_of([(0, 0, 1.0), (1, 1, 1.0), (3, 0, 1.0)]))
    assert blocks.lateness_covariance().tolist() == [[2, -1, 0], [-1, 2, 0], [0, 0, 2]]


def test_scatter_and_lateness_are_told_apart() -> None:
    random = np.random.default_rng(5)
    late = 6 * random.standard_normal(401)
    energies = 1000 + 2 * random.standard_normal(400) + np.diff(late)
    table = table_of([(step, 0, float(energy)) for step, energy in enumerate(energies)])
    found = step_noise(table, 0.0, StepNoise(scatter=10.0, lateness=1.0))
    assert found.lateness == pytest.approx(6, rel=0.1)
    assert found.scatter == pytest.approx(2, rel=0.3)


def test_before_steps_are_seen_the_noise_is_as_expected() -> None:
    expected = StepNoise(scatter=10.0, lateness=3.0)
    found = step_noise(table_of([(0, 0, 5.0)]), 0.0, expected)
    assert found.scatter == pytest.approx(10)
    assert found.lateness == pytest.approx(3)

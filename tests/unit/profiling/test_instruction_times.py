import numpy as np
import pytest

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.profiling.instruction_times import StageTimes, estimate_times
from flyball_server.profiling.observations import InstructionClass, InstructionTimes, StageStep
from flyball_server.profiling.stage_points import StagePoints, StepTable

F, B = InstructionKind.FORWARD, InstructionKind.BACKWARD
CLOCKS = tuple(range(1400, 800, -50))
POINTS = StagePoints(classes=(InstructionClass(F), InstructionClass(B)), clocks_mhz=CLOCKS)


def true_s(kind: InstructionKind, mhz: int) -> float:
    return {F: 0.02 + 50 / mhz, B: 0.05 + 100 / mhz}[kind]


def estimated(
    probed: dict[int, int], *, noise: float = 0.02, step_noise: float = 0.0, num_steps: int = 20
) -> StageTimes:
    """From steps with so many instructions of each kind at each of these clocks."""
    random, of_steps = np.random.default_rng(8), np.random.default_rng(9)
    steps = []
    for step in range(num_steps):
        of_step = 1 + step_noise * of_steps.standard_normal()
        rows = []
        for kind in (F, B):
            for mhz, count in probed.items():
                times_s = true_s(kind, mhz) * of_step * (1 + noise * random.standard_normal(count))
                rows.append(
                    InstructionTimes(
                        kind=kind,
                        chunk=0,
                        sm_clock_mhz=mhz,
                        count=count,
                        mean_s=float(times_s.mean()),
                        variance_s2=float(times_s.var(ddof=1)),
                    )
                )
        steps.append(
            StageStep(
                stage=0,
                step=step,
                version=1,
                iteration_time_s=9.0,
                energy_j=None,
                instructions=tuple(rows),
            )
        )
    return estimate_times(POINTS, StepTable.of_steps(POINTS, steps))


def test_the_standard_error_is_the_scatter_over_the_root_of_the_probes() -> None:
    times = estimated({1400: 5, 1100: 5, 850: 5})
    assert times.scatter == pytest.approx([0.02, 0.02], rel=0.2)
    share = times.error_s / times.mean_s
    assert share[0] == pytest.approx(0.02 / np.sqrt(100), rel=0.3)
    assert times.num_probes[0] == 100


def test_between_probes_times_are_interpolated_within_their_error() -> None:
    times = estimated({1400: 5, 1250: 5, 1100: 5, 950: 5, 850: 5})
    true = np.array([true_s(kind, mhz) for kind in (F, B) for mhz in CLOCKS])
    assert (np.abs(times.mean_s - true) < 4 * times.error_s).all()
    assert (times.error_s / times.mean_s).max() < 0.02
    is_probed = times.num_probes > 0
    assert times.error_s[is_probed].max() < times.error_s[~is_probed].max()


def test_far_from_all_probes_the_error_is_large() -> None:
    times = estimated({1400: 5, 1350: 5})
    share = times.error_s / times.mean_s
    assert share[len(CLOCKS) - 1] > 0.1


def test_where_whole_steps_scatter_more_instructions_of_a_step_tell_no_more() -> None:
    few = estimated({1400: 4, 850: 4}, noise=0.001, step_noise=0.03)
    many = estimated({1400: 64, 850: 64}, noise=0.001, step_noise=0.03)
    assert many.error_s[0] == pytest.approx(few.error_s[0], rel=0.1)
    assert few.error_s[0] / few.mean_s[0] == pytest.approx(0.03 / np.sqrt(20), rel=0.3)

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from statistics import fmean

import pytest
from tests.unit.client.profiled_gpu import ScriptedGpu
from tests.unit.client.recording_gpu import RecordingGpu

from flyball_client.gpu._base import ClockLimit, GpuAddress, GpuError
from flyball_client.profiling.points_file import point_of
from flyball_client.profiling.repetition import MeasuringRule, Repetition
from flyball_profiles.stage_profile import InstructionKind

POWER_W = 200.0
Law = Callable[[int, float], float]


def repetition(gpu: ScriptedGpu) -> Repetition:
    return Repetition(gpu, gpu.run_once, now_s=gpu.now_s, renew_clock=lambda: None)


def steady(time_s: float, **options: float) -> ScriptedGpu:
    return ScriptedGpu(lambda mhz, now_s: time_s, lambda mhz, now_s: POWER_W, **options)


@pytest.mark.parametrize("time_s", [0.0031, 0.1, 0.101, 0.73])
def test_time_and_energy_are_found_as_well_as_wanted(time_s: float) -> None:
    found = repetition(steady(time_s)).measure(MeasuringRule(max_point_s=200.0))
    assert found.time_s == pytest.approx(time_s, rel=1e-9)
    assert found.relative_error <= 0.005
    # Three standard errors.
    assert found.energy_j == pytest.approx(POWER_W * time_s, rel=0.015)
    assert found.power_w == pytest.approx(POWER_W, rel=0.015)


def test_a_point_takes_no_longer_than_allowed() -> None:
    gpu = steady(0.03)
    rule = MeasuringRule(wanted_error=1e-6, max_point_s=7.0)
    found = repetition(gpu).measure(rule)
    assert 7.0 <= gpu.moment_s - 50.0 < 7.5
    assert found.relative_error > 1e-6


def test_the_errors_are_those_that_repeating_the_measurement_shows() -> None:
    deviations: list[float] = []
    jitters: list[float] = []
    for seed in range(25):
        noise = random.Random(seed)
        gpu = ScriptedGpu(
            lambda mhz, now_s, noise=noise: 0.03 * noise.gauss(1.0, 0.01),  # type: ignore[misc]
            lambda mhz, now_s, noise=noise: POWER_W * noise.gauss(1.0, 0.03),  # type: ignore[misc]
        )
        gpu.moment_s += noise.random()
        found = repetition(gpu).measure(MeasuringRule())
        deviations.append((found.energy_j - 0.03 * POWER_W) / found.energy_error_j)
        jitters.append(found.time_error_s * math.sqrt(found.num_repetitions) / found.time_s)
    assert 0.5 < math.sqrt(fmean(each**2 for each in deviations)) < 1.5
    # As a profile is read: the scatter of single runs, from that of the blocks' means.
    assert math.sqrt(fmean(each**2 for each in jitters)) == pytest.approx(0.01, rel=0.15)


@pytest.mark.parametrize(
    ("time_s", "power_w"),
    [
        # From 20 ms it slows down to 30 ms within about 12 s, as a GPU that warms up.
        (lambda mhz, now_s: 0.03 - 0.01 * math.exp(-(now_s - 50) / 3), lambda mhz, now_s: POWER_W),
        (lambda mhz, now_s: 0.03, lambda mhz, now_s: POWER_W * (1 + math.exp(-(now_s - 50) / 2))),
    ],
    ids=["time", "power"],
)
def test_measuring_waits_until_time_and_power_stop_drifting(time_s: Law, power_w: Law) -> None:
    running = repetition(ScriptedGpu(time_s, power_w))
    assert running.settle(MeasuringRule())
    found = running.measure(MeasuringRule())
    assert found.time_s == pytest.approx(0.03, rel=0.02)
    assert found.power_w == pytest.approx(POWER_W, rel=0.03)


def test_what_never_settles_is_measured_after_a_while_and_said_to_drift() -> None:
    gpu = ScriptedGpu(lambda mhz, now_s: 0.01 * 1.1 ** (now_s - 50.0), lambda mhz, now_s: POWER_W)
    assert not repetition(gpu).settle(MeasuringRule(max_settle_s=6.0))
    assert gpu.moment_s - 50.0 < 10.0


def test_a_first_run_that_is_slow_belongs_to_no_window() -> None:
    gpu = ScriptedGpu(lambda mhz, now_s: 4.0 if now_s < 51 else 0.01, lambda mhz, now_s: POWER_W)
    running = repetition(gpu)
    assert running.settle(MeasuringRule())
    assert gpu.moment_s - 54.0 < 3.0
    assert running.measure(MeasuringRule()).time_s == pytest.approx(0.01)


def test_a_counter_that_stands_still_is_an_error_and_no_endless_loop() -> None:
    with pytest.raises(GpuError, match="did not move for 5 s"):
        repetition(steady(0.01, counter_period_s=math.inf)).measure(MeasuringRule())


def test_a_clock_that_is_not_the_lock_is_recorded_with_its_reason() -> None:
    gpu = steady(0.01)
    gpu.lock_sm_clock_mhz(1400)
    gpu.held_mhz = 1200
    found = repetition(gpu).measure(MeasuringRule())
    held = point_of(InstructionKind.FORWARD, 1400, found, is_settled=True)
    assert (held.sm_clock_mhz, held.held_by) == (1200, "power")
    at_lock = point_of(InstructionKind.FORWARD, 1215, found, is_settled=True)
    assert at_lock.held_by is None
    above = point_of(InstructionKind.FORWARD, 900, found, is_settled=True)
    assert (above.sm_clock_mhz, above.held_by) == (1200, "lost")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"wanted_error": 0.0}, "wanted_error"),
        ({"min_periods": 3}, "min_periods"),
        ({"max_point_s": math.inf}, "max_point_s"),
    ],
)
def test_a_rule_that_cannot_be_followed_does_not_exist(
    options: dict[str, float], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        MeasuringRule(**options)  # type: ignore[arg-type]


class SlowlyReadGpu(RecordingGpu):
    """A GPU in real time: it draws more while its instruction runs, and takes long to read."""

    address = GpuAddress(control="nvml", uuid="GPU-slow")  # type: ignore[assignment]
    BUSY_W, IDLE_W, READING_S, PERIOD_S, RUN_S = 300.0, 60.0, 0.004, 0.02, 0.002

    def __init__(self) -> None:
        super().__init__()
        self._began_s = time.monotonic()
        self._busy_s = 0.0
        self._run_began_s: float | None = None
        self._shown = (0.0, 0.0)
        self._guard = threading.Lock()

    def run_once(self) -> None:
        with self._guard:
            self._run_began_s = time.monotonic()
        time.sleep(self.RUN_S)
        with self._guard:
            self._busy_s += time.monotonic() - self._run_began_s
            self._run_began_s = None

    def total_energy_j(self) -> float:
        time.sleep(self.READING_S)
        with self._guard:
            now_s = time.monotonic()
            running_s = 0.0 if self._run_began_s is None else now_s - self._run_began_s
            busy_s, all_s = self._busy_s + running_s, now_s - self._began_s
            if all_s - self._shown[0] >= self.PERIOD_S:
                energy_j = self.BUSY_W * busy_s + self.IDLE_W * (all_s - busy_s)
                self._shown = (all_s, energy_j)
            return self._shown[1]


def test_a_counter_that_is_slow_to_read_does_not_let_the_gpu_wait() -> None:
    gpu = SlowlyReadGpu()
    running = Repetition(gpu, gpu.run_once, now_s=time.monotonic, renew_clock=lambda: None)
    found = running.measure(MeasuringRule(min_periods=40, max_point_s=1.5))
    # Read between two batches, 4 ms of waiting in 24 would add 4 % to the energy.
    assert found.energy_j / found.time_s == pytest.approx(gpu.BUSY_W, rel=0.02)
    assert found.power_w == pytest.approx(gpu.BUSY_W, rel=0.03)


def test_a_gpu_that_is_lost_while_it_is_watched_ends_the_measurement() -> None:
    class LostGpu(SlowlyReadGpu):
        def clock_limits(self) -> ClockLimit:
            raise GpuError("GPU is lost")

    gpu = LostGpu()
    running = Repetition(gpu, gpu.run_once, now_s=time.monotonic, renew_clock=lambda: None)
    with pytest.raises(GpuError, match="GPU is lost"):
        running.measure(MeasuringRule())
    assert "flyball-counter-watch" not in {each.name for each in threading.enumerate()}

"""Points measured on a GPU whose time, power and clock a test scripts."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from statistics import fmean
from typing import Self

import pytest
from tests.unit.client.recording_gpu import RESET, RecordingGpu

from flyball_client.gpu._base import ClockLimit, GpuAddress, GpuError
from flyball_client.profiling import repetition as repetition_module
from flyball_client.profiling.blocking_power import WaitingPower, measure_waiting_power
from flyball_client.profiling.counter_watch import Movement
from flyball_client.profiling.held_clock import HeldClock
from flyball_client.profiling.line_process import LineProcessError
from flyball_client.profiling.points_file import point_of
from flyball_client.profiling.repetition import MeasuringRule, Repetition, StageProfiler, Sweep
from flyball_client.profiling.workload import Workload, WorkloadError
from flyball_pipeline.instruction import InstructionKind


class ScriptedGpu(RecordingGpu):
    """Not emulated; time passes only while its instruction runs, or where a test moves it.

    Args:
        time_s: Time of one instruction in s, from (clock in MHz, moment in s).
        power_w: Power in W, from (clock in MHz, moment in s).
        counter_period_s: Time between movements of the energy counter; infinite: it never moves.
    """

    def __init__(
        self,
        time_s: Callable[[int, float], float],
        power_w: Callable[[int, float], float],
        *,
        counter_period_s: float = 0.1,
    ) -> None:
        super().__init__()
        self.held_mhz: int | None = None
        self.moment_s = 50.0
        self._time_s = time_s
        self._power_w = power_w
        self._counter_period_s = counter_period_s
        self._exact_j = 1000.0
        self.energy_j = 1000.0

    def now_s(self) -> float:
        """The moment, s."""
        return self.moment_s

    def run_once(self) -> None:
        """The instruction."""
        self.pass_time(self._time_s(self.sm_clock_mhz(), self.moment_s))

    def pass_time(self, seconds: float) -> None:
        """Let the GPU draw its power; the counter moves at multiples of its period."""
        power_w = self._power_w(self.sm_clock_mhz(), self.moment_s)
        period_s = self._counter_period_s
        until_s = self.moment_s + seconds
        if math.isfinite(period_s):
            moved_at_s = math.floor(until_s / period_s) * period_s
            if moved_at_s > self.moment_s:
                self.energy_j = self._exact_j + power_w * (moved_at_s - self.moment_s)
        self._exact_j += power_w * seconds
        self.moment_s = until_s

    def sm_clock_mhz(self) -> int:
        """The clock last told, or what it is held at below that."""
        asked_mhz = super().sm_clock_mhz()
        return asked_mhz if self.held_mhz is None else min(asked_mhz, self.held_mhz)

    def clock_limits(self) -> ClockLimit:
        """Power, where the test holds the clock down."""
        return ClockLimit.NONE if self.held_mhz is None else ClockLimit.POWER


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


class ConcurrentWatch:
    """A watch that reads while the instruction runs: its moments lie within batches."""

    is_concurrent = True

    def __init__(self, gpu: ScriptedGpu) -> None:
        self._gpu = gpu
        self._num_periods = math.floor(gpu.now_s() / 0.1)

    def next(self) -> Movement | None:
        num_periods = math.floor(self._gpu.now_s() / 0.1)
        if num_periods == self._num_periods:
            return None
        self._num_periods = num_periods
        moment_s = num_periods * 0.1 + 0.005  # may be after the last batch
        return Movement(
            moment_s=moment_s,
            energy_j=POWER_W * moment_s,
            num_readings=num_periods,
            sm_clock_mhz=1400,
            limits=ClockLimit.NONE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


@pytest.mark.parametrize("time_s", [0.0013, 0.03, 0.17])
def test_a_reading_within_a_batch_counts_its_part_of_the_batch(
    monkeypatch: pytest.MonkeyPatch, time_s: float
) -> None:
    gpu = steady(time_s)
    monkeypatch.setattr(repetition_module, "watch_counter", lambda *_: ConcurrentWatch(gpu))
    found = repetition(gpu).measure(MeasuringRule())
    assert found.time_s == pytest.approx(time_s)
    assert found.energy_j == pytest.approx(POWER_W * time_s)


class SlowlyReadGpu(RecordingGpu):
    """A GPU whose counter, once it runs, is first read for as long as three runs take."""

    address = GpuAddress(control="nvml", uuid="GPU-slow")  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self._num_runs = 0
        self.ran_meanwhile = False
        self._ran = threading.Condition()

    def run_once(self) -> None:
        time.sleep(0.001)
        with self._ran:
            self._num_runs += 1
            self._ran.notify_all()

    def total_energy_j(self) -> float:
        with self._ran:
            until = self._num_runs + 3
            if self._num_runs and not self.ran_meanwhile:
                self.ran_meanwhile = self._ran.wait_for(lambda: self._num_runs >= until, 10)
            return float(self._num_runs)


def test_a_counter_that_is_slow_to_read_does_not_let_the_gpu_wait() -> None:
    gpu = SlowlyReadGpu()
    running = Repetition(gpu, gpu.run_once, now_s=time.monotonic, renew_clock=lambda: None)
    assert running.measure(MeasuringRule(max_point_s=0.2)).num_repetitions > 0
    assert gpu.ran_meanwhile


def test_a_gpu_that_is_lost_while_it_is_watched_ends_the_measurement() -> None:
    class LostGpu(SlowlyReadGpu):
        def clock_limits(self) -> ClockLimit:
            raise GpuError("GPU is lost")

    gpu = LostGpu()
    running = Repetition(gpu, gpu.run_once, now_s=time.monotonic, renew_clock=lambda: None)
    with pytest.raises(GpuError, match="GPU is lost"):
        running.measure(MeasuringRule())
    assert "flyball-counter-watch" not in {each.name for each in threading.enumerate()}


FAILED = r"^backward at 1400 MHz: ValueError: shapes differ \(test_"


@pytest.fixture
def gpu() -> ScriptedGpu:
    return ScriptedGpu(lambda mhz, now_s: 10.0 / mhz, lambda mhz, now_s: 50.0 + mhz / 10)


def profiler(gpu: ScriptedGpu, workload: Workload) -> StageProfiler:
    return StageProfiler(gpu=gpu, workload=workload, rule=MeasuringRule(), now_s=gpu.now_s)


def test_an_instruction_that_fails_is_named_with_its_clock(gpu: ScriptedGpu) -> None:
    def run_once() -> None:
        raise ValueError("shapes\ndiffer")

    workload = Workload(instructions={"backward": run_once})
    sweep = Sweep(workload.kinds, gpu.supported_sm_clocks_mhz())
    with (
        pytest.raises(WorkloadError, match=FAILED),
        HeldClock(gpu) as clock,
    ):
        list(profiler(gpu, workload).measure(sweep, clock))
    assert gpu.told[-1] == RESET


def test_each_instruction_is_warmed_up_at_its_first_clock_only(gpu: ScriptedGpu) -> None:
    workload = Workload(instructions={"forward": gpu.run_once})
    sweep = Sweep(workload.kinds, gpu.supported_sm_clocks_mhz())
    began_s: list[float] = []
    with HeldClock(gpu) as clock:
        warm = StageProfiler(
            gpu=gpu,
            workload=workload,
            rule=MeasuringRule(),
            warm_up_s=100.0,
            now_s=gpu.now_s,
            on_begin=lambda kind, mhz: began_s.append(gpu.now_s()),
        )
        list(warm.measure(sweep, clock))
    assert began_s[1] - began_s[0] > 100.0
    assert began_s[2] - began_s[1] < 50.0


def waiting(power_w: float = 84.0, *, counter_period_s: float = 0.1) -> ScriptedGpu:
    return ScriptedGpu(
        lambda mhz, now_s: 1.0, lambda mhz, now_s: power_w, counter_period_s=counter_period_s
    )


def measure(gpu: ScriptedGpu, num_periods: int) -> WaitingPower:
    return measure_waiting_power(gpu, num_periods=num_periods, now_s=gpu.now_s, pause=gpu.pass_time)


@pytest.mark.parametrize("num_periods", [4, 200])
def test_the_power_of_a_waiting_gpu_is_found_within_its_error(num_periods: int) -> None:
    gpu = waiting()
    found = measure(gpu, num_periods)
    assert abs(found.power_w - 84.0) <= 3 * found.power_error_w
    assert found.power_error_w < 84.0 * 0.03 / num_periods
    assert gpu.moment_s - 50.0 == pytest.approx(0.1 * num_periods, abs=0.11)
    assert found.sm_clock_mhz == 1400


def test_a_counter_that_stands_still_is_an_error() -> None:
    with pytest.raises(GpuError, match="does not move"):
        measure(waiting(counter_period_s=math.inf), 20)


def test_measuring_ends_where_nobody_waits_any_more() -> None:
    gpu = waiting()
    num_looks = 0

    def look() -> None:
        nonlocal num_looks
        num_looks += 1
        if num_looks == 30:
            raise LineProcessError("rank 1 ended: killed")

    with pytest.raises(LineProcessError):
        measure_waiting_power(
            gpu, num_periods=100, now_s=gpu.now_s, pause=gpu.pass_time, check=look
        )
    assert num_looks == 30

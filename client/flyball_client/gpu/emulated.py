"""Emulated GPU, with the clocks, times and energies of a stage profile, in real time.

It pads each computation to the profiled time at the clock in force, so that a training loop runs
as on the profiled GPU.
"""

from __future__ import annotations

import math
import random
import time
import uuid as uuids
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from flyball_client.gpu._base import ClockLimit, GpuError
from flyball_profiles.stage_profile import OperatingPoint, StageProfile

# Largest delay of waking on an idle core; this last part is slept separately.
_LAST_PART_S = 0.0004


class EmulationClock(Protocol):
    """Monotonic clock with a wait."""

    def now_s(self) -> float:
        """Return the seconds since some fixed moment; never falls."""
        ...

    def sleep_until(self, deadline_s: float) -> None:
        """Return when `now_s()` is at least `deadline_s`."""
        ...


class WallClock:
    """Real time, with two or three sleeps per wait and no busy waiting."""

    def now_s(self) -> float:
        """Return the seconds of the system's monotonic clock."""
        return time.monotonic()

    def sleep_until(self, deadline_s: float) -> None:
        """Sleep most of the time, then the rest, to limit the timer slack."""
        while (left_s := deadline_s - time.monotonic()) > 0:
            time.sleep(left_s - _LAST_PART_S if left_s > 2 * _LAST_PART_S else left_s)


class EnergyMeter:
    """Energy over emulated time, from the instructions and the power between them.

    An instruction's energy accrues evenly over its profiled time; all other time, overruns
    included, is charged at the blocking power. Moments are emulated seconds and must not fall from
    call to call.

    Args:
        blocking_power_w: Power in W while the GPU waits in communication.
        counter_period_s: Period in s of the counter's movements.
    """

    def __init__(self, *, blocking_power_w: float, counter_period_s: float) -> None:
        self._blocking_power_w = blocking_power_w
        self._counter_period_s = counter_period_s
        self._since_s = 0.0
        self._energy_j = 0.0
        self._running: OperatingPoint | None = None
        self._shown_at_s = 0.0
        self._shown_j = 0.0

    def run(self, point: OperatingPoint | None, now_s: float) -> None:
        """Start an instruction; None: end it."""
        self.shown_j(now_s)
        self._energy_j = self.exact_j(now_s)
        self._since_s = now_s
        self._running = point

    def exact_j(self, now_s: float) -> float:
        """Return the exact energy up to now, J."""
        # Computed moments may fall by a rounding error.
        waited_s = max(0.0, now_s - self._since_s)
        energy_j = self._energy_j
        if self._running is not None:
            busy_s = min(waited_s, self._running.time_s)
            waited_s -= busy_s
            energy_j += self._running.energy_j * busy_s / self._running.time_s
        return energy_j + self._blocking_power_w * waited_s

    def shown_j(self, now_s: float) -> float:
        """Return the energy at the last multiple of the counter's period, J."""
        moved_at_s = math.floor(now_s / self._counter_period_s) * self._counter_period_s
        # Called before every change, so all multiples before _since_s have been shown.
        if moved_at_s > self._shown_at_s:
            self._shown_j = self.exact_j(max(moved_at_s, self._since_s))
            self._shown_at_s = moved_at_s
        return self._shown_j


_MAX_NOISE = 0.3
# Limit of a normal draw; one in 16 000 exceeds it.
_MAX_SIGMAS = 4.0


class InstructionVariation:
    """Random factors of the time and the energy of each instruction.

    Factors are log-normal with a mean of 1 and limited at four sigmas: at a `noise` of 0.02 they
    lie between 0.92 and 1.08, at 0.29 between 0.31 and 3.0.

    Args:
        noise: Relative standard deviation, at least 0 and below 0.3; 0: no noise.
        seed: Seed of the draws.

    Attributes:
        slowdown: Factor of times and energies from the next draw on.

    Raises:
        ValueError: The noise is out of its range.
    """

    def __init__(self, *, noise: float, seed: int) -> None:
        if not 0 <= noise < _MAX_NOISE:
            raise ValueError(f"noise must be at least 0 and below {_MAX_NOISE:g}, not {noise}")
        # A log-normal of mean 1 and variance noise^2.
        self._variance = math.log1p(noise * noise)
        self._generator = random.Random(seed)
        self.slowdown = 1.0
        self._factors = (1.0, 1.0)

    def draw(self) -> None:
        """Draw the factors of the next instruction."""
        self._factors = (self.slowdown * self._noise(), self.slowdown * self._noise())

    def apply(self, point: OperatingPoint) -> OperatingPoint:
        """Return a point with the factors applied."""
        of_time, of_energy = self._factors
        return replace(point, time_s=point.time_s * of_time, energy_j=point.energy_j * of_energy)

    def _noise(self) -> float:
        if not self._variance:
            return 1.0
        sigmas = self._generator.gauss(0.0, 1.0)
        within = max(-_MAX_SIGMAS, min(_MAX_SIGMAS, sigmas))
        return math.exp(math.sqrt(self._variance) * within - self._variance / 2)


def profiled_clocks_mhz(chunks: Sequence[StageProfile], stage: int) -> tuple[int, ...]:
    """Return all profiled frequencies of the stage, MHz, falling."""
    frequencies = {
        point.frequency_mhz
        for chunk in chunks
        for (of_stage, _), points in chunk.points.items()
        if of_stage == stage
        for point in points
    }
    return tuple(sorted(frequencies, reverse=True))


def points_by_clock(
    chunks: Sequence[StageProfile], stage: int, clocks_mhz: tuple[int, ...]
) -> dict[tuple[str, int, int], OperatingPoint]:
    """Return points by kind, chunk and clock: at that clock, else the next above, else the highest.

    The energies are one rank's share of the stage's.
    """
    found: dict[tuple[str, int, int], OperatingPoint] = {}
    for chunk, profile in enumerate(chunks):
        for (of_stage, kind), falling in profile.points.items():
            for clock_mhz in clocks_mhz if of_stage == stage else ():
                above = [point for point in falling if point.frequency_mhz >= clock_mhz]
                point = above[-1] if above else falling[0]
                energy_j = point.energy_j / profile.num_ranks_per_stage[stage]
                found[kind.value, chunk, clock_mhz] = replace(point, energy_j=energy_j)
    return found


class EmulatedGpu:
    """Emulated GPU of one rank of one stage; a GpuDevice and an InstructionObserver.

    The profile's energies are divided by the stage's number of ranks. Without a lock it runs at
    the stage's highest profiled clock. A clock that is requested during an instruction takes
    effect with the next one. Where a kind has no point at the clock in force, its next point
    above is used, else its highest.

    Attributes:
        name: Name of the product, after `emulated `.
        uuid: Random UUID, after `EMULATED-`.
        is_emulated: True.
        address: None: the device exists in this process only.
        num_overruns: Number of instructions whose computation exceeded the profiled time.
        overrun_s: Sum of the overruns, emulated s.

    Args:
        profile: Profile with times and energies.
        stage: Stage of the profile.
        num_chunks: Number of model chunks of the stage; with several, the profile's chunks are
            used.
        blocking_power_w: Power in W between instructions, not negative.
        time_scale: Wall seconds per emulated second; 2 runs twice as slowly. A larger scale avoids
            overruns, where the computation is slower than the profile.
        switch_latency_s: Emulated time in s from a clock's request to its effect.
        counter_period_s: Emulated time in s between movements of the energy counter.
        noise: Relative standard deviation of each instruction's time and energy, drawn
            independently, at least 0 and below 0.3.
        seed: Seed of the noise; must differ between GPUs of one run.
        clock: Wall clock; None: the system's.
        product: Name of the emulated product.

    Raises:
        ValueError: An argument is out of its range.
    """

    is_emulated = True
    address = None

    def __init__(
        self,
        profile: StageProfile,
        stage: int,
        *,
        blocking_power_w: float,
        num_chunks: int = 1,
        time_scale: float = 1.0,
        switch_latency_s: float = 0.0,
        counter_period_s: float = 0.1,
        noise: float = 0.0,
        seed: int = 0,
        clock: EmulationClock | None = None,
        product: str = "GPU",
    ) -> None:
        if not 0 <= stage < profile.num_stages:
            raise ValueError(f"stage must be 0 to {profile.num_stages - 1}, not {stage}")
        _check("blocking_power_w", blocking_power_w, may_be_zero=True)
        _check("time_scale", time_scale)
        _check("switch_latency_s", switch_latency_s, may_be_zero=True)
        _check("counter_period_s", counter_period_s)
        self._stage = stage
        chunks = profile.by_chunk(num_chunks)
        self._clocks_mhz = profiled_clocks_mhz(chunks, stage)
        self._points = points_by_clock(chunks, stage, self._clocks_mhz)
        self._variation = InstructionVariation(noise=noise, seed=seed)
        self._meter = EnergyMeter(
            blocking_power_w=blocking_power_w, counter_period_s=counter_period_s
        )
        self._time_scale = time_scale
        self._switch_latency_s = switch_latency_s
        self._clock: EmulationClock = WallClock() if clock is None else clock
        self._started_s = self._clock.now_s()
        self.name = f"emulated {product}"
        self.uuid = f"EMULATED-{uuids.uuid4()}"
        self._in_force_mhz = self._clocks_mhz[0]
        self._requests: deque[tuple[float, int]] = deque()
        self._running: tuple[str, int, float, OperatingPoint] | None = None
        self.num_overruns = 0
        self.overrun_s = 0.0
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<EmulatedGpu {self.name!r} stage {self._stage} {self.uuid}>"

    def emulated_time_s(self) -> float:
        """Return the emulated seconds since the device was created."""
        return (self._clock.now_s() - self._started_s) / self._time_scale

    def exact_energy_j(self) -> float:
        """Return the energy in J at this moment, unlike the counter."""
        return self._meter.exact_j(self.emulated_time_s())

    def set_slowdown(self, slowdown: float) -> None:
        """Emulate a straggler.

        Args:
            slowdown: Factor of the time of each instruction from the next one on, at the same
                power; 1: as profiled.

        Raises:
            ValueError: It is not positive and finite.
        """
        _check("slowdown", slowdown)
        self._variation.slowdown = slowdown

    # ------------------------------------------------------------------ GpuDevice

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """Return the stage's profiled frequencies, MHz, falling."""
        self._check_open()
        return self._clocks_mhz

    def lock_sm_clock_mhz(self, sm_clock_mhz: int) -> None:
        """Lock this SM clock, after the switch latency."""
        self._check_open()
        if sm_clock_mhz not in self._clocks_mhz:
            raise ValueError(f"{self.name} of stage {self._stage} has no {sm_clock_mhz} MHz")
        self._request(sm_clock_mhz)

    def reset_sm_clock(self) -> None:
        """Restore the highest clock, after the switch latency."""
        self._check_open()
        self._request(self._clocks_mhz[0])

    def sm_clock_mhz(self) -> int:
        """Return the SM clock in force, MHz."""
        self._check_open()
        return self._settle_clock(self.emulated_time_s())

    def clock_limits(self) -> ClockLimit:
        """Return no limits."""
        self._check_open()
        return ClockLimit.NONE

    def total_energy_j(self) -> float:
        """Return the energy counter, J since the device was created."""
        self._check_open()
        return self._meter.shown_j(self.emulated_time_s())

    def close(self) -> None:
        """Restore the clock; time, energy and overruns can still be read."""
        if not self._is_closed:
            self._request(self._clocks_mhz[0])
            self._is_closed = True

    # ------------------------------------------------------------------ InstructionObserver

    def on_instruction_begin(self, kind: str, chunk: int = 0) -> None:
        """Start the computation, at the clock in force.

        Raises:
            ValueError: The profile has no such instruction, or another one is running.
        """
        self._check_open()
        if self._running is not None:
            raise ValueError(f"{kind} begins while {self._running[0]} runs on {self.name}")
        now_s = self.emulated_time_s()
        point = self._points.get((kind, chunk, self._settle_clock(now_s)))
        if point is None:
            where = f"stage {self._stage}" + (f", chunk {chunk}" if chunk else "")
            raise ValueError(f"the profile has no {kind} of {where} to emulate")
        self._variation.draw()
        point = self._variation.apply(point)
        self._meter.run(point, now_s)
        self._running = (kind, chunk, now_s, point)

    def on_instruction_end(self, kind: str, chunk: int = 0) -> None:
        """End the computation; return when the profiled time is over.

        Raises:
            ValueError: No such instruction is running.
        """
        self._check_open()
        if self._running is None or self._running[:2] != (kind, chunk):
            raise ValueError(f"{kind} ends on {self.name} but is not running")
        done_s = self._running[2] + self._running[3].time_s
        late_s = self.emulated_time_s() - done_s
        if late_s > 0:
            self.num_overruns += 1
            self.overrun_s += late_s
        else:
            self._clock.sleep_until(self._started_s + done_s * self._time_scale)
        self._running = None
        # Rounding may end the sleep slightly before the emulated moment.
        self._meter.run(None, max(self.emulated_time_s(), done_s))

    # ------------------------------------------------------------------ inside

    def _request(self, sm_clock_mhz: int) -> None:
        now_s = self.emulated_time_s()
        self._settle_clock(now_s)
        self._requests.append((now_s + self._switch_latency_s, sm_clock_mhz))

    def _settle_clock(self, now_s: float) -> int:
        while self._requests and self._requests[0][0] <= now_s:
            self._in_force_mhz = self._requests.popleft()[1]
        return self._in_force_mhz

    def _check_open(self) -> None:
        if self._is_closed:
            raise GpuError(f"{self.name} is closed; create another")


def _check(name: str, value: float, *, may_be_zero: bool = False) -> None:
    if not (math.isfinite(value) and (value > 0 or (may_be_zero and value == 0))):
        rule = "not be negative" if may_be_zero else "be positive"
        raise ValueError(f"{name} must {rule} and finite, not {value}")

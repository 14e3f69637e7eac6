"""Execution on an emulated GPU, integrated piecewise between clock changes.

A clock requested at r takes effect at r + L, also in the middle of an instruction. With T(f) and
E(f) the instruction's time and energy at a clock, x = clamp(r + L - s, 0, T(f0)) seconds of an
instruction that begins at s run at the clock before, f0, and its time and energy are

    t = x + T(f1) (1 - x / T(f0)),    E = E(f0) x / T(f0) + E(f1) (1 - x / T(f0)).

Several changes within one instruction have their share each.
"""

from __future__ import annotations

import copy
import fcntl
import math
import os
import random
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from flyball_client.gpu._base import ClockCall
from flyball_profiles.stage_profile import OperatingPoint, StageProfile

# Limit of a normal draw; one in 16 000 exceeds it.
_MAX_SIGMAS = 4.0
# Of a normal distribution, the 99th percentile in standard deviations.
_P99_SIGMAS = 2.3263478740408408
_MAX_NOISE = 0.3


def check(name: str, value: float, *, may_be_zero: bool = False) -> None:
    """Check that a value is finite, and positive or not negative.

    Raises:
        ValueError: It is not.
    """
    if not (math.isfinite(value) and (value > 0 or (may_be_zero and value == 0))):
        bound = "not be negative" if may_be_zero else "be positive"
        raise ValueError(f"{name} must {bound} and finite, not {value}")


def _limited_normal(generator: random.Random) -> float:
    return max(-_MAX_SIGMAS, min(_MAX_SIGMAS, generator.gauss(0.0, 1.0)))


@dataclass(frozen=True, kw_only=True)
class RandomTime:
    """Log-normal distribution of a time, limited at four sigmas.

    Attributes:
        p50_s: Median in s, not negative.
        p99_s: 99th percentile in s, at least the median; None: the time is always the median.

    Raises:
        ValueError: A value is out of its range.
    """

    p50_s: float = 0.0
    p99_s: float | None = None

    def __post_init__(self) -> None:
        check("p50_s", self.p50_s, may_be_zero=True)
        if self.p99_s is not None and not 0 < self.p50_s <= self.p99_s < math.inf:
            raise ValueError(
                f"p99_s must be finite and at least p50_s, which must be positive, not {self}"
            )

    def draw_s(self, generator: random.Random) -> float:
        """Draw a time in s."""
        if self.p99_s is None:
            return self.p50_s
        sigma = math.log(self.p99_s / self.p50_s) / _P99_SIGMAS
        return self.p50_s * math.exp(sigma * _limited_normal(generator))


@dataclass(frozen=True, kw_only=True)
class EmulatedGpuSettings:
    """Physics of an emulated GPU; times in emulated seconds.

    The defaults are measurements of V100 (calls) and of A40 and A100 (delays) that others have
    published (docs/evaluation.md#emulated-gpus); stall, power lag, power limit and noise are off.

    Attributes:
        call_time: Time of a call that sets a clock. Calls to GPUs of one node run one at a time.
        delay_up, delay_down: Time from the start of a call to the effect of a clock above, or
            below, the one requested before.
        stall_s: Time after each change for which the GPU does not compute.
        power_lag_s: Time by which the power follows a change of the clock.
        power_limit_w: Power in W above which a clock is not held: an instruction runs at the
            highest clock with no more; None: no limit.
        noise: Relative standard deviation of each instruction's time and energy, drawn
            independently, at least 0 and below 0.3.
        seed: Seed of all draws; must differ between GPUs of one run.

    Raises:
        ValueError: A value is out of its range.
    """

    call_time: RandomTime = RandomTime(p50_s=0.0045, p99_s=0.012)
    delay_up: RandomTime = RandomTime(p50_s=0.005, p99_s=0.008)
    delay_down: RandomTime = RandomTime(p50_s=0.004, p99_s=0.0055)
    stall_s: float = 0.0
    power_lag_s: float = 0.0
    power_limit_w: float | None = None
    noise: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check("stall_s", self.stall_s, may_be_zero=True)
        check("power_lag_s", self.power_lag_s, may_be_zero=True)
        if self.power_limit_w is not None:
            check("power_limit_w", self.power_limit_w)
        if not 0 <= self.noise < _MAX_NOISE:
            raise ValueError(f"noise must be at least 0 and below {_MAX_NOISE:g}, not {self.noise}")

    @classmethod
    def exact_delay(cls, delay_s: float, *, seed: int = 0) -> EmulatedGpuSettings:
        """Return settings with calls that take no time and one delay, up and down."""
        delay = RandomTime(p50_s=delay_s)
        return cls(call_time=RandomTime(), delay_up=delay, delay_down=delay, seed=seed)


class InstructionVariation:
    """Random factors of the time and the energy of each instruction.

    Factors are log-normal with a mean of 1 and limited at four sigmas: at a `noise` of 0.02 they
    lie between 0.92 and 1.08, at 0.29 between 0.31 and 3.0.

    Args:
        noise: Relative standard deviation.
        seed: Seed of the draws.

    Attributes:
        slowdown: Factor of times and energies from the next draw on.
        work: Another one, of the work of a microbatch.
    """

    def __init__(self, *, noise: float, seed: int) -> None:
        # A log-normal of mean 1 and variance noise^2.
        self._variance = math.log1p(noise * noise)
        self._generator = random.Random(seed)
        self.slowdown = self.work = 1.0

    def draw(self) -> tuple[float, float]:
        """Draw the factors of an instruction's time and energy."""
        factor = self.slowdown * self.work
        return factor * self._noise(), factor * self._noise()

    def _noise(self) -> float:
        if not self._variance:
            return 1.0
        sigmas = _limited_normal(self._generator)
        return math.exp(math.sqrt(self._variance) * sigmas - self._variance / 2)


# A queue is never longer; a later moment in a file is from before the machine was restarted.
_LONGEST_QUEUE_S = 60.0


class EmulatedNode:
    """Node whose GPUs take one call that sets a clock at a time, in the order of the calls.

    Args:
        file: File through which processes share the node; None: it exists in this process only.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._free_s = -math.inf
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = None if file is None else os.open(file, flags, 0o600)

    @classmethod
    def of_machine(cls) -> EmulatedNode:
        """Return the node of all emulated GPUs of this user on this machine.

        Raises:
            OSError: Its file, in the folder of temporary files, cannot be opened.
        """
        return cls(Path(tempfile.gettempdir()) / f"flyball-emulated-node-{os.geteuid()}")

    def __del__(self) -> None:
        if (fd := getattr(self, "_fd", None)) is not None:
            os.close(fd)

    def book_s(self, now_s: float, call_time_s: float) -> float:
        """Return the start of a call that is made now, in s of the GPUs' common clock."""
        if self._fd is None:
            starts_s = max(now_s, self._free_s)
            self._free_s = starts_s + call_time_s
            return starts_s
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            written = os.pread(self._fd, 8, 0)
            free_s = struct.unpack("d", written)[0] if len(written) == 8 else now_s
            starts_s = free_s if now_s < free_s < now_s + _LONGEST_QUEUE_S else now_s
            os.pwrite(self._fd, struct.pack("d", starts_s + call_time_s), 0)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        return starts_s


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


InstructionKey = tuple[str, int]
"""Kind and chunk."""

PointsByClock = dict[int, OperatingPoint]


def points_by_clock(
    chunks: Sequence[StageProfile], stage: int, clocks_mhz: tuple[int, ...]
) -> dict[InstructionKey, PointsByClock]:
    """Return points by instruction and clock: at that clock, else the next above, else the highest.

    The energies are one rank's share of the stage's.
    """
    found: dict[InstructionKey, PointsByClock] = {}
    for chunk, profile in enumerate(chunks):
        for (of_stage, kind), falling in profile.points.items():
            for clock_mhz in clocks_mhz if of_stage == stage else ():
                above = [point for point in falling if point.frequency_mhz >= clock_mhz]
                point = above[-1] if above else falling[0]
                energy_j = point.energy_j / profile.num_ranks_per_stage[stage]
                found.setdefault((kind.value, chunk), {})[clock_mhz] = replace(
                    point, energy_j=energy_j
                )
    return found


def held_clock_mhz(clock_mhz: int, points: PointsByClock, power_limit_w: float | None) -> int:
    """Return the highest clock, at most the given one, that keeps an instruction within the limit.

    That is the lowest clock where it exceeds the limit at all of them.
    """
    if power_limit_w is None:
        return clock_mhz
    falling = sorted((mhz for mhz in points if mhz <= clock_mhz), reverse=True)
    num_above = sum(
        1
        for _ in takewhile(
            lambda mhz: points[mhz].energy_j > power_limit_w * points[mhz].time_s, falling
        )
    )
    return falling[min(num_above, len(falling) - 1)]


class Execution:
    """Clock in force, running instruction, and energy, as emulated time passes.

    An instruction's energy accrues in proportion to its progress; in all other time, overruns
    included, the GPU draws its blocking power. Moments are emulated seconds and must not fall from
    call to call.

    Args:
        points: Points by instruction and clock.
        settings: Physics.
        blocking_power_w: Power in W between instructions and in a stall.
        clock_mhz: Clock in force at the begin, MHz.
        counter_period_s: Period in s of the energy counter's movements.

    Attributes:
        clock_mhz: Clock in force, MHz, as far as no power limit holds it down.
        energy_j: Exact energy up to the last moment, J.
        shown_j: Energy at the last multiple of the counter's period, J.
        is_waiting: True: the running instruction makes no progress.
        completed_s: Moment at which the instruction that began last was completed; None: it runs.
    """

    def __init__(
        self,
        points: Mapping[InstructionKey, PointsByClock],
        settings: EmulatedGpuSettings,
        *,
        blocking_power_w: float,
        clock_mhz: int,
        counter_period_s: float,
    ) -> None:
        self._points = points
        self._blocking_power_w = blocking_power_w
        self._stall_s = settings.stall_s
        self._power_lag_s = settings.power_lag_s
        self._power_limit_w = settings.power_limit_w
        self._counter_period_s = counter_period_s
        self.clock_mhz = clock_mhz
        self.energy_j = 0.0
        self.shown_j = 0.0
        self.is_waiting = False
        self.completed_s: float | None = 0.0
        self._now_s = 0.0
        self._shown_at_s = 0.0
        # In order of time. Replaced and never changed: a copy looks ahead.
        self._changes: tuple[tuple[float, int], ...] = ()
        self._power_changes: tuple[tuple[float, int], ...] = ()
        self._power_clock_mhz = self.clock_mhz
        self._stalled_until_s = 0.0
        self._instruction: PointsByClock | None = None
        self._factors = (1.0, 1.0)
        self._share_left = 0.0

    def set_changes(self, changes: Sequence[tuple[float, int]]) -> None:
        """Set the clock changes to come, as moments in s and clocks in MHz, in order of time."""
        self._changes = tuple(changes)

    def set_power_limit_w(self, power_limit_w: float | None) -> None:
        """Set the power limit in W; None: no limit."""
        self._power_limit_w = power_limit_w

    def begin(self, instruction: InstructionKey, factors: tuple[float, float]) -> None:
        """Begin an instruction at the last moment; factors are of its time and energy."""
        self._instruction = self._points[instruction]
        self._factors = factors
        self._share_left = 1.0
        self.completed_s = None

    def break_off(self) -> None:
        """End the running instruction at the last moment."""
        self.is_waiting = False
        if self.completed_s is None:
            self.completed_s = self._now_s

    def completion_s(self) -> float:
        """Return the moment at which the running instruction is completed by the known changes."""
        ahead = copy.copy(self)
        ahead.is_waiting = False
        while ahead.completed_s is None:
            ahead._run_segment(math.inf)
        return ahead.completed_s

    def held_mhz(self) -> int:
        """Return the clock at which the GPU runs, or ran its last instruction if unchanged, MHz."""
        if self._instruction is None:
            return self.clock_mhz
        return held_clock_mhz(self.clock_mhz, self._instruction, self._power_limit_w)

    def advance(self, now_s: float) -> None:
        """Let time pass until this moment."""
        moved_at_s = math.floor(now_s / self._counter_period_s) * self._counter_period_s
        # Each multiple before the last moment has been shown.
        if moved_at_s > self._shown_at_s:
            self._run_until(moved_at_s)
            self.shown_j, self._shown_at_s = self.energy_j, moved_at_s
        self._run_until(now_s)

    def _run_until(self, until_s: float) -> None:
        # Computed moments may fall by a rounding error.
        while self._now_s < until_s or self._is_change_due():
            self._run_segment(until_s)

    def _is_change_due(self) -> bool:
        changes, now_s = self._changes, self._now_s
        return bool(changes) and changes[0][0] <= now_s

    def _run_segment(self, until_s: float) -> None:
        """Apply what is due, then run to the next event, at most until this moment."""
        while self._is_change_due():
            (_, clock_mhz), *later = self._changes
            self._changes = tuple(later)
            self._change_clock(clock_mhz)
        while self._power_changes and self._power_changes[0][0] <= self._now_s:
            (_, self._power_clock_mhz), *later = self._power_changes
            self._power_changes = tuple(later)
        events = (self._changes[:1], self._power_changes[:1])
        until_s = min([until_s, *(moment_s for event in events for moment_s, _ in event)])
        if self.is_waiting or self.completed_s is not None or self._instruction is None:
            self._wait_until(until_s)
        elif self._now_s < self._stalled_until_s:
            self._wait_until(min(until_s, self._stalled_until_s))
        else:
            self._compute_until(until_s, self._instruction)

    def _change_clock(self, clock_mhz: int) -> None:
        if clock_mhz == self.clock_mhz:
            return
        self.clock_mhz = clock_mhz
        self._stalled_until_s = self._now_s + self._stall_s
        self._power_changes = (*self._power_changes, (self._now_s + self._power_lag_s, clock_mhz))

    def _wait_until(self, until_s: float) -> None:
        waited_s = max(0.0, until_s - self._now_s)
        self.energy_j += self._blocking_power_w * waited_s
        self._now_s = max(self._now_s, until_s)

    def _compute_until(self, until_s: float, points: PointsByClock) -> None:
        of_time, of_energy = self._factors
        point = points[held_clock_mhz(self.clock_mhz, points, self._power_limit_w)]
        time_s = point.time_s * of_time
        ends_s = self._now_s + self._share_left * time_s
        share = self._share_left if ends_s <= until_s else (until_s - self._now_s) / time_s
        power_point = points[held_clock_mhz(self._power_clock_mhz, points, self._power_limit_w)]
        energy_j = power_point.energy_j * of_energy
        if power_point.time_s != point.time_s:
            energy_j *= point.time_s / power_point.time_s
        self.energy_j += energy_j * share
        if ends_s <= until_s:
            self._share_left = 0.0
            self._now_s = self.completed_s = max(self._now_s, ends_s)
        else:
            self._share_left -= share
            self._now_s = until_s
            # A rest that is shorter than moments can tell apart would never be computed.
            if until_s + self._share_left * time_s <= until_s:
                self._share_left, self.completed_s = 0.0, until_s


class ClockCalls:
    """Calls that set the clock of one GPU, with the moments of their effects.

    One call is made at a time. A request during a call waits for its end, and is replaced by a
    later one until then; from then on it is in the queue of the node, with its clock. Where a
    later call takes effect before an earlier call, the earlier one is dropped. Moments are emulated
    seconds.

    Args:
        clock_mhz: Clock in force at the beginning, MHz.
        settings: Physics.

    Attributes:
        requested_mhz: Clock that was requested last, MHz.
        last_call: Last call, which may be still to come; None: there was none.
    """

    def __init__(self, clock_mhz: int, settings: EmulatedGpuSettings) -> None:
        self.requested_mhz = clock_mhz
        self.last_call: ClockCall | None = None
        self._settings = settings
        # Apart from that of the instructions, whose draws are the same with and without delays.
        self._generator = random.Random(f"clock calls {settings.seed}")
        self._before_mhz = clock_mhz
        self._starts_s = -math.inf
        self._changes: list[tuple[float, int]] = []

    def draw_call_time_s(self) -> float:
        """Draw the time of a call in s."""
        return self._settings.call_time.draw_s(self._generator)

    def is_waiting(self, now_s: float) -> bool:
        """Return whether the last request still waits for the end of the call before."""
        call = self.last_call
        return call is not None and call.began_s > now_s

    def begin(self, clock_mhz: int, now_s: float, *, starts_s: float, call_time_s: float) -> None:
        """Add a call, requested now, that reaches the GPU at a moment and takes a time.

        Args:
            clock_mhz: Clock to set, MHz.
            now_s: Moment of the request.
            starts_s: Moment at which the calls of the node before it are over.
            call_time_s: Time of the call from then on, s.
        """
        free_s = now_s if self.last_call is None else max(now_s, self.last_call.returned_s)
        self._before_mhz, self._starts_s = self.requested_mhz, starts_s
        self.last_call = ClockCall(
            sm_clock_mhz=clock_mhz,
            requested_s=now_s,
            began_s=min(free_s, starts_s),
            returned_s=starts_s + call_time_s,
        )
        self._add(clock_mhz)

    def replace_waiting(self, clock_mhz: int, now_s: float) -> None:
        """Give the call that waits this clock, requested now."""
        self._changes.pop()
        if self.last_call is not None:
            self.last_call = replace(self.last_call, sm_clock_mhz=clock_mhz, requested_s=now_s)
        self._add(clock_mhz)

    def changes(self, now_s: float) -> list[tuple[float, int]]:
        """Return moments and clocks of the effects from now on, in order of time."""
        self._changes = [change for change in self._changes if change[0] >= now_s]
        return self._changes

    def _add(self, clock_mhz: int) -> None:
        self.requested_mhz = clock_mhz
        settings = self._settings
        delay = settings.delay_up if clock_mhz > self._before_mhz else settings.delay_down
        effect_s = self._starts_s + delay.draw_s(self._generator)
        self._changes = [change for change in self._changes if change[0] < effect_s]
        self._changes.append((effect_s, clock_mhz))

"""Emulated GPU, with the clocks, times and energies of a stage profile, in real time.

It pads each computation to the profiled time at the clocks in force, so that a training loop runs
as on the profiled GPU.
"""

from __future__ import annotations

import time
import uuid as uuids
from collections.abc import Callable
from typing import Protocol

from flyball_client.gpu._base import ClockCall, ClockLimit, GpuError
from flyball_client.gpu.emulated.execution import (
    ClockCalls,
    EmulatedGpuSettings,
    EmulatedNode,
    Execution,
    InstructionVariation,
    check,
    points_by_clock,
    profiled_clocks_mhz,
)
from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.stage_profile import EnergyScope, StageProfile

DEFAULT_PHYSICS = EmulatedGpuSettings()
"""Settings of a GPU whose clock changes as on the GPUs that were measured."""

COUNTER_PERIOD_S = 0.1
"""Time in s between movements of the energy counter, as measured on GPUs."""

IDEAL_GPU = EmulatedGpuSettings.exact_delay(0.0)
"""Settings of a GPU whose clock changes at once and whose times are exactly the profile's."""

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


class LeapingClock:
    """EmulationClock without waiting: a sleep ends at once, so minutes take no time."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        """Return the seconds, which only sleeping advances."""
        return self._now_s

    def sleep_until(self, deadline_s: float) -> None:
        """Advance to the deadline, if it is later."""
        self._now_s = max(self._now_s, deadline_s)


class EmulatedGpu:
    """Emulated GPU of one rank of one stage; a GpuDevice and an InstructionObserver.

    The profile's energies are divided by the stage's number of ranks. Without a lock it runs at
    the stage's highest profiled clock. A request returns at once; its call runs in emulated time,
    as if a governor process made it, and queues with those of the node. The clock takes effect as
    the settings say, also in the middle of an instruction. A timed request is made when emulated
    time reaches its moment, whatever runs then. Where a kind has no point at the clock
    in force, its next point above is used, else its highest.

    Attributes:
        name: Name of the product, after `emulated `.
        uuid: Random UUID, after `EMULATED-`.
        is_emulated: True.
        address: None: the device exists in this process only.
        num_overruns: Number of instructions whose computation exceeded the emulated time.

    Args:
        profile: Profile with times and energies.
        stage: Stage of the profile.
        num_chunks: Number of model chunks of the stage; with several, the profile's chunks are
            used.
        blocking_power_w: Power in W between instructions, at any clock; not negative.
        settings: Physics of clock changes, power limit and noise. GPUs of one run need different
            seeds.
        node: Node whose GPUs take one call that sets a clock at a time; None: one of its own.
        time_scale: Wall seconds per emulated second; 2 runs twice as slowly. A larger scale avoids
            overruns, where the computation is slower than the profile.
        counter_period_s: Emulated time in s between movements of the energy counter.
        work: Given a step and a microbatch, the factor of its instructions' time and energy; None:
            all are as profiled.
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
        settings: EmulatedGpuSettings = DEFAULT_PHYSICS,
        node: EmulatedNode | None = None,
        num_chunks: int = 1,
        time_scale: float = 1.0,
        counter_period_s: float = COUNTER_PERIOD_S,
        work: Callable[[int, int], float] | None = None,
        clock: EmulationClock | None = None,
        product: str = "GPU",
    ) -> None:
        if not 0 <= stage < profile.num_stages:
            raise ValueError(f"stage must be 0 to {profile.num_stages - 1}, not {stage}")
        check("time_scale", time_scale)
        check("counter_period_s", counter_period_s)
        check("blocking_power_w", blocking_power_w, may_be_zero=True)
        self._stage = stage
        self._energy_scope = profile.energy_scope
        self._conditions = profile.conditions[stage] if profile.conditions else None
        chunks = profile.by_chunk(num_chunks)
        self._clocks_mhz = profiled_clocks_mhz(chunks, stage)
        self._points = points_by_clock(chunks, stage, self._clocks_mhz)
        self._variation = InstructionVariation(noise=settings.noise, seed=settings.seed)
        self._calls = ClockCalls(self._clocks_mhz[0], settings)
        self._node = EmulatedNode() if node is None else node
        self._execution = Execution(
            self._points,
            settings,
            blocking_power_w=blocking_power_w,
            clock_mhz=self._clocks_mhz[0],
            counter_period_s=counter_period_s,
        )
        self._work = work
        self._time_scale = time_scale
        self._clock: EmulationClock = WallClock() if clock is None else clock
        self._started_s = self._clock.now_s()
        self.name = f"emulated {product}"
        self.uuid = f"EMULATED-{uuids.uuid4()}"
        self._running: tuple[str, int] | None = None
        self._is_completed = False
        # Moment of the wall clock in s, and clock in MHz.
        self._timed: tuple[float, int] | None = None
        self.num_overruns = 0
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<EmulatedGpu {self.name!r} stage {self._stage} {self.uuid}>"

    @property
    def requested_sm_clock_mhz(self) -> int:
        """SM clock in MHz that was requested last; the highest where none is locked."""
        self._make_timed_request()
        return self._calls.requested_mhz

    def emulated_time_s(self) -> float:
        """Return the emulated seconds since the device was created."""
        return (self._clock.now_s() - self._started_s) / self._time_scale

    def exact_energy_j(self) -> float:
        """Return the energy in J at this moment, unlike the counter."""
        self._advance()
        return self._execution.energy_j

    def completion_s(self) -> float:
        """Return the moment of its wall clock, in s, at which the running instruction is over.

        Clocks that are requested later may still change it, those of timed requests too.

        Raises:
            ValueError: No instruction is running.
        """
        if self._running is None:
            raise ValueError(f"no instruction is running on {self.name}")
        self._advance()
        return self._wall_s(self._execution.completion_s())

    def timed_request_s(self) -> float | None:
        """Return the moment of its wall clock, in s, of the timed request that is still to come.

        None: there is none. One that is due is made.
        """
        self._make_timed_request()
        return None if self._timed is None else self._timed[0]

    def last_call(self) -> ClockCall | None:
        """Return the last call that set the clock; None: there was none, or it is not over.

        Its moments are of the device's wall clock, in s.
        """
        self._make_timed_request()
        call = self._calls.last_call
        if call is None or call.returned_s > self.emulated_time_s():
            return None
        return ClockCall(
            sm_clock_mhz=call.sm_clock_mhz,
            requested_s=self._wall_s(call.requested_s),
            began_s=self._wall_s(call.began_s),
            returned_s=self._wall_s(call.returned_s),
        )

    def set_slowdown(self, slowdown: float) -> None:
        """Emulate a straggler.

        Args:
            slowdown: Factor of the time of each instruction from the next on, at the same
                power; 1: as profiled.

        Raises:
            ValueError: It is not positive and finite.
        """
        check("slowdown", slowdown)
        self._variation.slowdown = slowdown

    def set_power_limit_w(self, power_limit_w: float | None) -> None:
        """Set the power limit in W from now on, as in the settings; None: no limit.

        Raises:
            ValueError: It is not positive and finite.
        """
        if power_limit_w is not None:
            check("power_limit_w", power_limit_w)
        self._advance()
        self._execution.set_power_limit_w(power_limit_w)

    # ------------------------------------------------------------------ GpuDevice

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """Return the stage's profiled frequencies, MHz, falling."""
        self._check_open()
        return self._clocks_mhz

    def lock_sm_clock_mhz(self, sm_clock_mhz: int) -> None:
        """Request this SM clock."""
        self._check_clock(sm_clock_mhz)
        self._request(sm_clock_mhz)

    def lock_sm_clock_mhz_at(self, sm_clock_mhz: int, moment_s: float) -> None:
        """Request this SM clock at an emulated moment, s, unless another request comes before."""
        self._check_clock(sm_clock_mhz)
        self._make_timed_request()
        self._timed = (max(self._wall_s(moment_s), self._clock.now_s()), sm_clock_mhz)

    def reset_sm_clock(self) -> None:
        """Request the highest clock."""
        self._check_open()
        self._request(self._clocks_mhz[0])

    def sm_clock_mhz(self) -> int:
        """Return the SM clock in force, MHz.

        Between instructions a power limit holds it where it held it in the last instruction.
        """
        self._check_open()
        self._advance()
        return self._execution.held_mhz()

    def clock_limits(self) -> ClockLimit:
        """Return POWER where the power limit holds the clock down, else no limit."""
        is_held_down = self.sm_clock_mhz() < self._execution.clock_mhz
        return ClockLimit.POWER if is_held_down else ClockLimit.NONE

    def total_energy_j(self) -> float:
        """Return the energy counter, J since the device was created."""
        self._check_open()
        self._advance()
        return self._execution.shown_j

    def energy_scope(self) -> EnergyScope | None:
        """Return what the profile's energies count; None: not recorded."""
        self._check_open()
        return self._energy_scope

    def conditions(self) -> GpuConditions | None:
        """Return the conditions that the profile was measured under; None: not recorded."""
        self._check_open()
        return self._conditions

    def close(self) -> None:
        """Restore the clock; time, energy and overruns can still be read."""
        if not self._is_closed:
            self._request(self._clocks_mhz[0])
            self._is_closed = True

    # ------------------------------------------------------------------ InstructionObserver

    def on_instruction_begin(self, kind: str, chunk: int = 0) -> None:
        """Start the computation, at the clock in force.

        Raises:
            ValueError: The profile has no such instruction, or another is running.
        """
        self._check_open()
        if self._running is not None:
            raise ValueError(f"{kind} begins while {self._running[0]} runs on {self.name}")
        if (kind, chunk) not in self._points:
            where = f"stage {self._stage}" + (f", chunk {chunk}" if chunk else "")
            raise ValueError(f"the profile has no {kind} of {where} to emulate")
        self._advance()
        self._execution.begin((kind, chunk), self._variation.draw())
        self._running = (kind, chunk)

    def on_instruction_end(self, kind: str, chunk: int = 0) -> None:
        """End the computation; return when the emulated time is over.

        Raises:
            ValueError: No such instruction is running.
        """
        self._check_open()
        if self._running != (kind, chunk):
            raise ValueError(f"{kind} ends on {self.name} but is not running")
        execution = self._execution
        self._advance()
        execution.is_waiting = False
        if not self._is_completed:
            self._pad()
        self._running, self._is_completed = None, False

    def begin_work(self, step: int, microbatch: int) -> None:
        """Take the work of this step's microbatch for instructions that begin from now on."""
        if self._work is not None:
            self._variation.work = self._work(step, microbatch)

    def complete(self) -> None:
        """Wait until the emulated time of the running instruction is over; it may go on.

        What it does until its end is waiting for others, and no overrun.
        """
        self._advance()
        if self._running is not None and not self._is_completed:
            self._pad()
            self._is_completed = True

    def on_wait_begin(self) -> None:
        """Suspend the running instruction; the GPU draws its waiting power."""
        self._advance()
        self._execution.is_waiting = True

    def on_wait_end(self) -> None:
        """Resume the suspended instruction."""
        self._advance()
        self._execution.is_waiting = False

    def break_off(self) -> None:
        """End the running instruction where it is; without one it has no effect."""
        self._advance()
        self._execution.break_off()
        self._running, self._is_completed = None, False

    # ------------------------------------------------------------------ inside

    def _pad(self) -> None:
        """Wait until the running instruction's emulated time is over; count it if it is over."""
        execution = self._execution
        if execution.completed_s is None:
            self._sleep_until_completed()
        elif self.emulated_time_s() > execution.completed_s:
            self.num_overruns += 1

    def _sleep_until_completed(self) -> None:
        execution = self._execution
        # It waits for others only once it has computed: a wait that began before would never end.
        is_waiting, execution.is_waiting = execution.is_waiting, False
        while execution.completed_s is None:
            done_s = execution.completion_s()
            wall_s = self._wall_s(done_s)
            if self._timed is not None and self._timed[0] < wall_s:
                self._clock.sleep_until(self._timed[0])
                self._make_timed_request()
            else:
                self._clock.sleep_until(wall_s)
                self._make_timed_request()
                # Rounding may end the sleep slightly before the emulated moment.
                execution.advance(max(self.emulated_time_s(), done_s))
        execution.is_waiting = is_waiting

    def _advance(self) -> None:
        """Let time pass until now."""
        self._make_timed_request()
        self._execution.advance(self.emulated_time_s())

    def _make_timed_request(self) -> None:
        """Make the timed request that is due, at its moment."""
        if self._timed is not None and self._clock.now_s() >= self._timed[0]:
            (wall_s, sm_clock_mhz), self._timed = self._timed, None
            # A request before it that waits is served too.
            self._call(sm_clock_mhz, wall_s, replaces_waiting=False)

    def _request(self, sm_clock_mhz: int) -> None:
        self._make_timed_request()
        self._timed = None
        self._call(sm_clock_mhz, self._clock.now_s(), replaces_waiting=True)

    def _call(self, sm_clock_mhz: int, wall_s: float, *, replaces_waiting: bool) -> None:
        """Set a clock by a call that is requested at a moment of the wall clock, s."""
        calls = self._calls
        if sm_clock_mhz == calls.requested_mhz:
            return
        now_s = (wall_s - self._started_s) / self._time_scale
        self._execution.advance(now_s)
        if replaces_waiting and calls.is_waiting(now_s):
            calls.replace_waiting(sm_clock_mhz, now_s)
        else:
            call_time_s = calls.draw_call_time_s()
            starts_s = self._node.book_s(wall_s, call_time_s * self._time_scale)
            calls.begin(
                sm_clock_mhz,
                now_s,
                starts_s=now_s + (starts_s - wall_s) / self._time_scale,
                call_time_s=call_time_s,
            )
        self._execution.set_changes(calls.changes(now_s))

    def _wall_s(self, emulated_s: float) -> float:
        return self._started_s + emulated_s * self._time_scale

    def _check_clock(self, sm_clock_mhz: int) -> None:
        self._check_open()
        if sm_clock_mhz not in self._clocks_mhz:
            raise ValueError(f"{self.name} of stage {self._stage} has no {sm_clock_mhz} MHz")

    def _check_open(self) -> None:
        if self._is_closed:
            raise GpuError(f"{self.name} is closed; create another")

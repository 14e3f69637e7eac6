"""Contract of a clock governor, which sets the clocks that a session requests."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from flyball_client.gpu._base import ClockCall
from flyball_profiles.printable_text import printable

# Characters of a text that the planner stores.
_MAX_CHARACTERS = 256
# `no_clocks` of a governor that was closed.
CLOSED = "its session is closed"


@dataclass(frozen=True, kw_only=True)
class ClockReport:
    """Counts of the clocks requested since the governor's start.

    Attributes:
        num_switches: Number of clocks that were set.
        num_failures: Number of calls that failed to set a clock.
        num_reads: Number of readings while a clock was set, settled and under load.
        num_misses: Number of those that were below the clock that was set.
        num_power_capped: Number of misses caused by power.
        num_thermally_capped: Number of misses caused by heat.
        sm_clock_mhz: Last reading; None: not read yet.
        num_asserted: Number of clocks that were set again, since another program had changed them.
        num_samples: Number of readings, settled and under load, with or without a set clock.
        samples_mhz: Sum of those readings.
    """

    num_switches: int = 0
    num_failures: int = 0
    num_reads: int = 0
    num_misses: int = 0
    num_power_capped: int = 0
    num_thermally_capped: int = 0
    num_asserted: int = 0
    sm_clock_mhz: int | None = None
    num_samples: int = 0
    samples_mhz: int = 0

    def mean_sm_clock_mhz(self, since: ClockReport) -> float | None:
        """Return the mean of the samples since an earlier report, MHz; None: there are none.

        The mean is not weighted by time: samples are taken at most five times a second, no sooner
        than 50 ms after a switch, and not while the GPU is idle. Shorter clocks are missing from
        it, and longer ones have more weight than their time.
        """
        num, sum_mhz = self.num_samples - since.num_samples, self.samples_mhz - since.samples_mhz
        # Negative: the counting word has overflowed.
        return sum_mhz / num if num > 0 and sum_mhz > 0 else None


class ClockGovernor(Protocol):
    """Sets one GPU's SM clock for one rank, and restores it.

    Contract, tested over every implementation by `tests/contract/test_clock_governor.py`:

    - No method raises, but for a strict start, since training must not stop because of a clock.
      After a permanent failure no clock is set any more (`is_over`), which is logged once, and the
      clock is restored. A GPU that fails for a while is tried again.
    - Methods may be called from one thread at a time.
    - The latest request wins. A clock that is in force is not set again.
    - A timed request (`set_mhz_later`) is made at its time, never before, and replaced by any
      request, timed or not, before then. An earlier request that waits to be served is served
      before it.
    - A clock that was never set is not restored: another program's lock stays.
    - A clock that another program has changed is set again; a lower clock that comes back is left
      as it is until the next plan (`no_clocks` says so). On an emulated GPU there is no other
      program.
    - The clock is read back from time to time, also while none is set; a failed reading changes
      nothing.
    - After `close` no clock is set any more; it may be called repeatedly.
    """

    @property
    def is_over(self) -> bool:
        """Return whether clocks are no longer set."""
        ...

    @property
    def no_clocks(self) -> str | None:
        """Return why requested clocks are not set, in one line; None: they are."""
        ...

    def begin_plan(self) -> None:
        """Begin another plan, whose clocks are set although the last one's were yielded."""
        ...

    def start(self, *, strict: bool = False) -> None:
        """Prepare for requests; called before the first.

        Args:
            strict: True: return only when clocks can be set, and raise what prevents it.

        Raises:
            OSError: With `strict`, the process lacks something that a governor needs.
            GpuError: With `strict`, the governor cannot use the GPU.
        """
        ...

    def on_step_begin(self) -> None:
        """Start a training step; slow work is done here."""
        ...

    def set_mhz(self, sm_clock_mhz: int) -> None:
        """Set one of the GPU's supported clocks.

        Repeated calls renew the lease, and set the clock again if it was restored meanwhile.
        """
        ...

    def set_mhz_later(self, sm_clock_mhz: int, delay_s: float) -> None:
        """Set one of the GPU's supported clocks after a delay, which other hooks do not end.

        Args:
            sm_clock_mhz: Clock in MHz.
            delay_s: Time from now to the request in s, on an emulated GPU in emulated time; not
                negative.
        """
        ...

    def on_instruction_end(self, upcoming_mhz: int | None = None) -> None:
        """End an instruction, and request the clock of the next instruction.

        Args:
            upcoming_mhz: SM clock in MHz; None: it stays as it is, and is requested again where it
                was restored meanwhile.
        """
        ...

    def pause(self) -> None:
        """Restore the clock until the next one is set."""
        ...

    def give_up(self, error: Exception) -> None:
        """Restore the clock permanently, and log the error."""
        ...

    def report(self) -> ClockReport:
        """Return the counts so far."""
        ...

    def last_call(self) -> ClockCall | None:
        """Return the call of the last request for a clock; None: it has not returned, or failed.

        A timed request counts from when it is given, and its call's `requested_s` is its time.
        """
        ...

    def close(self) -> None:
        """Restore the clock permanently, and wait shortly until that is done."""
        ...


class NoGovernor:
    """ClockGovernor that is over from the beginning; the reason is logged by its maker."""

    def __init__(self, no_clocks: str) -> None:
        self.no_clocks = no_clocks

    @property
    def is_over(self) -> bool:
        """True."""
        return True

    def begin_plan(self) -> None:
        """Do nothing."""

    def start(self, *, strict: bool = False) -> None:
        """Do nothing."""

    def on_step_begin(self) -> None:
        """Do nothing."""

    def set_mhz(self, sm_clock_mhz: int) -> None:
        """Do nothing."""

    def set_mhz_later(self, sm_clock_mhz: int, delay_s: float) -> None:
        """Do nothing."""

    def on_instruction_end(self, upcoming_mhz: int | None = None) -> None:
        """Do nothing."""

    def pause(self) -> None:
        """Do nothing."""

    def give_up(self, error: Exception) -> None:
        """Do nothing."""

    def report(self) -> ClockReport:
        """Return no counts."""
        return ClockReport()

    def last_call(self) -> ClockCall | None:
        """Return None: no clock is set."""
        return None

    def close(self) -> None:
        """Do nothing."""


def log_given_up(logger: logging.Logger, rank_name: str, error: Exception) -> str:
    """Log the one line of `give_up`, and return its reason.

    It claims nothing of the clock, which may still be locked.
    """
    logger.warning("%s: clocks are no longer set, training continues: %s", rank_name, error)
    return shown(str(error)) or type(error).__name__


def shown(text: str) -> str:
    """Return a text in one printable line that the planner stores."""
    return printable(" ".join(text.split())[:_MAX_CHARACTERS])

"""The contract of a clock governor: what a session asks for clocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class ClockReport:
    """Counts of the clocks requested since the governor's start.

    Attributes:
        num_switches: clocks set.
        num_failures: calls that set a clock and failed.
        num_reads: times that the clock in force was read back, settled and under load.
        num_misses: of those, how often it was below the clock that was set.
        num_power_capped: of the misses, how often power held it down.
        num_thermally_capped: of the misses, how often heat did.
        sm_clock_mhz: as last read back; None: not yet.
        num_samples: times that the clock was read back settled and under load, also while none
            was set.
        samples_mhz: the sum of what was read then.
    """

    num_switches: int = 0
    num_failures: int = 0
    num_reads: int = 0
    num_misses: int = 0
    num_power_capped: int = 0
    num_thermally_capped: int = 0
    sm_clock_mhz: int | None = None
    num_samples: int = 0
    samples_mhz: int = 0

    def mean_sm_clock_mhz(self, since: ClockReport) -> float | None:
        """The mean of the samples since an earlier report, MHz; None: there are none.

        A mean over moments, and not over time: a sample is taken five times a second at most, no
        sooner than 50 ms after a switch and not while the GPU is idle. Clocks that last less
        have no part in it, and those that last long have more than their time.
        """
        num, sum_mhz = self.num_samples - since.num_samples, self.samples_mhz - since.samples_mhz
        # Below: the word that they are counted in has begun again.
        return sum_mhz / num if num > 0 and sum_mhz > 0 else None


class ClockGovernor(Protocol):
    """Sets one GPU's SM clock for one rank, and gives it back.

    Contract, tested over every implementation by `tests/contract/test_clock_governor.py`:

    - No method raises: training must not stop because a clock could not be set. What fails for
      good ends the setting of clocks (`is_over`), with one line in the log, and the clock is
      given back.
    - All methods belong to one thread at a time.
    - The latest request wins. A clock that is in force already is not set again.
    - A clock that was never set is not given back either: somebody else's lock stays.
    - The clock is read back now and then, also while none is set; a reading that fails is left
      out and changes nothing.
    - After `close` no clock is set any more; calling it again does nothing.
    """

    @property
    def is_over(self) -> bool:
        """Return whether the clock was given up or given back for good."""
        ...

    def start(self) -> None:
        """Be ready for requests; called before the first."""
        ...

    def on_step_begin(self) -> None:
        """A training step begins: the moment for whatever is too slow for an instruction."""
        ...

    def set_mhz(self, sm_clock_mhz: int) -> None:
        """Run at this clock from now on; it is one of the GPU's supported ones.

        Told again, it is a sign of life, and the clock is set again if it was given back meanwhile.
        """
        ...

    def on_instruction_end(self) -> None:
        """An instruction is over: a clock that was given back meanwhile is asked for again."""
        ...

    def pause(self) -> None:
        """Give the clock back until the next one is set."""
        ...

    def give_up(self, error: Exception) -> None:
        """Back to default clocks for good, with one line in the log."""
        ...

    def report(self) -> ClockReport:
        """Return what became of the requests so far."""
        ...

    def close(self) -> None:
        """Give the clock back for good, and wait a moment for it to be so."""
        ...

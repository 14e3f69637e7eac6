"""What the ranks of one stage measured in a step on one plan version, added up by the store."""

from __future__ import annotations

from dataclasses import dataclass

from flyball_server.jobs.records import Record


@dataclass(frozen=True, kw_only=True)
class StageTotals(Record):
    """A step over those ranks of a stage that ran one plan version in it.

    Attributes:
        plan_version: None: default clocks.
        num_ranks: that have posted it.
        time_s: the slowest rank's, s.
        energy_j: sum over the ranks, J; None where one could not read it.
        num_with_clock: ranks that read their SM clock back.
        sm_clock_mhz: mean over those ranks of what each read, MHz; None: there are none.
    """

    step: int
    stage: int
    plan_version: int | None
    num_ranks: int
    time_s: float
    energy_j: float | None
    num_clock_misses: int
    num_power_capped: int
    num_thermally_capped: int
    num_with_clock: int = 0
    sm_clock_mhz: float | None = None

    @property
    def place(self) -> tuple[int, int, int]:
        """What totals are ordered by: step, stage, version (none first)."""
        return self.step, self.stage, self.plan_version or 0

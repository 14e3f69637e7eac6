"""Steps of a job of two ranks, and their running totals, without a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flyball_server.jobs.measurements.step_fold import StepFold, version_fold
from flyball_server.jobs.measurements.step_pairs import CountingRule, StepKinds, WorkAtHighest
from flyball_server.jobs.step_records import StepTotals

NUM_RANKS = 2
NO_WORKS: Mapping[int, WorkAtHighest] = {}
_AS_PLANNED = {
    "num_unplanned": 0,
    "num_clock_misses": 0,
    "num_power_capped": 0,
    "num_thermally_capped": 0,
}


def steps(
    numbers: Iterable[int],
    version: int | None,
    *,
    time_s: float = 1.0,
    energy_j: float | None = 90.0,
    is_complete: bool = True,
    is_mixed: bool = False,
    **counts: int,
) -> list[StepTotals]:
    """Return these steps, of one version."""
    num_ranks = NUM_RANKS if is_complete else 1
    return [
        StepTotals(
            step=number,
            num_ranks=num_ranks,
            lowest_version=version,
            newest_version=version,
            num_with_plan=0 if version is None else 1 if is_mixed else num_ranks,
            time_s=time_s,
            energy_j=energy_j,
            **{**_AS_PLANNED, **counts},
        )
        for number in numbers
    ]


def fold_of(
    kinds: Mapping[int, StepKinds],
    measured: Iterable[StepTotals] = (),
    works: Mapping[int, WorkAtHighest] = NO_WORKS,
) -> StepFold:
    """Return the totals of these steps, of versions of these kinds, and with known work."""
    folded = StepFold(rule=CountingRule(num_ranks=NUM_RANKS))
    for step in measured:
        version = step.newest_version
        if version is not None and version not in folded.versions:
            folded.know(version, version_fold(kinds.get(version, StepKinds())))
        folded.add(step, works.get(step.step))
    return folded

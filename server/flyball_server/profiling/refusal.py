"""When what was measured is not good enough to plan with, and the sentence that says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flyball_server.profiling.findings import StageFindings
from flyball_server.profiling.observations import Z_95, ProbeSetup
from flyball_server.profiling.walk import needed_points

# Of a single instruction's time: with more of it a mean of many says little.
_MOST_SCATTER = 0.5


def why_unusable(setup: ProbeSetup, findings: Sequence[StageFindings]) -> str | None:
    """What no further step can mend, in one sentence; None: nothing."""
    return _first(findings, lambda of_stage: _unusable(setup, of_stage))


def why_uncertain(setup: ProbeSetup, findings: Sequence[StageFindings]) -> str | None:
    """Which point is not known well enough, in one sentence; None: none."""
    return _first(findings, lambda of_stage: _uncertain(setup, of_stage))


def _first(
    findings: Sequence[StageFindings], problem_of: Callable[[StageFindings], str | None]
) -> str | None:
    for of_stage in findings:
        problem = problem_of(of_stage)
        if problem is not None:
            return f"stage {of_stage.stage}: {problem}"
    return None


def _unusable(setup: ProbeSetup, findings: StageFindings) -> str | None:
    known = np.isfinite(findings.table.energy_j)
    if not known.any():
        return "no step's energy could be read from its energy counters"
    if findings.energies is None:
        return (
            f"its energy counters have not moved in {int(known.sum())} steps; energy cannot be"
            " measured there"
        )
    worst = int(np.argmax(findings.times.scatter))
    scatter = float(findings.times.scatter[worst])
    if scatter > _MOST_SCATTER:
        named = findings.points.classes[worst].named(setup.schedule.num_chunks)
        return (
            f"{named} takes a time that scatters by {100 * scatter:.0f} % from one to the next;"
            f" at most {100 * _MOST_SCATTER:.0f} % can be averaged out"
        )
    return None


def _uncertain(setup: ProbeSetup, findings: StageFindings) -> str | None:
    points, needed = findings.points, needed_points(findings)
    probed = needed[findings.times.num_probes[needed] > 0]
    for index, of_class in enumerate(points.classes):
        if np.count_nonzero(probed // len(points.clocks_mhz) == index) < 2:
            named = of_class.named(setup.schedule.num_chunks)
            return (
                f"{named} could not be run below {points.clocks_mhz[0]} MHz without more than"
                f" {100 * setup.slowdown_cap:g} % of slowdown, noise included; allow more"
            )
    for name, errors, limit in (
        ("time", findings.time_share_error(), setup.limits.time),
        ("energy", findings.energy_share_error(), setup.limits.energy),
    ):
        worst = int(probed[np.argmax(errors[probed])])
        error = Z_95 * float(errors[worst])
        if error > limit:
            class_index, clock_index = divmod(worst, len(points.clocks_mhz))
            named = points.classes[class_index].named(setup.schedule.num_chunks)
            return (
                f"the {name} of {named} at {points.clocks_mhz[clock_index]} MHz is known within"
                f" {100 * error:.1f} % only (95 %) after {len(findings.table.step)} steps; the"
                f" limit is {100 * limit:.1f} %"
            )
    return None

"""When what was measured is not good enough to plan with, and the sentence that says so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flyball_server.profiling.findings import StageFindings
from flyball_server.profiling.observations import Z_95, ProbeSetup
from flyball_server.profiling.walk import needed_points

# Of a single instruction's time: with more of it a mean of many says little.
_MOST_SCATTER = 0.5


def why_refused(
    setup: ProbeSetup, findings: Sequence[StageFindings], *, is_over: bool
) -> str | None:
    """One sentence, or None where there is nothing against planning.

    Args:
        is_over: no more steps will be probed, so that errors must be within their limits.
    """
    for of_stage in findings:
        problem = _unusable(setup, of_stage)
        if problem is None and is_over:
            problem = _too_uncertain(setup, of_stage)
        if problem is not None:
            return f"stage {of_stage.stage}: {problem}"
    return None


def _unusable(setup: ProbeSetup, findings: StageFindings) -> str | None:
    table = findings.table
    known = np.isfinite(table.energy_j)
    if not known.any():
        return "no step's energy could be read from its energy counters"
    if table.energy_j[known].sum() <= 0:
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


def _too_uncertain(setup: ProbeSetup, findings: StageFindings) -> str | None:
    probed = needed_points(findings)
    probed = probed[findings.times.num_probes[probed] > 0]
    for name, errors, limit in (
        ("time", findings.time_share_error(), setup.limits.time),
        ("energy", findings.energy_share_error(), setup.limits.energy),
    ):
        worst = int(probed[np.argmax(errors[probed])])
        error = Z_95 * float(errors[worst])
        if error > limit:
            class_index, clock_index = divmod(worst, len(findings.points.clocks_mhz))
            named = findings.points.classes[class_index].named(setup.schedule.num_chunks)
            return (
                f"the {name} of {named} at {findings.points.clocks_mhz[clock_index]} MHz is known"
                f" within {100 * error:.1f} % only (95 %) after {len(findings.table.step)} steps;"
                f" the limit is {100 * limit:.1f} %"
            )
    return None

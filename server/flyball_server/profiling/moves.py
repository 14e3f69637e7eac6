"""Choice of the next action from all observations: probe, wait, finish or refuse.

One pure function of all that is known, so that a planner that starts again goes on by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_server.planning.probe_plan import ProbePlan
from flyball_server.profiling.findings import StageFindings, find
from flyball_server.profiling.iterations import (
    Iteration,
    baseline_of,
    iterations,
    probing_cost,
    underestimate,
)
from flyball_server.profiling.mixed_model import FloatArray
from flyball_server.profiling.observations import (
    MAX_WITH_WAITING,
    Z_95,
    ErrorLimits,
    ProbedVersion,
    ProbeSetup,
    StageStep,
)
from flyball_server.profiling.profiling_result import ProfilingResult, result_of
from flyball_server.profiling.version_design import baseline_plan, probe_plan
from flyball_server.profiling.walk import Arm, coarse_levels, needed_points, walking_arms

# Of a single instruction's time: with more of it a mean of many says little.
_MOST_SCATTER = 0.5


def _first(
    findings: Sequence[StageFindings], problem_of: Callable[[StageFindings], str | None]
) -> str | None:
    """Return the first stage's problem, in one sentence; None: there is none."""
    for of_stage in findings:
        problem = problem_of(of_stage)
        if problem is not None:
            return f"stage {of_stage.stage}: {problem}"
    return None


def _unusable(setup: ProbeSetup, findings: StageFindings) -> str | None:
    """Return what no further step can mend."""
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
    """Return which point is not known well enough."""
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


# Of the limits at 95 %, where probing a point stops: half, so that nearly every one keeps them.
_GOAL = 0.5


def _goals(findings: StageFindings, limits: ErrorLimits) -> tuple[FloatArray, FloatArray]:
    """Per point, relative variances of time and energy that are small enough."""
    share = np.where(findings.times.num_probes > 0, _GOAL, 1.0) / Z_95
    return (share * limits.time) ** 2, (share * limits.energy) ** 2


def is_known(findings: StageFindings, limits: ErrorLimits) -> bool:
    """Return whether every needed point's errors are as small as they have to be."""
    needed, (time_goal, energy_goal) = needed_points(findings), _goals(findings, limits)
    return bool(
        (findings.time_share_error() ** 2 <= time_goal)[needed].all()
        and (findings.energy_share_error() ** 2 <= energy_goal)[needed].all()
    )


def refining_arms(
    findings: StageFindings, limits: ErrorLimits, *, num_blocks: int, block: int
) -> list[Arm | None]:
    """Return the points to probe, one a block of steps; None: none, for the blocking power.

    One after the other: each block is worth what it takes off the sum of squared error
    variances, all relative to their goals, after those chosen before it.
    """
    energies = findings.energies
    if energies is None:  # refused before it comes to this
        return [None] * num_blocks
    num_clocks = len(findings.points.clocks_mhz)
    needed, (time_goals, energy_goals) = needed_points(findings), _goals(findings, limits)
    number, count, readings = _candidates(findings, energies.num_ranks)
    # Inverse variance of the time's logarithm that a step adds.
    certainty = count / findings.times.scatter[number // num_clocks] ** 2
    covariance = energies.covariance
    energy_goal = energy_goals[needed] * energies.mean_j[needed] ** 2
    time_variance, time_goal = findings.time_share_error() ** 2, time_goals[number]
    # A block's mean energy: each step's own scatter, and the counter at the block's two ends.
    noise = energies.step_noise_j**2 / block + 2 * energies.lateness_noise_j**2 / block**2
    arms: list[Arm | None] = []
    for _ in range(num_blocks):
        effects = covariance @ readings
        spread = (readings * effects).sum(axis=0) + noise
        lowered = np.diag(covariance)[needed, None] - effects[needed] ** 2 / spread
        excess = np.square(np.maximum(lowered, 0.0) / energy_goal[:, None]).sum(axis=0)
        before = time_variance[number]
        after = np.where(count > 0, 1 / (1 / before + block * certainty), before)
        best = int(np.argmin(excess - (before**2 - after**2) / time_goal**2))
        covariance = covariance - np.outer(effects[:, best], effects[:, best]) / spread[best]
        time_variance[number[best]] = after[best]
        arms.append(Arm(*divmod(int(number[best]), num_clocks)) if count[best] else None)
    return arms


def _candidates(
    findings: StageFindings, num_ranks: int
) -> tuple[NDArray[np.int64], FloatArray, FloatArray]:
    """Points that a stage could probe in a step; the last one probes nothing; m of them.

    Returns:
        Their numbers; how many instructions of a step could run there; and a step's energy as a
        sum of energies and blocking power, shape (num_points + 1, m).
    """
    points, times = findings.points, findings.times
    tops = points.highest()
    number = np.array([n for n in needed_points(findings) if n not in tops] + [tops[0]])
    top = tops[number // len(points.clocks_mhz)]
    count = _counts_per_step(findings)[number]
    count[-1] = 0.0
    columns = np.arange(len(number))
    readings = np.zeros((points.num_points + 1, len(number)))
    readings[tops] = _instructions_per_step(findings)[:, None]
    readings[number, columns] += count
    readings[top, columns] -= count
    idle_s = _idle_at_rest_s(findings) - count * (times.mean_s[number] - times.mean_s[top])
    readings[-1] = num_ranks * np.maximum(idle_s, 0.0)
    return number, count, readings


def _instructions_per_step(findings: StageFindings) -> FloatArray:
    """Per class, how many instructions a step has."""
    points = findings.points
    counts = findings.table.counts[-1]
    per_class: FloatArray = counts.reshape(len(points.classes), -1).sum(axis=1)
    return per_class


def _idle_at_rest_s(findings: StageFindings) -> float:
    """Return the stage's idle time in a step where the others probe and it does not, s."""
    table, times = findings.table, findings.times
    tops = findings.points.highest()
    busy_s = (table.counts * times.mean_s).sum(axis=1)
    at_rest_s = float(_instructions_per_step(findings) @ times.mean_s[tops])
    below = table.counts.sum(axis=1) > table.counts[:, tops].sum(axis=1)
    rows = below if below.any() else np.ones(len(table.step), dtype=np.bool_)
    return float((table.idle_s + busy_s - at_rest_s)[rows].mean())


def _counts_per_step(findings: StageFindings) -> FloatArray:
    """Per point, how many instructions of a step could run at it, from those that did."""
    counts = findings.table.counts
    rows = (counts > 0).sum(axis=0)
    seen = counts.sum(axis=0) / np.maximum(rows, 1)
    num_clocks = len(findings.points.clocks_mhz)
    clocks = np.arange(num_clocks)
    guessed = np.empty_like(seen)
    for top in findings.points.highest():
        of_class = seen[top : top + num_clocks]
        # The highest clock's own count is of steps that had little else.
        below = np.flatnonzero(of_class)
        below = below[below > 0]
        guessed[top : top + num_clocks] = (
            np.interp(clocks, below, of_class[below]) if len(below) else of_class[0] / 4
        )
    counts_per_step: FloatArray = np.maximum(guessed, 1.0)
    return counts_per_step


# Steps at the highest clocks before anything else.
_BASELINE_STEPS = 12
# How many steps a change of version is late, counted on.
_DELAY_STEPS = 6
_LONGEST_BLOCK = 6
# A version for fewer steps is not worth its delay.
_FEWEST_STEPS = 8
# Of all steps, those planned for the walk down the window.
_WALK_SHARE = 0.55
_REFINING_BLOCKS = 6
# Limit on the wait for a version, as a multiple of its steps, where steps are not clean.
_PATIENCE = 2


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Give the ranks this plan as the next version.

    Attributes:
        so_far: estimates when it is made; None: none.
    """

    plan: ProbePlan
    so_far: ProfilingResult | None = None


@dataclass(frozen=True, kw_only=True)
class KeepWatching:
    """Nothing to do before `num_steps` more steps have been observed (at least 1)."""

    num_steps: int


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The profile is known as well as it has to be."""

    result: ProfilingResult


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The measurements are not good enough to plan with.

    Attributes:
        problem: why, in one sentence.
        so_far: estimates so far; None: none.
    """

    problem: str
    so_far: ProfilingResult | None = None


Move = Probe | KeepWatching | Finished | Refused


def easy_move(
    setup: ProbeSetup, versions: Sequence[ProbedVersion], observed: Sequence[StageStep]
) -> Probe | KeepWatching | None:
    """Return the next move where nothing has to be estimated for it; else None. As `next_move`."""
    if not versions:
        return Probe(plan=baseline_plan(setup))
    newest, first_step = versions[-1], versions[0].first_step
    if newest.first_step is None or first_step is None:
        return KeepWatching(num_steps=1)
    steps = iterations(setup, [step for step in observed if step.step >= first_step])
    remaining = _remaining_steps(setup, versions, steps)
    missing = _missing_steps(newest, steps)
    return KeepWatching(num_steps=min(missing, remaining)) if min(missing, remaining) > 0 else None


def next_move(
    setup: ProbeSetup, versions: Sequence[ProbedVersion], observed: Sequence[StageStep]
) -> Move:
    """Return what to do next.

    Args:
        setup: setup of the profiling.
        versions: given to the ranks so far, oldest first.
        observed: every step of every stage so far, in any order.
    """
    easy = easy_move(setup, versions, observed)
    if easy is not None:
        return easy
    first_step = versions[0].first_step or 0
    observed = [step for step in observed if step.step >= first_step]
    steps = iterations(setup, observed)
    num_steps, remaining = _num_steps(versions, steps), _remaining_steps(setup, versions, steps)
    baseline = baseline_of(steps)
    findings = find(setup, observed)
    if baseline is None or len(findings) < setup.schedule.num_stages:
        return Refused(problem=_no_clean_steps(num_steps))
    so_far = result_of(setup, findings, num_steps, probing_cost(steps, baseline))
    problem = _first(findings, lambda of_stage: _unusable(setup, of_stage))
    design = None if problem else _next_design(setup, findings, remaining)
    if design is not None:
        arms, block = design
        margin = underestimate(steps, baseline, versions)
        plan = probe_plan(setup, findings, arms, block=block, baseline=baseline, margin=margin)
        return Probe(plan=plan, so_far=so_far)
    if problem is None:
        problem = _first(findings, lambda of_stage: _uncertain(setup, of_stage))
        newest = versions[-1].version
        if problem is not None and all(step.version != newest for step in steps):
            problem = (
                f"not all ranks ran version {newest} within {num_steps} steps; look into the"
                " ranks' logs"
            )
    return Refused(problem=problem, so_far=so_far) if problem else Finished(result=so_far)


def _no_clean_steps(num_steps: int) -> str:
    return (
        f"none of {num_steps} steps ran at the highest clocks as planned on every stage; clocks"
        " that cannot be set, or hooks that are not called, leave nothing to measure"
    )


def _num_steps(versions: Sequence[ProbedVersion], steps: Sequence[Iteration]) -> int:
    return steps[-1].step - (versions[0].first_step or 0) + 1 if steps else 0


def _needed_steps(version: ProbedVersion) -> int:
    return max(version.plan.num_steps, _BASELINE_STEPS)


def _remaining_steps(
    setup: ProbeSetup, versions: Sequence[ProbedVersion], steps: Sequence[Iteration]
) -> int:
    """Return how many more steps may be probed.

    A version runs until the next one is there. Where steps are short, most of them wait for the
    planner: beyond `_DELAY_STEPS` they do not count, until all are `MAX_WITH_WAITING` times the
    limit.
    """
    clean = Counter(step.version for step in steps if step.is_clean)
    num_waiting = sum(
        max(0, clean[version.version] - _needed_steps(version) - _DELAY_STEPS)
        for version in versions
    )
    num_steps = _num_steps(versions, steps)
    return setup.max_steps - max(num_steps - num_waiting, num_steps // MAX_WITH_WAITING)


def _missing_steps(newest: ProbedVersion, steps: Sequence[Iteration]) -> int:
    """Return how many more steps the newest version needs; 0: it has been seen enough."""
    needed = _needed_steps(newest)
    of_version = [step for step in steps if step.version == newest.version]
    clean = sum(step.is_clean for step in of_version)
    return min(needed - clean, _PATIENCE * needed - len(of_version))


def _next_design(
    setup: ProbeSetup, findings: Sequence[StageFindings], remaining: int
) -> tuple[list[list[Arm | None]], int] | None:
    """Per stage the points to probe, and in how many steps each; None: nothing more."""
    block = _block_steps(setup)
    walking = [walking_arms(of_stage) for of_stage in findings]
    longest = max(map(len, walking))
    if not longest and all(is_known(of_stage, setup.limits) for of_stage in findings):
        return None
    num_blocks = longest + 1 if longest else _REFINING_BLOCKS
    affordable = remaining - _DELAY_STEPS
    if affordable < _FEWEST_STEPS:
        return None
    if affordable < num_blocks * block:
        block = max(1, affordable // num_blocks)
        num_blocks = min(num_blocks, affordable // block)
    arms = [
        _arms_of(setup, of_stage, of_walk[:num_blocks], num_blocks=num_blocks, block=block)
        for of_walk, of_stage in zip(walking, findings, strict=True)
    ]
    return arms, block


def _arms_of(
    setup: ProbeSetup,
    findings: StageFindings,
    walking: Sequence[Arm],
    *,
    num_blocks: int,
    block: int,
) -> list[Arm | None]:
    """Return a stage's arm in each block: its walk and one block at rest, or what refines most."""
    arms: list[Arm | None] = [*walking, None][:num_blocks] if walking else []
    missing = num_blocks - len(arms)
    return arms + refining_arms(findings, setup.limits, num_blocks=missing, block=block)


def _block_steps(setup: ProbeSetup) -> int:
    """Steps in a row at the same clocks: the counter's lateness counts once in a row."""
    num_arms = max(
        len(setup.classes_of(stage))
        * len(coarse_levels(len(setup.clocks_mhz[stage]), len(setup.classes_of(stage))))
        for stage in range(setup.schedule.num_stages)
    )
    return max(1, min(_LONGEST_BLOCK, round(_WALK_SHARE * setup.max_steps / num_arms)))

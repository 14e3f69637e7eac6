"""Choice of the next action from all observations: probe, wait, finish or refuse.

One pure function of all that is known, so that a planner that starts again goes on by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.rank_merge import whole_stages
from flyball_profiles.stage_profile import MAX_JITTER, OperatingPoint, StageProfile
from flyball_server.profiling.arms import needed_points, next_arms
from flyball_server.profiling.differing_work import FEWEST_STEPS, work_scatter
from flyball_server.profiling.observations import (
    MAX_WITH_WAITING,
    Z_95,
    ErrorLimits,
    ProbedVersion,
    ProbeSetup,
    StageStep,
)
from flyball_server.profiling.stage_estimates import StageFindings, find
from flyball_server.profiling.version_design import ProbedBaseline, baseline_plan, probe_plan
from flyball_wire.online_profiling import ProbedPoint, ProfilingResult, ProfilingState
from flyball_wire.plans.plan import Plan

# Of a single instruction's time: with more of it a mean of many says little.
_MOST_SCATTER = 0.5
# Steps at the highest clocks before anything else; their work is compared.
_BASELINE_STEPS = FEWEST_STEPS
# How many steps a change of version is late, counted on.
_DELAY_STEPS = 6
# Limit on the wait for a version, as a multiple of its steps, where steps are not clean.
_PATIENCE = 2


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Give the ranks this plan as the next version."""

    plan: Plan


@dataclass(frozen=True, kw_only=True)
class KeepWatching:
    """Nothing to do before `num_steps` more steps have been observed (at least 1)."""

    num_steps: int


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The profile is known as well as it has to be.

    Attributes:
        profile: with those of its chunks if there are any.
    """

    result: ProfilingResult
    profile: StageProfile


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The measurements are not good enough to plan with; `problem` says why, in one sentence."""

    problem: str


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
    steps = _iterations(setup, versions, observed)
    missing = min(_missing_steps(newest, steps), _remaining_steps(setup, versions, steps))
    return KeepWatching(num_steps=missing) if missing > 0 else None


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
    steps = _iterations(setup, versions, observed)
    num_steps = _num_steps(versions, steps)
    first_step = versions[0].first_step or 0
    baseline = _baseline_of(steps)
    current = [step for step in observed if step.step >= first_step]
    findings = find(setup, current)
    if baseline is None or len(findings) < setup.schedule.num_stages:
        return Refused(
            problem=f"none of {num_steps} steps ran at the highest clocks as planned on every"
            " stage; clocks that cannot be set, or hooks that are not called, leave nothing to"
            " measure"
        )
    problem = _differing_work(setup, current)
    problem = problem or _first_problem(_unusable(setup, of_stage) for of_stage in findings)
    if problem is not None:
        return Refused(problem=problem)
    remaining = _remaining_steps(setup, versions, steps) - _DELAY_STEPS
    arms = next_arms(setup, findings, remaining)
    if arms is not None:
        margin = _underestimate(steps, baseline, versions)
        return Probe(
            plan=probe_plan(
                setup, findings, arms[0], block=arms[1], baseline=baseline, margin=margin
            )
        )
    problem = _first_problem(_uncertain(setup, of_stage) for of_stage in findings)
    if problem is None:
        return _finished(setup, findings, steps, baseline, num_steps)
    newest = versions[-1].version
    if all(step.version != newest for step in steps):
        problem = (
            f"not all ranks ran version {newest} within {num_steps} steps; look into the ranks'"
            " logs"
        )
    return Refused(problem=problem)


@dataclass(frozen=True, kw_only=True)
class _Iteration:
    """One step of the whole pipeline.

    Attributes:
        version: that all stages ran; None: they differ, or ran none.
        time_s: time of the slowest stage, s.
        energy_j: energy of all stages, J; None: one is unknown.
        is_highest: all instructions ran at their stage's highest clock.
        is_clean: all stages ran as planned.
    """

    step: int
    version: int | None
    time_s: float
    energy_j: float | None
    is_highest: bool
    is_clean: bool


def _iterations(
    setup: ProbeSetup, versions: Sequence[ProbedVersion], observed: Iterable[StageStep]
) -> list[_Iteration]:
    """Return the steps since the first version that every stage has reported, by number."""
    first_step = versions[0].first_step or 0
    by_step: dict[int, dict[int, StageStep]] = {}
    for each in observed:
        if each.step >= first_step:
            by_step.setdefault(each.step, {})[each.stage] = each
    return [
        _iteration(setup, step, list(stages.values()))
        for step, stages in sorted(by_step.items())
        if len(stages) == setup.schedule.num_stages
    ]


def _iteration(setup: ProbeSetup, step: int, stages: Sequence[StageStep]) -> _Iteration:
    versions = {stage.version for stage in stages}
    energies_j = [stage.energy_j for stage in stages if stage.energy_j is not None]
    return _Iteration(
        step=step,
        version=versions.pop() if len(versions) == 1 else None,
        time_s=max(stage.iteration_time_s / stage.work for stage in stages),
        energy_j=sum(energies_j) if len(energies_j) == len(stages) else None,
        is_highest=all(
            times.sm_clock_mhz == setup.clocks_mhz[stage.stage][0]
            for stage in stages
            for times in stage.instructions
        ),
        is_clean=all(stage.is_clean for stage in stages),
    )


def _baseline_of(steps: Iterable[_Iteration]) -> ProbedBaseline | None:
    """Return the clean steps at the highest clocks; None: fewer than two."""
    highest = [step for step in steps if step.is_highest and step.is_clean]
    if len(highest) < 2:
        return None
    times_s = np.array([step.time_s for step in highest])
    energies_j = [step.energy_j for step in highest if step.energy_j is not None]
    return ProbedBaseline(
        iteration_time_s=float(times_s.mean()),
        deviation_s=float(times_s.std(ddof=1)),
        energy_j=float(np.mean(energies_j)) if energies_j else None,
    )


def _underestimate(
    steps: Iterable[_Iteration], baseline: ProbedBaseline, versions: Iterable[ProbedVersion]
) -> float:
    """Return by how much the slowest step was beyond its version's prediction, as a share.

    It is at least 0. Versions that probe nothing are left out: nothing could be predicted when
    they were made.
    """
    predicted_s = {
        version.version: version.plan.iteration_time_s
        for version in versions
        if len(version.plan.cycle_mhz) > 1
    }
    beyond_s = [
        step.time_s - predicted_s[step.version]
        for step in steps
        if step.is_clean and step.version in predicted_s
    ]
    return max(0.0, *beyond_s) / baseline.iteration_time_s if beyond_s else 0.0


def _num_steps(versions: Sequence[ProbedVersion], steps: Sequence[_Iteration]) -> int:
    return steps[-1].step - (versions[0].first_step or 0) + 1 if steps else 0


def _needed_steps(version: ProbedVersion) -> int:
    return max(len(version.plan.cycle_mhz), _BASELINE_STEPS)


def _remaining_steps(
    setup: ProbeSetup, versions: Sequence[ProbedVersion], steps: Sequence[_Iteration]
) -> int:
    """Return how many more steps may be probed.

    A version runs until the next version is there. Where steps are short, most of them wait for the
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


def _missing_steps(newest: ProbedVersion, steps: Sequence[_Iteration]) -> int:
    """Return how many more steps the newest version needs; 0: it has been seen enough."""
    needed = _needed_steps(newest)
    of_version = [step for step in steps if step.version == newest.version]
    clean = sum(step.is_clean for step in of_version)
    return min(needed - clean, _PATIENCE * needed - len(of_version))


def _first_problem(problems: Iterable[str | None]) -> str | None:
    """Return the first stage's problem, in one sentence; None: there is none."""
    return next(
        (f"stage {stage}: {problem}" for stage, problem in enumerate(problems) if problem), None
    )


def _differing_work(setup: ProbeSetup, observed: Iterable[StageStep]) -> str | None:
    """Return the refusal of steps that differ in more than noise; None: they do not."""
    scatter = work_scatter(setup, observed)
    if scatter is None:
        return None
    return (
        "the work of steps differs: times of all instructions rise and fall together, a"
        f" microbatch's by {100 * scatter:.0f} %; one plan for all steps would make them longer."
        " Pack or pad the inputs to one length while the job is profiled and planned; without a"
        " plan it keeps its highest clocks"
    )


def _unusable(setup: ProbeSetup, findings: StageFindings) -> str | None:
    """Return what no further step can mend."""
    num_known = np.count_nonzero(np.isfinite(findings.table.energy_j))
    if not num_known:
        return "no step's energy could be read from its energy counters"
    if findings.energies is None:
        return (
            f"its energy counters have not moved in {num_known} steps; energy cannot be"
            " measured there"
        )
    worst = int(np.argmax(findings.times.scatter))
    scatter = float(findings.times.scatter[worst])
    if scatter <= _MOST_SCATTER:
        return None
    named = findings.points.classes[worst].named(setup.schedule.num_chunks)
    return (
        f"{named} takes a time that scatters by {100 * scatter:.0f} % from one to the next;"
        f" at most {100 * _MOST_SCATTER:.0f} % can be averaged out"
    )


def _uncertain(setup: ProbeSetup, findings: StageFindings) -> str | None:
    """Return which point is not known well enough."""
    clocks_mhz, needed = findings.points.clocks_mhz, needed_points(findings)
    named = [of_class.named(setup.schedule.num_chunks) for of_class in findings.points.classes]
    probed = needed[findings.times.num_probes[needed] > 0]
    for index, name in enumerate(named):
        if np.count_nonzero(probed // len(clocks_mhz) == index) < 2:
            return (
                f"{name} could not be run below {clocks_mhz[0]} MHz without more than"
                f" {100 * setup.slowdown_cap:g} % of slowdown, noise included; allow more"
            )
    for quantity, errors, limit in (
        ("time", findings.time_share_error(), setup.limits.time),
        ("energy", findings.energy_share_error(), setup.limits.energy),
    ):
        worst = int(probed[np.argmax(errors[probed])])
        error = Z_95 * float(errors[worst])
        if error > limit:
            class_index, clock_index = divmod(worst, len(clocks_mhz))
            return (
                f"the {quantity} of {named[class_index]} at {clocks_mhz[clock_index]} MHz is known"
                f" within {100 * error:.1f} % only (95 %) after {len(findings.table.step)} steps;"
                f" the limit is {100 * limit:.1f} %"
            )
    return None


def _finished(
    setup: ProbeSetup,
    findings: Sequence[StageFindings],
    steps: Iterable[_Iteration],
    baseline: ProbedBaseline,
    num_steps: int,
) -> Finished:
    """Return the profile with its errors, and the cost of the clean steps below the highest clocks.

    Points go down to each class's floor; interpolated ones are within their limits only.
    """
    probing = [step for step in steps if not step.is_highest and step.is_clean]
    extra_s = [step.time_s - baseline.iteration_time_s for step in probing]
    extra_j = [
        step.energy_j - baseline.energy_j
        for step in probing
        if step.energy_j is not None and baseline.energy_j is not None
    ]
    known = [of_stage.energies for of_stage in findings if of_stage.energies is not None]
    is_measured = setup.blocking_power_w is None
    points = tuple(point for of_stage in findings for point in _points_of(of_stage, setup.limits))
    result = ProfilingResult(
        state=ProfilingState.FINISHED,
        num_steps=num_steps,
        points=points,
        blocking_power_w=tuple(estimate.blocking_power_w for estimate in known)
        if is_measured
        else None,
        blocking_power_error_w=(
            tuple(estimate.blocking_power_error_w for estimate in known) if is_measured else None
        ),
        largest_slowdown=max(extra_s) / baseline.iteration_time_s if extra_s else None,
        extra_time_s=sum(extra_s),
        extra_energy_j=sum(extra_j) if extra_j else None,
    )
    return Finished(result=result, profile=_profile_of(setup, points))


def _points_of(findings: StageFindings, limits: ErrorLimits) -> Iterator[ProbedPoint]:
    points, times, energies = findings.points, findings.times, findings.energies
    if energies is None:  # refused before it comes to this
        return
    is_known = (Z_95 * findings.time_share_error() <= limits.time) & (
        Z_95 * findings.energy_share_error() <= limits.energy
    )
    for number in needed_points(findings):
        if not (times.num_probes[number] or is_known[number]):
            continue
        class_index, clock_index = divmod(int(number), len(points.clocks_mhz))
        kind, chunk = points.classes[class_index]
        yield ProbedPoint(
            stage=findings.stage,
            instruction=str(kind),
            chunk=chunk,
            frequency_mhz=points.clocks_mhz[clock_index],
            time_s=float(times.mean_s[number]),
            time_error_s=float(times.error_s[number]),
            energy_j=float(energies.mean_j[number]),
            energy_error_j=float(energies.error_j[number]),
            num_probes=int(times.num_probes[number]),
            jitter=min(float(times.scatter[class_index]), MAX_JITTER),
        )


def _profile_of(setup: ProbeSetup, points: Iterable[ProbedPoint]) -> StageProfile:
    chunks: list[dict[tuple[int, InstructionKind], tuple[OperatingPoint, ...]]]
    chunks = [{} for _ in range(setup.schedule.num_chunks)]
    for point in points:
        key = (point.stage, InstructionKind(point.instruction))
        chunks[point.chunk][key] = (
            *chunks[point.chunk].get(key, ()),
            OperatingPoint(
                frequency_mhz=point.frequency_mhz,
                time_s=point.time_s,
                energy_j=point.energy_j,
                time_error_s=point.time_error_s,
                jitter=point.jitter,
            ),
        )
    profiles = tuple(
        StageProfile(points=of_chunk, num_ranks_per_stage=setup.num_ranks) for of_chunk in chunks
    )
    return profiles[0] if len(profiles) == 1 else whole_stages(profiles)

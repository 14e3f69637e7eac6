"""What to do next, from everything observed so far: probe, wait, finish or refuse.

One pure function of all that is known, so that a planner that starts again goes on by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flyball_server.planning.probe_plan import ProbePlan
from flyball_server.profiling.findings import StageFindings, find
from flyball_server.profiling.iterations import (
    Iteration,
    baseline_of,
    iterations,
    probing_cost,
    underestimate,
)
from flyball_server.profiling.observations import ProbedVersion, ProbeSetup, StageStep
from flyball_server.profiling.profiling_result import ProfilingResult, result_of
from flyball_server.profiling.refining import is_known, refining_arms
from flyball_server.profiling.refusal import why_uncertain, why_unusable
from flyball_server.profiling.version_design import baseline_plan, probe_plan
from flyball_server.profiling.walk import Arm, coarse_levels, walking_arms

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
# A version is not waited for longer than so many times its steps, where steps are not clean.
_PATIENCE = 2


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Give the ranks this plan as the next version.

    Attributes:
        so_far: what is known when it is made; None: nothing.
    """

    plan: ProbePlan
    so_far: ProfilingResult | None = None


@dataclass(frozen=True, kw_only=True)
class KeepWatching:
    """Nothing to do before so many more steps have been observed (at least 1)."""

    num_steps: int


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The profile is known as well as it has to be."""

    result: ProfilingResult


@dataclass(frozen=True, kw_only=True)
class Refused:
    """What was measured is not good enough to plan with.

    Attributes:
        problem: why, in one sentence.
        so_far: what is known nevertheless; None: nothing.
    """

    problem: str
    so_far: ProfilingResult | None = None


Move = Probe | KeepWatching | Finished | Refused


def easy_move(
    setup: ProbeSetup, versions: Sequence[ProbedVersion], observed: Sequence[StageStep]
) -> Probe | KeepWatching | None:
    """The next move where nothing has to be estimated for it; else None. As `next_move`."""
    if not versions:
        return Probe(plan=baseline_plan(setup))
    newest, first_step = versions[-1], versions[0].first_step
    if newest.first_step is None or first_step is None:
        return KeepWatching(num_steps=1)
    steps = iterations(setup, [step for step in observed if step.step >= first_step])
    num_steps = steps[-1].step - first_step + 1 if steps else 0
    remaining = setup.max_steps - num_steps
    missing = _missing_steps(newest, steps)
    return KeepWatching(num_steps=min(missing, remaining)) if min(missing, remaining) > 0 else None


def next_move(
    setup: ProbeSetup, versions: Sequence[ProbedVersion], observed: Sequence[StageStep]
) -> Move:
    """What to do next.

    Args:
        setup: what is profiled.
        versions: given to the ranks so far, oldest first.
        observed: every step of every stage so far, in any order.
    """
    easy = easy_move(setup, versions, observed)
    if easy is not None:
        return easy
    first_step = versions[0].first_step or 0
    observed = [step for step in observed if step.step >= first_step]
    steps = iterations(setup, observed)
    num_steps = steps[-1].step - first_step + 1 if steps else 0
    remaining = setup.max_steps - num_steps
    baseline = baseline_of(steps)
    findings = find(setup, observed)
    if baseline is None or len(findings) < setup.schedule.num_stages:
        return Refused(problem=_no_clean_steps(num_steps))
    so_far = result_of(setup, findings, num_steps, probing_cost(steps, baseline))
    problem = why_unusable(setup, findings)
    design = None if problem else _next_design(setup, findings, remaining)
    if design is not None:
        arms, block = design
        margin = underestimate(steps, baseline, versions)
        plan = probe_plan(setup, findings, arms, block=block, baseline=baseline, margin=margin)
        return Probe(plan=plan, so_far=so_far)
    problem = problem or why_uncertain(setup, findings)
    return Refused(problem=problem, so_far=so_far) if problem else Finished(result=so_far)


def _no_clean_steps(num_steps: int) -> str:
    return (
        f"none of {num_steps} steps ran at the highest clocks as planned on every stage; clocks"
        " that cannot be set, or hooks that are not called, leave nothing to measure"
    )


def _missing_steps(newest: ProbedVersion, steps: Sequence[Iteration]) -> int:
    """How many more steps the newest version needs; 0: it has been seen enough."""
    needed = max(newest.plan.num_steps, _BASELINE_STEPS)
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
    """What a stage does in each block: its walk and one block at rest; else what refines most."""
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

"""Pipelines that never flush: PipeDream and PipeDream-2BW, as one period of their steady state.

There are no iterations: a stage alternates between forward and backward for ever. What is planned
is M microbatches of that, and its iteration time is the time per M microbatches. All microbatches
of a stage run at the same clocks: what repeats is then one microbatch. Stage s of P has P - s of
them in flight; a way from stage s over later ones and back to its next forward crosses as many
stages as it spans microbatches, so the slowest stage alone sets the pace: stages do not wait for
each other's data beyond that. (With other clocks for other microbatches they would.)
"""

from __future__ import annotations

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.schedules._base import (
    Instruction,
    Schedule,
    ScheduleContext,
    backward_kinds,
)

_DOUBLE_BUFFERED = 2


def make_pipedream(context: ScheduleContext) -> Schedule:
    """PipeDream (Narayanan et al., SOSP 2019): stage s of P stashes P - s versions of weights."""
    num_stages = context.profile.num_stages
    versions = tuple(num_stages - stage for stage in range(num_stages))
    return _steady_state("pipedream", context, versions)


def make_pipedream_2bw(context: ScheduleContext) -> Schedule:
    """PipeDream-2BW (Narayanan et al., ICML 2021): two versions of weights everywhere.

    A version is made of M microbatches; two are enough where M is at least P.

    Raises:
        PlanningError: there are fewer microbatches than stages.
    """
    num_stages = context.profile.num_stages
    if context.num_microbatches < num_stages:
        raise PlanningError(
            f"must be at least {num_stages}, one per stage, for two versions of weights to be"
            f" enough, not {context.num_microbatches}",
            field="num_microbatches",
        )
    return _steady_state("pipedream-2bw", context, (_DOUBLE_BUFFERED,) * num_stages)


def _steady_state(name: str, context: ScheduleContext, versions: tuple[int, ...]) -> Schedule:
    """A forward, then the backward of the microbatch that is P - s - 1 behind it."""
    num_stages, num_microbatches = context.profile.num_stages, context.num_microbatches
    stages: list[tuple[Instruction, ...]] = []
    for stage in range(num_stages):
        order: list[Instruction] = []
        for microbatch in range(num_microbatches):
            ahead = (microbatch + num_stages - 1 - stage) % num_microbatches
            order.append(Instruction(InstructionKind.FORWARD, ahead))
            order += [
                Instruction(kind, microbatch) for kind in backward_kinds(context.profile, stage)
            ]
        stages.append(tuple(order))
    return Schedule(
        name=name,
        num_microbatches=num_microbatches,
        stages=tuple(stages),
        weight_versions=versions,
    )

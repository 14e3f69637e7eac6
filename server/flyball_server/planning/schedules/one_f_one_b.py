"""1F1B, PipeDream-Flush (Narayanan et al., 2021): one forward and one backward in turn."""

from __future__ import annotations

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.schedules._base import (
    Instruction,
    Schedule,
    ScheduleContext,
    backward_kinds,
    warmup_then_alternate,
)

_BACKWARDS = frozenset({InstructionKind.BACKWARD, InstructionKind.BACKWARD_INPUT})


def make_one_f_one_b(context: ScheduleContext) -> Schedule:
    """Stage s of P runs P - s forwards (P - s - 1 of them warm-up) before its first backward."""
    return context.schedule("1f1b", _one_f_one_b(context))


def make_early_recompute(context: ScheduleContext) -> Schedule:
    """1F1B with early recomputation (Merak: Lai et al., 2023).

    A stage computes a microbatch forward again while the gradient for it is still on its way:
    the recomputation stands before the backward and waits for nothing from outside. On the last
    stage a backward follows its forward at once, so nothing is computed again there.
    """
    last_stage = context.profile.num_stages - 1
    stages: list[list[Instruction]] = []
    for stage, order in enumerate(_one_f_one_b(context)):
        with_recomputation: list[Instruction] = []
        for instruction in order:
            if stage != last_stage and instruction.kind in _BACKWARDS:
                with_recomputation.append(
                    Instruction(InstructionKind.RECOMPUTE, instruction.microbatch)
                )
            with_recomputation.append(instruction)
        stages.append(with_recomputation)
    return context.schedule("early-recompute-1f1b", stages)


def _one_f_one_b(context: ScheduleContext) -> list[list[Instruction]]:
    num_stages = context.profile.num_stages
    return [
        warmup_then_alternate(context, stage, num_stages - stage) for stage in range(num_stages)
    ]


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
    stages: list[list[Instruction]] = []
    for stage in range(num_stages):
        order: list[Instruction] = []
        for microbatch in range(num_microbatches):
            ahead = (microbatch + num_stages - 1 - stage) % num_microbatches
            order.append(Instruction(InstructionKind.FORWARD, ahead))
            order += [
                Instruction(kind, microbatch) for kind in backward_kinds(context.profile, stage)
            ]
        stages.append(order)
    return context.schedule(name, stages, weight_versions=versions)

"""1F1B, PipeDream-Flush (Narayanan et al., 2021): one forward and one backward in turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import (
    GIVE_GRADIENT,
    Instruction,
    InstructionKind,
    PipelineShape,
    backward_kinds,
)
from flyball_pipeline.schedules.inputs import ScheduleInputs, Stages


def one_f_one_b(inputs: ScheduleInputs) -> Stages:
    """Stage s of P runs P - s forwards (P - s - 1 of them warm-up) before its first backward."""
    return warmup_then_alternate(inputs.shape, range(inputs.shape.num_stages, 0, -1))


def warmup_then_alternate(shape: PipelineShape, in_front: Iterable[int]) -> Stages:
    """Yield each stage's order: forwards in front, then backward and forward in turn, the rest.

    A stage whose backward is measured in two parts runs the weight part right after the input
    part, as frameworks do when a schedule does not split them.

    Args:
        shape: shape of the pipeline.
        in_front: per stage, the number of forwards before its first backward; at most all.
    """
    microbatches = range(shape.num_microbatches)
    forwards = [Instruction(InstructionKind.FORWARD, m) for m in microbatches]
    for kinds, num_in_front in zip(shape.stages, in_front, strict=True):
        backwards = [[Instruction(kind, m) for kind in backward_kinds(kinds)] for m in microbatches]
        yield alternate(forwards, backwards, num_in_front)


def alternate(
    forwards: Sequence[Instruction],
    backwards: Sequence[Sequence[Instruction]],
    num_in_front: int,
) -> list[Instruction]:
    """Return forwards in front, then a backward and a forward in turn, then the backwards left."""
    order = list(forwards[:num_in_front])
    for backward, position in zip(backwards, itertools.count(num_in_front)):
        order += backward
        order += forwards[position : position + 1]
    return order


def early_recompute(inputs: ScheduleInputs) -> Stages:
    """1F1B with early recomputation (Merak: Lai et al., 2023).

    A stage computes a microbatch forward again while the gradient for it is still on its way:
    the recomputation stands before the backward and waits for nothing from outside. On the last
    stage a backward follows its forward at once, so nothing is computed again there.
    """
    last_stage = inputs.shape.num_stages - 1
    for stage, order in enumerate(one_f_one_b(inputs)):
        with_recomputation: list[Instruction] = []
        for instruction in order:
            if stage != last_stage and instruction.kind in GIVE_GRADIENT:
                with_recomputation.append(
                    Instruction(InstructionKind.RECOMPUTE, instruction.microbatch)
                )
            with_recomputation.append(instruction)
        yield with_recomputation


def pipedream(inputs: ScheduleInputs) -> Stages:
    """PipeDream (Narayanan et al., SOSP 2019), one period of its steady state.

    A forward, then the backward of the microbatch that is P - s - 1 behind it. Stage s of P
    stashes P - s versions of its weights.
    """
    num_stages, num_microbatches = inputs.shape.num_stages, inputs.shape.num_microbatches
    for stage, kinds in enumerate(inputs.shape.stages):
        order: list[Instruction] = []
        for microbatch in range(num_microbatches):
            ahead = (microbatch + num_stages - 1 - stage) % num_microbatches
            order.append(Instruction(InstructionKind.FORWARD, ahead))
            order += [Instruction(kind, microbatch) for kind in backward_kinds(kinds)]
        yield order


def pipedream_2bw(inputs: ScheduleInputs) -> Stages:
    """PipeDream-2BW (Narayanan et al., ICML 2021): two versions of weights everywhere.

    A version is made of M microbatches; two are enough where M is at least P.

    Raises:
        PipelineError: there are fewer microbatches than stages.
    """
    num_stages, num_microbatches = inputs.shape.num_stages, inputs.shape.num_microbatches
    if num_microbatches < num_stages:
        raise PipelineError(
            f"must be at least {num_stages}, one per stage, for two versions of weights to be"
            f" enough, not {num_microbatches}",
            field="num_microbatches",
        )
    return pipedream(inputs)

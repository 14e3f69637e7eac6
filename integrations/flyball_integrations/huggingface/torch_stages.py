"""Slices of a model for the stages of torch.distributed.pipelining, and their tied weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise

import torch.distributed
from torch import nn
from transformers import PreTrainedModel

from flyball_integrations.huggingface.layers import check_num_stages, layers_of

_TIED_LAYER = "_flyball_tied_layer"


def stage_module(model: PreTrainedModel, *, stage: int, num_stages: int) -> nn.Sequential:
    """Return the module of this stage for `PipelineStage`.

    The layers are dealt out so that the largest stage has as few parameters as can be. Where
    the model's embedding and head are tied and lie on different stages, call
    `sum_tied_gradients` before each step of the optimizer.

    Args:
        model: a Llama or a GPT-2 for causal language modelling, the same on every rank.
        stage: of this module, from 0.
        num_stages: of the pipeline, all of its chunks counted.

    Raises:
        ValueError: the model cannot be cut, or not into so many stages, or it has no such stage.
    """
    layers = layers_of(model)
    check_num_stages(num_stages, num_layers=len(layers.in_order))
    if not 0 <= stage < num_stages:
        raise ValueError(f"stage must be 0 to {num_stages - 1}, not {stage}")
    num_parameters = [
        sum(parameter.numel() for parameter in layer.parameters()) for layer in layers.in_order
    ]
    begin, end = list(pairwise(even_cuts(num_parameters, num_parts=num_stages)))[stage]
    module = nn.Sequential(*layers.in_order[begin:end])
    if layers.is_tied and num_stages > 1 and stage in {0, num_stages - 1}:
        vars(module)[_TIED_LAYER] = 0 if stage == 0 else -1
    return module


def sum_tied_gradients(module: nn.Sequential, group: torch.distributed.ProcessGroup) -> None:
    """Add up the gradients of both copies of a tied weight; call it before the optimizer's step.

    The ranks of the first and of the last stage must call it at the same time. On other stages,
    and without tied weights, it has no effect.

    Args:
        module: from `stage_module`.
        group: of these two ranks: `torch.distributed.new_group([first, last])`, made by all.
    """
    tied_layer: int | None = vars(module).get(_TIED_LAYER)
    if tied_layer is None:
        return
    weight = module[tied_layer].weight
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    torch.distributed.all_reduce(weight.grad, group=group)


def even_cuts(sizes: Sequence[int], *, num_parts: int) -> list[int]:
    """Return the cuts of a row into non-empty parts with the least possible largest sum.

    Args:
        sizes: of the items, not negative.
        num_parts: 1 to the number of items.

    Returns:
        The first item of each part, and at the end the number of items.
    """
    num_items = len(sizes)
    sums = list(accumulate(sizes, initial=0))

    @cache
    def best(begin: int, num_left: int) -> tuple[int, int]:
        """Return the largest part from item `begin` on, and the end of the first of these parts."""
        if num_left == 1:
            return sums[-1] - sums[begin], num_items
        return min(
            (max(sums[end] - sums[begin], best(end, num_left - 1)[0]), end)
            for end in range(begin + 1, num_items - num_left + 2)
        )

    cuts = [0]
    for num_left in range(num_parts, 0, -1):
        cuts.append(best(cuts[-1], num_left)[1])
    return cuts

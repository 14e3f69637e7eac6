"""Layers of a model for DeepSpeed's `PipelineModule`, with tied weights as `TiedLayerSpec`."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from flyball_integrations.huggingface.layers import ModelLayers, check_num_stages, layers_of

_TIED_KEY = "tokens"


class TiedTokens(nn.Module):  # type: ignore[misc] # torch is not typed here
    """Common weight of a token embedding and a head; DeepSpeed keeps its copies equal."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.weight = embedding.weight
        self.padding_idx = embedding.padding_idx

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence) -> (batch, sequence, width)."""
        return nn.functional.embedding(tokens, self.weight, padding_idx=self.padding_idx)

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence, width) -> (batch, sequence, vocabulary)."""
        return nn.functional.linear(hidden, self.weight)


def deepspeed_layers(model: PreTrainedModel, *, num_stages: int) -> list[object]:
    """Return the `layers` of a `PipelineModule` with `next_token_loss` as its `loss_fn`.

    Tied weights become `TiedLayerSpec`s. The first layer takes tokens (batch, sequence).

    Args:
        model: a Llama or a GPT-2 for causal language modelling, the same on every rank.
        num_stages: of the pipeline; only checked here, DeepSpeed does the cutting.

    Raises:
        ValueError: the model cannot be cut, or not into so many stages.
    """
    layers = layers_of(model)
    check_num_stages(num_stages, num_layers=len(layers.in_order))
    if layers.is_tied:
        return _tied(layers)
    return list(layers.in_order)


def _tied(layers: ModelLayers) -> list[object]:
    from deepspeed.pipe import TiedLayerSpec  # noqa: PLC0415 - not needed for torch's stages

    tokens = TiedLayerSpec(_TIED_KEY, TiedTokens, layers.token_embedding)
    head = TiedLayerSpec(
        _TIED_KEY, TiedTokens, layers.token_embedding, forward_fn=TiedTokens.scores
    )
    return [tokens, *layers.inner, head]

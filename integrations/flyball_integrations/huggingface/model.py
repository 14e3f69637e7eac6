"""A whole causal language model from its config, alike on every rank, and its loss."""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from flyball_integrations.huggingface.layers import check_supported

_NOT_COUNTED = -100  # a label that Hugging Face's losses pass over


def build_causal_lm(config: PretrainedConfig, *, seed: int) -> PreTrainedModel:
    """The model with random weights, on the CPU; the same on every rank for the same seed.

    The state of torch's random generators is left as it was.

    Args:
        config: of a Llama or a GPT-2.
        seed: of the weights.

    Raises:
        ValueError: models of this type cannot be cut into stages.
    """
    check_supported(config)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed, which would seed the GPUs too.
        torch.default_generator.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config)


def next_token_loss(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The loss that the whole model gives for `labels=tokens`: of each token from those before.

    Args:
        scores: (batch, sequence, vocabulary), of the last stage.
        tokens: (batch, sequence), the model's own input; -100 is not counted.
    """
    following = nn.functional.pad(tokens[:, 1:], (0, 1), value=_NOT_COUNTED)
    return nn.functional.cross_entropy(
        scores.float().flatten(0, 1), following.flatten(), ignore_index=_NOT_COUNTED
    )

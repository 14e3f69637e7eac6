"""Hugging Face models as lists of layers that each take and return one tensor.

The layers are the model's own modules, or wrap them: nothing is copied, so the weights stay
those of the model. The blocks get no mask: attention is causal, over sequences of full length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

_NOT_COUNTED = -100  # a label that Hugging Face's losses ignore


def build_causal_lm(config: PretrainedConfig, *, seed: int) -> PreTrainedModel:
    """Return the model with random weights, on the CPU, equal on every rank for the same seed.

    The state of torch's random generators does not change.

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
    """Return the loss of the whole model for `labels=tokens`: of each token from those before.

    Args:
        scores: (batch, sequence, vocabulary), of the last stage.
        tokens: (batch, sequence), the model's own input; -100 is not counted.
    """
    following = nn.functional.pad(tokens[:, 1:], (0, 1), value=_NOT_COUNTED)
    return nn.functional.cross_entropy(
        scores.float().flatten(0, 1), following.flatten(), ignore_index=_NOT_COUNTED
    )


# These make attention causal without a mask; others, as `eager`, would use later tokens.
_CAUSAL_WITHOUT_MASK = ("sdpa", "flash_attention_2", "flash_attention_3")


@dataclass(frozen=True, kw_only=True)
class ModelLayers:
    """All layers of a model in their order.

    Attributes:
        token_embedding: token numbers to vectors; the first layer.
        inner: from the token vectors to what the head takes.
        head: vectors to scores of the next token; the last layer.
    """

    token_embedding: nn.Embedding
    inner: tuple[nn.Module, ...]
    head: nn.Linear

    @property
    def in_order(self) -> tuple[nn.Module, ...]:
        """From tokens to scores."""
        return (self.token_embedding, *self.inner, self.head)

    @property
    def is_tied(self) -> bool:
        """Return whether the head's weight is the token embedding's."""
        return self.head.weight is self.token_embedding.weight


def layers_of(model: PreTrainedModel) -> ModelLayers:
    """Return the layers of a Llama or GPT-2 for causal language modelling.

    Raises:
        ValueError: such a model, or its kind of attention, cannot be cut into stages.
    """
    check_supported(model.config)
    if model.get_output_embeddings() is None:
        raise ValueError(
            f"cannot cut a {type(model).__name__} into stages: it has no language-model head;"
            " take AutoModelForCausalLM"
        )
    attention = model.config._attn_implementation
    if attention not in _CAUSAL_WITHOUT_MASK:
        raise ValueError(
            f"cannot cut a model with attention {attention!r} into stages: it needs a mask;"
            f" set attn_implementation to one of {', '.join(_CAUSAL_WITHOUT_MASK)}"
        )
    return _CUTTERS[model.config.model_type](model)


def check_supported(config: PretrainedConfig) -> None:
    """Check that `layers_of` supports the model type.

    Raises:
        ValueError: it does not.
    """
    if config.model_type not in _CUTTERS:
        raise ValueError(
            f"cannot cut a model of type {config.model_type!r} into stages;"
            f" supported: {', '.join(sorted(_CUTTERS))}"
        )


def check_num_stages(num_stages: int, *, num_layers: int) -> None:
    """Check that every stage gets a layer.

    Raises:
        ValueError: it is below 1 or above `num_layers`.
    """
    if not 1 <= num_stages <= num_layers:
        raise ValueError(
            f"cannot cut a model of {num_layers} layers into {num_stages} stages;"
            f" give 1 to {num_layers} stages"
        )


class Positions(nn.Module):  # type: ignore[misc] # torch is not typed here
    """GPT-2's learned positions, added to the token vectors, and its dropout."""

    def __init__(self, embedding: nn.Embedding, dropout: nn.Dropout) -> None:
        super().__init__()
        self.embedding = embedding
        self.dropout = dropout

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence, width) -> the same."""
        numbers = torch.arange(hidden.shape[1], device=hidden.device)
        return self.dropout(hidden + self.embedding(numbers))


class Block(nn.Module):  # type: ignore[misc] # torch is not typed here
    """A transformer block that needs its input only, as GPT-2's."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence, width) -> the same."""
        output = self.block(hidden, attention_mask=None, use_cache=False)
        # GPT-2's give a tuple before transformers 5.3.
        return output[0] if isinstance(output, tuple) else output


class RotaryAngles:
    """The model's rotary positions, shared by its blocks.

    The last result is cached: every block and microbatch needs the same one. No nn.Module, so
    that casting a stage to bfloat16 leaves the frequencies in float32; positions far from the
    start would be wrong otherwise.
    """

    def __init__(self, rotary: nn.Module) -> None:
        self._rotary = rotary
        self._last: tuple[object, tuple[torch.Tensor, torch.Tensor]] | None = None

    def __call__(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, of the device and type of `hidden` (batch, sequence, width)."""
        key = (hidden.shape[1], hidden.device, hidden.dtype)
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        numbers = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
        angles: tuple[torch.Tensor, torch.Tensor] = self._rotary(hidden, position_ids=numbers)
        # Tensors of inference mode cannot be used in a later training step.
        if not torch.is_inference_mode_enabled():
            self._last = key, angles
        return angles


class RotaryBlock(Block):
    """A transformer block with rotary positions, as Llama's."""

    def __init__(self, block: nn.Module, angles: RotaryAngles) -> None:
        super().__init__(block)
        self.angles = angles

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence, width) -> the same."""
        return self.block(
            hidden,
            attention_mask=None,
            position_embeddings=self.angles(hidden),
            use_cache=False,
        )


def _llama_layers(model: PreTrainedModel) -> ModelLayers:
    inner = model.model
    angles = RotaryAngles(inner.rotary_emb)
    blocks = (RotaryBlock(block, angles) for block in inner.layers)
    return ModelLayers(
        token_embedding=inner.embed_tokens, inner=(*blocks, inner.norm), head=model.lm_head
    )


def _gpt2_layers(model: PreTrainedModel) -> ModelLayers:
    inner = model.transformer
    blocks = (Block(block) for block in inner.h)
    return ModelLayers(
        token_embedding=inner.wte,
        inner=(Positions(inner.wpe, inner.drop), *blocks, inner.ln_f),
        head=model.lm_head,
    )


# By the config's `model_type`.
_CUTTERS: dict[str, Callable[[PreTrainedModel], ModelLayers]] = {
    "gpt2": _gpt2_layers,
    "llama": _llama_layers,
}

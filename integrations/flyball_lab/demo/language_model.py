"""A small GPT-2-like language model as a list of layers, and text for it made from a seed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

VOCABULARY_SIZE = 96
SEQUENCE_LENGTH = 24
_WIDTH = 48
_NUM_HEADS = 4
_NUM_BLOCKS = 8


class Embedding(nn.Module):  # type: ignore[misc] # torch is not typed here
    """Tokens and their positions, as vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY_SIZE, _WIDTH)
        self.positions = nn.Embedding(SEQUENCE_LENGTH, _WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence) -> (batch, sequence, width)."""
        return self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))


class Block(nn.Module):  # type: ignore[misc] # torch is not typed here
    """Causal self-attention and a feed-forward layer, each with its norm in front."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(_WIDTH)
        self.query_key_value = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.attention_output = nn.Linear(_WIDTH, _WIDTH)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(_WIDTH),
            nn.Linear(_WIDTH, 4 * _WIDTH),
            nn.GELU(),
            nn.Linear(4 * _WIDTH, _WIDTH),
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence, width) -> the same."""
        hidden = hidden + self._attention(self.attention_norm(hidden))
        return hidden + self.feed_forward(hidden)

    def _attention(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, sequence, width = hidden.shape
        heads = [
            part.view(batch, sequence, _NUM_HEADS, -1).transpose(1, 2)
            for part in self.query_key_value(hidden).chunk(3, dim=-1)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.attention_output(mixed.transpose(1, 2).reshape(batch, sequence, width))


class Head(nn.Module):  # type: ignore[misc] # torch is not typed here
    """Vectors to scores of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.scores = nn.Linear(_WIDTH, VOCABULARY_SIZE)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, sequence, width) -> (batch, sequence, vocabulary)."""
        return self.scores(self.norm(hidden))


def language_model_layers() -> list[nn.Module]:
    """The whole model, randomly initialised, as layers to cut into stages."""
    return [Embedding(), *(Block() for _ in range(_NUM_BLOCKS)), Head()]


def next_token_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the next token; ln(96) = 4.56 for a model that knows nothing."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def synthetic_text(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless microbatches of one sequence each: counting on by a step of 1, 2 or 3."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        start = torch.randint(VOCABULARY_SIZE, (1, 1), generator=generator)
        stride = torch.randint(1, 4, (1, 1), generator=generator)
        text = (start + stride * torch.arange(SEQUENCE_LENGTH + 1)) % VOCABULARY_SIZE
        yield text[:, :-1], text[:, 1:]

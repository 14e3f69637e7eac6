"""Endless microbatches made from a seed, in place of a data loader."""

from __future__ import annotations

from collections.abc import Iterator

import torch

_NOT_COUNTED = -100  # a label that cross entropy passes over


def synthetic_text(
    vocabulary_size: int, *, length: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens (2, length), which count on by 1 to 3; each microbatch is its own label."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        start = torch.randint(vocabulary_size, (2, 1), generator=generator)
        stride = torch.randint(1, 4, (2, 1), generator=generator)
        tokens = (start + stride * torch.arange(length)) % vocabulary_size
        yield tokens, tokens


def masked_text(
    vocabulary_size: int, *, length: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same text with every seventh token hidden; only the hidden ones are labels."""
    mask_token = vocabulary_size - 1
    is_hidden = torch.arange(length) % 7 == 3
    for tokens, _ in synthetic_text(mask_token, length=length, seed=seed):
        yield tokens.where(~is_hidden, mask_token), tokens.where(is_hidden, _NOT_COUNTED)


def synthetic_images(
    num_classes: int, *, size: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Noise (4, 3, size, size), the brighter the higher its class (4,)."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        labels = torch.randint(num_classes, (4,), generator=generator)
        noise = torch.randn(4, 3, size, size, generator=generator)
        yield noise + labels.view(4, 1, 1, 1) / num_classes, labels

"""Floating-point operations of a stage's forward, counted from a model's layers.

Only matrix products and convolutions count, two operations per multiply and add: what is left
(norms, activations, dropout) is bound by memory and a few per cent of a transformer's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class StageWork:
    """Operations of one sample's forward on a stage.

    Attributes:
        layers_flop: of its layers.
        head_flop: of what follows the last layer: a language model's logits.
    """

    layers_flop: float
    head_flop: float = 0.0


def transformer_stages(
    stages: Sequence[int],
    *,
    hidden: int,
    sequence: int,
    num_attentions: int = 1,
    vocabulary: int = 0,
) -> tuple[StageWork, ...]:
    """The work of each stage of a transformer.

    An attention has four projections, `8 s h^2`, and two products over the sequence, `4 s^2 h`;
    the feed-forward part widens fourfold, `16 s h^2`. The logits take `2 s h V`.

    Args:
        stages: layers of each stage.
        hidden: h.
        sequence: s, tokens of a sample.
        num_attentions: of a layer: 2 where it has a second one, as EnvPipe's GPT.
        vocabulary: V of the logits on the last stage; 0: none are computed.
    """
    attention_flop = 8 * sequence * hidden**2 + 4 * sequence**2 * hidden
    layer_flop = num_attentions * attention_flop + 16 * sequence * hidden**2
    last = len(stages) - 1
    return tuple(
        StageWork(
            layers_flop=num_layers * layer_flop,
            head_flop=2 * sequence * hidden * vocabulary if stage == last else 0.0,
        )
        for stage, num_layers in enumerate(stages)
    )


def resnet_stages(
    stages: Sequence[int], *, blocks: Sequence[int], image: int
) -> tuple[StageWork, ...]:
    """The work of each stage of a bottleneck ResNet as EnvPipe has it.

    Its first convolution is 3x3 with stride 1 and nothing is pooled before the blocks.

    Args:
        stages: layers of each stage: the first convolution, the blocks, and the head, in order.
        blocks: bottleneck blocks of each of the four widths 64, 128, 256, 512.
        image: pixels of a side.

    Raises:
        ValueError: the stages do not hold just these layers.
    """
    layers_flop = [2.0 * image**2 * 9 * 3 * 64]
    channels, side = 64, image
    for group, num_blocks in enumerate(blocks):
        width = 64 * 2**group
        for block in range(num_blocks):
            stride = 2 if block == 0 and group > 0 else 1
            layers_flop.append(_bottleneck_flop(channels, width, side, stride))
            side //= stride
            channels = 4 * width
    layers_flop.append(2.0 * channels * 100)
    if sum(stages) != len(layers_flop):
        raise ValueError(f"the stages hold {sum(stages)} layers, the model {len(layers_flop)}")
    ends = [sum(stages[: stage + 1]) for stage in range(len(stages))]
    return tuple(
        StageWork(layers_flop=sum(layers_flop[end - num_layers : end]))
        for num_layers, end in zip(stages, ends, strict=True)
    )


def _bottleneck_flop(channels: int, width: int, side: int, stride: int) -> float:
    """1x1 to the width, 3x3 with the stride, 1x1 to four widths; 1x1 past them where needed."""
    pixels_in, pixels_out = side**2, (side // stride) ** 2
    past = channels * 4 * width if stride != 1 or channels != 4 * width else 0
    return 2.0 * (pixels_in * channels * width + pixels_out * (9 * width**2 + 4 * width**2 + past))

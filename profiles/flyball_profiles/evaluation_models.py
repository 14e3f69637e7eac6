"""Stage profiles of the models of EnvPipe's evaluation: fitted, not measured.

The stages' relative sizes come from the layers' arithmetic, the shape over the SM clock from
the shipped A100 example, the scale from figures with their sources in evaluation_models.toml.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from flyball_profiles.examples import example_profile_path
from flyball_profiles.fitted_curves import FittedInstruction, parse_fitted_profile
from flyball_profiles.gpu_windows import load_gpu_window
from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile


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
    """Return the work of each stage of a transformer.

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
    """Return the work of each stage of EnvPipe's bottleneck ResNet.

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


_FILE = "evaluation_models.toml"
_TIME_DIGITS, _ENERGY_DIGITS = 7, 4
# A head is never checkpointed: its backward is twice its forward.
_HEAD_BACKWARD_PER_FORWARD = 2


@dataclass(frozen=True, kw_only=True)
class FittedModel:
    """One model of the evaluation on one GPU type.

    Attributes:
        gpu: name in the GPU table.
        microbatch_size: samples of a microbatch.
        minibatch_size: samples of an iteration, over all data-parallel pipelines.
        blocking_power_w: W of a waiting GPU; an assumption.
    """

    name: str
    gpu: str
    microbatch_size: int
    minibatch_size: int
    blocking_power_w: float
    profile: StageProfile


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """Speed and power of a GPU at its highest clock: operations to seconds and joules."""

    flop_per_s: float
    power_w: float
    backward_per_forward: float


def fitted_model_names() -> tuple[str, ...]:
    """Return the models in the order of the file."""
    return tuple(entry["name"] for entry in _table()["models"])


def load_fitted_model(name: str) -> FittedModel:
    """Return one model of the evaluation.

    Raises:
        LookupError: there is no such model.
    """
    table = _table()
    entry = next((entry for entry in table["models"] if entry["name"] == name), None)
    if entry is None:
        raise LookupError(f"no model {name!r}; known: {', '.join(fitted_model_names())}")
    gpu = table["gpus"][entry["gpu"]]
    scale = _Scale(
        flop_per_s=gpu["peak_tflops"]["value"] * 1e12 * table["utilization"]["value"],
        power_w=gpu["board_power_w"]["value"] * table["power_at_highest_clock"]["value"],
        backward_per_forward=table["backward_per_forward"]["value"],
    )
    clocks_mhz = _clocks_mhz(entry["gpu"], table["clock_step_mhz"]["value"])
    return FittedModel(
        name=name,
        gpu=entry["gpu"],
        microbatch_size=entry["microbatch_size"],
        minibatch_size=entry["minibatch_size"],
        blocking_power_w=gpu["blocking_power_w"]["value"],
        profile=_profile(_work(entry), entry["microbatch_size"], scale, clocks_mhz),
    )


# What tomllib returns has no better type; the shipped file is held to its form by tests.
@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((resources.files("flyball_profiles") / _FILE).read_text(encoding="utf-8"))


def _work(entry: dict[str, Any]) -> tuple[StageWork, ...]:
    if entry["family"] == "resnet":
        return resnet_stages(entry["stages"], blocks=entry["blocks"], image=entry["image"])
    return transformer_stages(
        entry["stages"],
        hidden=entry["hidden"],
        sequence=entry["sequence"],
        num_attentions=2 if entry["family"] == "gpt" else 1,
        vocabulary=entry.get("vocabulary", 0),
    )


def _profile(
    work: tuple[StageWork, ...], microbatch_size: int, scale: _Scale, clocks_mhz: tuple[int, ...]
) -> StageProfile:
    points: dict[tuple[int, InstructionKind], tuple[OperatingPoint, ...]] = {}
    for stage, stage_work in enumerate(work):
        forward_flop = stage_work.layers_flop + stage_work.head_flop
        backward_flop = (
            scale.backward_per_forward * stage_work.layers_flop
            + _HEAD_BACKWARD_PER_FORWARD * stage_work.head_flop
        )
        for kind, flop in (
            (InstructionKind.FORWARD, forward_flop),
            (InstructionKind.BACKWARD, backward_flop),
        ):
            highest_s = microbatch_size * flop / scale.flop_per_s
            points[stage, kind] = tuple(
                _point(kind, clock_mhz, clocks_mhz[0], highest_s, scale.power_w)
                for clock_mhz in clocks_mhz
            )
    return StageProfile(points=points, num_ranks_per_stage=(1,) * len(work))


def _point(
    kind: InstructionKind, clock_mhz: int, highest_mhz: int, highest_s: float, power_w: float
) -> OperatingPoint:
    shape, example_highest_mhz, _ = _example_shape()
    curve = shape[kind]
    at_mhz = round(example_highest_mhz * clock_mhz / highest_mhz)
    time_ratio = curve.time.at(at_mhz) / curve.time.at(example_highest_mhz)
    energy_ratio = curve.energy.at(at_mhz) / curve.energy.at(example_highest_mhz)
    return OperatingPoint(
        frequency_mhz=clock_mhz,
        time_s=round(highest_s * time_ratio, _TIME_DIGITS),
        energy_j=round(power_w * highest_s * energy_ratio, _ENERGY_DIGITS),
    )


@cache
def _example_shape() -> tuple[dict[InstructionKind, FittedInstruction], int, int]:
    """Return the example's curves of stage 0 by kind, and its highest and lowest clock, MHz."""
    fitted = parse_fitted_profile(
        example_profile_path().with_suffix(".toml").read_text(encoding="utf-8")
    )
    curves = {entry.kind: entry for entry in fitted.instructions if 0 in entry.stages}
    return curves, fitted.clocks_mhz[0], fitted.clocks_mhz[-1]


def _clocks_mhz(gpu: str, step_mhz: int) -> tuple[int, ...]:
    """Return the GPU's profiling window as far as the example's curves reach, falling."""
    window = load_gpu_window(gpu)
    _, example_highest_mhz, example_lowest_mhz = _example_shape()
    reached_mhz = window.filter_max_mhz * example_lowest_mhz / example_highest_mhz
    lowest_mhz = max(window.filter_min_mhz, reached_mhz)
    falling = range(window.filter_max_mhz, window.filter_min_mhz - 1, -step_mhz)
    return tuple(clock_mhz for clock_mhz in falling if clock_mhz >= lowest_mhz)

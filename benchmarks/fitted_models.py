"""Stage profiles of the models of EnvPipe's evaluation: fitted, not measured.

The stages' relative sizes come from the layers' arithmetic, the shape over the SM clock from the
curves of the shipped A100 example, the scale from figures with their sources in fitted_models.toml.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.examples import example_profile_path
from flyball_profiles.gpu_windows import load_gpu_window
from flyball_profiles.stage_profile import OperatingPoint, StageProfile


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
    assert sum(stages) == len(layers_flop)  # noqa: S101 - of our own file
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


_TIME_DIGITS, _ENERGY_DIGITS = 7, 4
# A head is never checkpointed: its backward is twice its forward.
_HEAD_BACKWARD_PER_FORWARD = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluatedModel:
    """A model of the evaluation on one GPU type.

    Attributes:
        gpu: name in the GPU table.
        num_microbatches: of an iteration, over all data-parallel pipelines.
        blocking_power_w: W of a waiting GPU; of a fitted model an assumption.
    """

    name: str
    gpu: str
    num_microbatches: int
    blocking_power_w: float
    profile: StageProfile


def fitted_model_names() -> tuple[str, ...]:
    """Return the models in the order of the file."""
    return tuple(entry["name"] for entry in _table()["models"])


def load_fitted_model(name: str) -> EvaluatedModel:
    """Return one model of the evaluation."""
    table = _table()
    entry = next(entry for entry in table["models"] if entry["name"] == name)
    gpu = table["gpus"][entry["gpu"]]
    return EvaluatedModel(
        name=name,
        gpu=entry["gpu"],
        num_microbatches=entry["minibatch_size"] // entry["microbatch_size"],
        blocking_power_w=gpu["blocking_power_w"]["value"],
        profile=_profile(entry),
    )


# What tomllib returns has no better type; the file is held to its form by tests.
@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


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


def _profile(entry: dict[str, Any]) -> StageProfile:
    table = _table()
    gpu = table["gpus"][entry["gpu"]]
    flop_per_s = gpu["peak_tflops"]["value"] * 1e12 * table["utilization"]["value"]
    power_w = gpu["board_power_w"]["value"] * table["power_at_highest_clock"]["value"]
    layers_backward = table["backward_per_forward"]["value"]
    shape = _shape(entry["gpu"])
    points: dict[tuple[int, InstructionKind], tuple[OperatingPoint, ...]] = {}
    for stage, work in enumerate(_work(entry)):
        forward_flop = work.layers_flop + work.head_flop
        backward_flop = (
            layers_backward * work.layers_flop + _HEAD_BACKWARD_PER_FORWARD * work.head_flop
        )
        for kind, flop in (
            (InstructionKind.FORWARD, forward_flop),
            (InstructionKind.BACKWARD, backward_flop),
        ):
            highest_s = entry["microbatch_size"] * flop / flop_per_s
            points[stage, kind] = tuple(
                OperatingPoint(
                    frequency_mhz=clock_mhz,
                    time_s=round(highest_s * time_ratio, _TIME_DIGITS),
                    energy_j=round(power_w * highest_s * energy_ratio, _ENERGY_DIGITS),
                )
                for clock_mhz, time_ratio, energy_ratio in shape[kind]
            )
    return StageProfile(points=points, num_ranks_per_stage=(1,) * len(entry["stages"]))


@cache
def _shape(gpu: str) -> dict[InstructionKind, list[tuple[int, float, float]]]:
    """Return clocks in MHz, falling, with time and energy relative to those at the highest.

    The clocks are the GPU's profiling window as far as the example's curves reach, and the ratios
    those of the example's stage 0 at the same relative clock.
    """
    example = tomllib.loads(example_profile_path().with_suffix(".toml").read_text(encoding="utf-8"))
    window, step_mhz = load_gpu_window(gpu), _table()["clock_step_mhz"]["value"]
    highest_mhz, example_mhz = window.filter_max_mhz, example["clocks"]["max_mhz"]
    lowest_mhz = max(
        window.filter_min_mhz, highest_mhz * example["clocks"]["min_mhz"] / example_mhz
    )
    falling = range(highest_mhz, window.filter_min_mhz - 1, -step_mhz)
    shape: dict[InstructionKind, list[tuple[int, float, float]]] = {}
    for entry in example["instructions"]:
        if 0 in entry["stages"]:
            at_highest = time_at(entry, example_mhz), energy_at(entry, example_mhz)
            shape[InstructionKind(entry["instruction"])] = [
                (
                    mhz,
                    time_at(entry, at_mhz) / at_highest[0],
                    energy_at(entry, at_mhz) / at_highest[1],
                )
                for mhz in falling
                for at_mhz in (round(example_mhz * mhz / highest_mhz),)
                if mhz >= lowest_mhz
            ]
    return shape


def time_at(instruction: dict[str, Any], clock_mhz: int) -> float:
    """Return `a / f + b + c max(0, f - knee)^2` in s, with the clock f in GHz."""
    curve = instruction["time"]["curve"]
    above = max(0, clock_mhz - curve["knee_mhz"]) / 1000
    return float(
        curve["a_s_ghz"] * (1000 / clock_mhz) + curve["b_s"] + curve["c_s_per_ghz2"] * above**2
    )


def energy_at(instruction: dict[str, Any], clock_mhz: int) -> float:
    """Return `p + q f + r u + s u^2 + w v^2` in J, u and v the clock beyond both knees in GHz."""
    curve = instruction["energy"]["curve"]
    low = max(0, clock_mhz - curve["low_knee_mhz"]) / 1000
    high = max(0, clock_mhz - curve["high_knee_mhz"]) / 1000
    return float(
        curve["p_j"]
        + curve["q_j_per_ghz"] * (clock_mhz / 1000)
        + curve["r_j_per_ghz"] * low
        + curve["s_j_per_ghz2"] * low**2
        + curve["w_j_per_ghz2"] * high**2
    )

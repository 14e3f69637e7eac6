"""The fitted models of EnvPipe's evaluation: arithmetic by hand, shapes, and sources."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import fitted_models
from fitted_models import (
    StageWork,
    energy_at,
    fitted_model_names,
    load_fitted_model,
    resnet_stages,
    time_at,
    transformer_stages,
)
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.examples import load_example_profile
from flyball_profiles.gpu_windows import load_gpu_window

F, B = InstructionKind.FORWARD, InstructionKind.BACKWARD


def table() -> dict[str, Any]:
    """Return the file that the models are made from."""
    file = Path(fitted_models.__file__).with_suffix(".toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def test_a_transformers_work_is_that_reckoned_by_hand() -> None:
    """With h = 2, s = 3: attention 8*3*4 + 4*9*2 = 168, feed-forward 16*3*4 = 192; logits 60."""
    assert transformer_stages([1, 2], hidden=2, sequence=3, vocabulary=5) == (
        StageWork(layers_flop=360.0),
        StageWork(layers_flop=720.0, head_flop=60.0),
    )
    (two_attentions,) = transformer_stages([1], hidden=2, sequence=3, num_attentions=2)
    assert two_attentions.layers_flop == 168 * 2 + 192


def test_a_resnets_work_is_that_reckoned_by_hand() -> None:
    """Image of 4 pixels a side, one block of width 64, one of 128 with stride 2."""
    conv = 2 * 16 * 9 * 3 * 64
    first = 2 * 16 * (64 * 64 + 9 * 64**2 + 64 * 256 + 64 * 256)
    second = 2 * (16 * 256 * 128 + 4 * (9 * 128**2 + 128 * 512 + 256 * 512))
    head = 2 * 512 * 100
    stages = resnet_stages([2, 2], blocks=[1, 1], image=4)
    assert [stage.layers_flop for stage in stages] == [conv + first, second + head]


def test_the_curves_are_their_formulas() -> None:
    curve = {"a_s_ghz": 0.3, "b_s": 0.1, "c_s_per_ghz2": 2.0, "knee_mhz": 1000}
    of_time = {"time": {"curve": curve}}
    assert time_at(of_time, 500) == pytest.approx(0.3 / 0.5 + 0.1)
    assert time_at(of_time, 1500) == pytest.approx(0.3 / 1.5 + 0.1 + 2.0 * 0.5**2)
    curve = {"p_j": 20.0, "q_j_per_ghz": -3.0, "r_j_per_ghz": 7.0, "s_j_per_ghz2": 50.0}
    curve |= {"w_j_per_ghz2": -40.0, "low_knee_mhz": 1000, "high_knee_mhz": 1200}
    of_energy = {"energy": {"curve": curve}}
    assert energy_at(of_energy, 800) == pytest.approx(20 - 3 * 0.8)
    assert energy_at(of_energy, 1100) == pytest.approx(20 - 3 * 1.1 + 7 * 0.1 + 50 * 0.1**2)
    assert energy_at(of_energy, 1400) == pytest.approx(
        20 - 3 * 1.4 + 7 * 0.4 + 50 * 0.4**2 - 40 * 0.2**2
    )


@pytest.mark.parametrize("name", fitted_model_names())
def test_a_models_profile_lies_in_its_gpus_window_and_falls_with_the_clock(name: str) -> None:
    model = load_fitted_model(name)
    window = load_gpu_window(model.gpu)
    for points in model.profile.points.values():
        clocks_mhz = [point.frequency_mhz for point in points]
        assert clocks_mhz[0] == window.filter_max_mhz
        assert window.filter_min_mhz <= clocks_mhz[-1] < clocks_mhz[0]
        times_s = [point.time_s for point in points]
        assert times_s == sorted(times_s)
        energies_j = [point.energy_j for point in points]
        assert 0 < energies_j.index(min(energies_j)) < len(points) - 1, "a valley inside"
        # A GPU that waits draws less than one that computes, at any clock.
        assert min(point.energy_j / point.time_s for point in points) > model.blocking_power_w


def test_the_shape_over_the_clock_is_the_examples() -> None:
    """1020 of 1530 MHz is two thirds, as 940 of 1410: between the example's 930 and 945."""
    points = load_fitted_model("bert-336m").profile
    example = load_example_profile()
    for kind in (F, B):
        ratio = points.at(0, kind, 1020).time_s / points.at(0, kind, 1530).time_s
        highest_s = example.at(0, kind, 1410).time_s
        slow, fast = (example.at(0, kind, mhz).time_s / highest_s for mhz in (930, 945))
        assert fast < ratio < slow


def test_the_backward_computes_the_forward_again_but_not_that_of_the_head() -> None:
    bert = load_fitted_model("bert-336m").profile
    assert bert.at(0, B, 1530).time_s == pytest.approx(3 * bert.at(0, F, 1530).time_s, rel=1e-4)
    megatron = load_fitted_model("megatron-125m").profile
    forward_s, backward_s = (megatron.at(3, kind, 1530).time_s for kind in (F, B))
    assert 2 * forward_s < backward_s < 3 * forward_s


def test_every_figure_has_a_source_or_says_that_it_is_an_assumption() -> None:
    figures = [value for key, value in table().items() if key not in {"models", "gpus"}]
    figures += [figure for gpu in table()["gpus"].values() for figure in gpu.values()]
    assert len(figures) == 11
    assert all(len(figure["source"]) > 20 for figure in figures)
    assumed = [figure for figure in figures if "no source" in figure["source"]]
    assert all(figure["source"].startswith("Assumption, no source") for figure in assumed)

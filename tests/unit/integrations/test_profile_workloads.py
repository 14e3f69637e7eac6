"""Stages of models as workloads that a profile is measured on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="needs the extra 'huggingface'")
pytest.importorskip("transformers", reason="needs the extra 'huggingface'")

import torch
from torch import nn
from transformers import LlamaConfig

from flyball_integrations.huggingface import build_causal_lm, next_token_loss, stage_module
from flyball_integrations.torch.profile_workloads import torch_workload
from flyball_pipeline.instruction import InstructionKind as Kind


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    yield
    torch.set_num_threads(num_threads)


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4))


def gradients(module: nn.Module) -> list[torch.Tensor]:
    return [each.grad.clone() for each in module.parameters() if each.grad is not None]


def expected(module: nn.Module, hidden: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of one microbatch, whose output's own gradient is ones."""
    module.zero_grad()
    module(hidden).sum().backward()
    found = gradients(module)
    module.zero_grad()
    return found


def test_a_backward_can_be_run_again_and_adds_the_same_gradients_each_time() -> None:
    module, hidden = layers(), torch.randn(3, 8)
    once = expected(module, hidden)
    workload = torch_workload(module, hidden)
    assert workload.kinds == (Kind.FORWARD, Kind.BACKWARD)
    for num_runs in (1, 2, 3):
        workload.instructions["forward"]()
        workload.instructions["backward"]()
        for found, each in zip(gradients(module), once, strict=True):
            torch.testing.assert_close(found, num_runs * each)


def test_both_parts_of_a_split_backward_make_the_whole_in_any_number_and_order() -> None:
    module, hidden = layers(), torch.randn(3, 8)
    once = expected(module, hidden)
    workload = torch_workload(module, hidden, split_backward=True)
    assert workload.kinds == (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
    workload.instructions["backward_weight"]()
    workload.instructions["backward_input"]()
    workload.instructions["backward_input"]()
    for found, each in zip(gradients(module), once, strict=True):
        torch.testing.assert_close(found, each)
    workload.instructions["backward_weight"]()
    for found, each in zip(gradients(module), once, strict=True):
        torch.testing.assert_close(found, 2 * each)


@pytest.mark.parametrize("split", [False, True])
def test_a_first_stage_has_no_gradient_of_its_inputs(split: bool) -> None:
    module = layers()
    pixels = torch.randn(3, 8)
    once = expected(module, pixels)
    workload = torch_workload(module, pixels, input_gradients=False, split_backward=split)
    if split:
        workload.instructions["backward_input"]()
        assert gradients(module) == []
    workload.instructions["backward_weight" if split else "backward"]()
    for found, each in zip(gradients(module), once, strict=True):
        torch.testing.assert_close(found, each)


def test_a_forward_that_is_recomputed_keeps_nothing_for_a_backward() -> None:
    seen: list[bool] = []

    class Watched(nn.Module):  # type: ignore[misc] # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.inner = layers()

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            seen.append(torch.is_grad_enabled())
            return self.inner(hidden)

    workload = torch_workload(Watched(), torch.randn(3, 8), recompute=True)
    seen.clear()
    workload.instructions["forward"]()
    workload.instructions["recompute"]()
    assert seen == [False, True]


def test_a_module_without_a_backward_is_refused() -> None:
    module = layers().requires_grad_(False)
    with pytest.raises(ValueError, match="no tensor of the module's output needs a gradient"):
        torch_workload(module, torch.randn(3, 8), input_gradients=False)


@pytest.mark.parametrize(("stage", "split"), [(0, False), (1, True), (2, True)])
def test_stages_of_a_hugging_face_model_are_workloads(stage: int, split: bool) -> None:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    module = stage_module(build_causal_lm(config, seed=7), stage=stage, num_stages=3)
    tokens = torch.randint(0, 64, (2, 6))
    given = tokens if stage == 0 else torch.randn(2, 6, 16)
    workload = torch_workload(
        module,
        given,
        loss=(lambda scores: next_token_loss(scores, tokens)) if stage == 2 else None,
        split_backward=split,
    )
    for _ in range(2):
        for run_once in workload.instructions.values():
            run_once()
    assert len(gradients(module)) == len(list(module.parameters()))

"""Llama and GPT-2 cut into layers and stages, in one process; pipelines are tested elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs the extra 'huggingface'")
pytest.importorskip("transformers", reason="needs the extra 'huggingface'")

import torch
from transformers import (
    BertConfig,
    GPT2Config,
    LlamaConfig,
    LlamaModel,
    PretrainedConfig,
    PreTrainedModel,
)

from flyball_integrations.huggingface import (
    build_causal_lm,
    deepspeed_layers,
    next_token_loss,
    stage_module,
    sum_tied_gradients,
)
from flyball_integrations.huggingface.layers import layers_of
from flyball_integrations.huggingface.torch_stages import even_cuts

VOCABULARY_SIZE = 48
_LLAMA: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_GPT2: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 4,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**_LLAMA),
    "tied llama": LlamaConfig(**_LLAMA, tie_word_embeddings=True),
    "llama, scaled positions": LlamaConfig(
        **_LLAMA,
        max_position_embeddings=8,
        rope_scaling={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    ),
    "gpt2": GPT2Config(**_GPT2),
    "untied gpt2": GPT2Config(**_GPT2, tie_word_embeddings=False),
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module", params=CONFIGS)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    """A whole model in evaluation mode, so that nothing drops out."""
    return build_causal_lm(CONFIGS[request.param], seed=7).eval()


def tokens(*, length: int = 12, seed: int = 5) -> torch.Tensor:
    """Two sequences."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY_SIZE, (2, length), generator=generator)


def stages_of(model: PreTrainedModel, num_stages: int) -> list[torch.nn.Sequential]:
    return [stage_module(model, stage=s, num_stages=num_stages) for s in range(num_stages)]


# ------------------------------------------------------------------ the same model


def test_stages_in_a_row_give_the_loss_of_the_whole_model_at_every_length(
    model: PreTrainedModel,
) -> None:
    for num_stages in (1, 5):
        stages = stages_of(model, num_stages)
        for length in (12, 7, 16, 12):
            text = tokens(length=length)
            hidden = text
            for stage in stages:
                hidden = stage(hidden)
            whole = model(text, labels=text)
            loss = next_token_loss(hidden, text).item()
            assert loss == pytest.approx(whole.loss.item(), abs=1e-6)
            assert torch.allclose(hidden, whole.logits, atol=1e-6)


def test_positions_are_as_exact_in_a_stage_cast_to_bfloat16() -> None:
    stage = stage_module(build_causal_lm(CONFIGS["llama"], seed=7), stage=0, num_stages=1)
    hidden = torch.zeros(1, 1000, 32)
    exact, _ = stage[1].angles(hidden)
    stage.to(torch.bfloat16)
    assert stage(tokens()).dtype == torch.bfloat16
    rounded, _ = stage[1].angles(hidden.to(torch.bfloat16))
    # Half a unit in the last of bfloat16's eight bits; frequencies of eight bits were off by 1.
    assert torch.allclose(rounded.float(), exact, rtol=0.0, atol=2.0**-8)


def test_an_evaluation_in_inference_mode_does_not_spoil_training_after_it(
    model: PreTrainedModel,
) -> None:
    stage = stage_module(model, stage=0, num_stages=1)
    with torch.inference_mode():
        stage(tokens())
    next_token_loss(stage(tokens()), tokens()).backward()
    assert all(parameter.grad is not None for parameter in stage.parameters())


@pytest.mark.parametrize("num_stages", [1, 3, 6])
def test_the_slices_hold_every_layer_once_in_order(model: PreTrainedModel, num_stages: int) -> None:
    slices = stages_of(model, num_stages)
    assert all(len(layers) > 0 for layers in slices)
    parameters = [[*map(id, layer.parameters())] for layers in slices for layer in layers]
    assert parameters == [[*map(id, layer.parameters())] for layer in layers_of(model).in_order]
    assert {one for layer in parameters for one in layer} == {*map(id, model.parameters())}


# ------------------------------------------------------------------ the seed


def test_the_seed_alone_decides_the_weights() -> None:
    torch.manual_seed(1)
    one = build_causal_lm(CONFIGS["llama"], seed=7).state_dict()
    torch.manual_seed(2)
    same = build_causal_lm(CONFIGS["llama"], seed=7).state_dict()
    other = build_causal_lm(CONFIGS["llama"], seed=8).state_dict()
    assert all(torch.equal(weight, same[name]) for name, weight in one.items())
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])


def test_without_tied_weights_summing_gradients_asks_nobody() -> None:
    model = build_causal_lm(CONFIGS["llama"], seed=7)
    nobody: Any = None  # not even a process group exists
    for stage in stages_of(model, 3):
        sum_tied_gradients(stage, nobody)
    middle = stage_module(build_causal_lm(CONFIGS["gpt2"], seed=7), stage=1, num_stages=3)
    sum_tied_gradients(middle, nobody)


# ------------------------------------------------------------------ what is refused


def test_a_model_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match=r"type 'bert' into stages; supported: gpt2, llama$"):
        build_causal_lm(BertConfig(), seed=7)
    with pytest.raises(ValueError, match=r"LlamaModel into stages.*AutoModelForCausalLM$"):
        deepspeed_layers(LlamaModel(CONFIGS["llama"]), num_stages=2)
    # Its attention needs a mask.
    config = LlamaConfig(**_LLAMA, attn_implementation="eager")
    with pytest.raises(ValueError, match=r"'eager' into stages.*attn_implementation.*sdpa"):
        stage_module(build_causal_lm(config, seed=7), stage=0, num_stages=2)


def test_stages_that_do_not_exist_are_refused() -> None:
    model = build_causal_lm(CONFIGS["llama"], seed=7)
    for num_stages in (0, 8):
        # The embedding, four blocks, a norm and the head.
        expected = f"a model of 7 layers into {num_stages} stages; give 1 to 7 stages"
        with pytest.raises(ValueError, match=expected):
            deepspeed_layers(model, num_stages=num_stages)
        with pytest.raises(ValueError, match=expected):
            stage_module(model, stage=0, num_stages=num_stages)
    for stage in (-1, 2):
        with pytest.raises(ValueError, match=f"stage must be 0 to 1, not {stage}"):
            stage_module(model, stage=stage, num_stages=2)


# ------------------------------------------------------------------ where to cut


@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=8), data=st.data())
def test_no_other_cut_has_a_smaller_largest_part(sizes: list[int], data: st.DataObject) -> None:
    num_parts = data.draw(st.integers(1, len(sizes)))

    def largest(cuts: tuple[int, ...]) -> int:
        return max(sum(sizes[begin:end]) for begin, end in itertools.pairwise(cuts))

    all_cuts = [
        (0, *inner, len(sizes))
        for inner in itertools.combinations(range(1, len(sizes)), num_parts - 1)
    ]
    found = tuple(even_cuts(sizes, num_parts=num_parts))
    assert found in all_cuts
    assert largest(found) == min(largest(cuts) for cuts in all_cuts)

"""Cut models trained as pipelines over gloo: the same losses and weights as the whole model's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.integration.rank_server import Findings, RankServer

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")
pytest.importorskip("transformers", reason="needs the extra 'huggingface'")

MODELS = ("llama", "tied-gpt2")
FRAMEWORKS = ("deepspeed", "torch")


@pytest.fixture(scope="module")
def ranks(rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> list[Findings]:
    """Results of each of the two ranks."""
    folder = tmp_path_factory.mktemp("huggingface")
    return rank_server.run("huggingface_scenarios", folder, num_ranks=2)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_cut_model_has_losses_embedding_and_head_of_the_whole_one(
    ranks: Sequence[Findings], model: str, framework: str
) -> None:
    found = ranks[-1][model]  # the last stage knows the losses in both frameworks
    assert found[framework]["losses"] == pytest.approx(found["whole"]["losses"], abs=1e-6)
    for rank, end in enumerate(("embedding", "head")):
        found = ranks[rank][model]
        (weight,) = found[framework]["ends"]
        assert weight == pytest.approx(found["whole"][end], abs=1e-6)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_tied_weights_are_the_same_bits_on_both_stages_after_training(
    ranks: Sequence[Findings], framework: str
) -> None:
    ends = [rank["tied-gpt2"][framework]["ends"] for rank in ranks]
    assert ends[0] == ends[1]


@pytest.mark.parametrize("model", MODELS)
def test_training_moves_losses_and_weights_so_equality_means_something(
    ranks: Sequence[Findings], model: str
) -> None:
    whole = ranks[0][model]["whole"]
    assert len(set(whole["losses"])) == 3
    assert (whole["embedding"] == whole["head"]) == model.startswith("tied")

"""The callback of Hugging Face's Trainer, in a trainer that goes through the same calls.

transformers' own needs accelerate, which the tests do not install.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the extra 'huggingface'")

import torch
from tests.unit.integrations.test_announced_steps import Told, told, world  # noqa: F401 - fixtures
from torch import nn
from torch.distributed.fsdp import fully_shard

from flyball_integrations.huggingface import FlyballCallback
from flyball_integrations.huggingface.trainer import lengths_of_features

_TEXTS = [[1] * length for length in (5, 2, 7, 3, 4, 6, 8, 1, 9, 2)]


def padded(features: Sequence[Any]) -> dict[str, Any]:
    longest = max(len(each["input_ids"]) for each in features)
    rows = [each["input_ids"] + [0] * (longest - len(each["input_ids"])) for each in features]
    return {"input_ids": torch.tensor(rows)}


def packed(features: Sequence[Any]) -> dict[str, Any]:
    return {
        "input_ids": torch.tensor([[token for each in features for token in each["input_ids"]]])
    }


class DataLoaderShard:
    """As accelerate's: it reads one batch ahead, and nothing may be asked for behind the last."""

    def __init__(self, trainer: Trainer, collate: Callable[[Any], Any], *, fails_at: int) -> None:
        self._trainer, self._collate, self._fails_at = trainer, collate, fails_at

    def __iter__(self) -> Iterator[Any]:
        state = self._trainer.accelerator.gradient_state
        state.end_of_dataloader = False
        for first in range(0, len(_TEXTS), 2):
            if first == self._fails_at:
                raise OSError("this file is broken")
            batch = self._collate([{"input_ids": text} for text in _TEXTS[first : first + 2]])
            state.end_of_dataloader = first + 2 == len(_TEXTS)
            yield batch
        raise AssertionError("read behind its end")


class DataLoaderDispatcher(DataLoaderShard):
    """As accelerate's, by its name."""


class Trainer:
    """Calls of a training in the order of transformers' Trainer, over all batches of an epoch."""

    def __init__(self, collator: Callable[[Any], Any] = padded, **rules: Any) -> None:  # noqa: ANN401
        self.rules = {"fails_at": -1, "loader": DataLoaderShard, "accumulate": 2, **rules}
        self.is_fsdp = self.rules.pop("is_fsdp", False)
        self.data_collator = collator
        self.model_wrapped = nn.Linear(2, 2)
        self.accelerator = SimpleNamespace(gradient_state=SimpleNamespace(end_of_dataloader=False))
        self.state = SimpleNamespace(global_step=3, max_steps=100)
        self.args = SimpleNamespace(gradient_accumulation_steps=self.rules["accumulate"])
        self.inputs: list[Any] = []
        self.callback: FlyballCallback | None = None

    def get_train_dataloader(self) -> Any:  # noqa: ANN401
        return self.rules["loader"](self, self.data_collator, fails_at=self.rules["fails_at"])

    def get_batch_samples(self, iterator: Iterator[Any], number: int, device: str) -> Any:  # noqa: ANN401
        return [next(iterator) for _ in range(number)], device

    def train(self) -> None:
        callback, loader = self.callback, self.get_train_dataloader()
        assert callback is not None
        callback.on_train_begin(self.args, self.state, None)
        batches, left = iter(loader), len(_TEXTS) // 2
        while left and self.state.global_step < self.state.max_steps:
            number = min(self.rules["accumulate"], left)
            samples, device = self.get_batch_samples(batches, number, "cpu")
            assert device == "cpu"
            callback.on_step_begin(self.args, self.state, None)
            self.inputs += samples
            for place in range(1, 1 + (len(samples) if self.is_fsdp else 0)):
                model: Any = self.model_wrapped
                model.set_requires_gradient_sync(place == len(samples))  # accelerate's no_sync
                model(torch.ones(1, 2)).sum().backward()
            self.state.global_step += 1
            callback.on_step_end(self.args, self.state, None)
            left -= number
        callback.on_train_end(self.args, self.state, None)


def trainer(**rules: Any) -> Trainer:  # noqa: ANN401
    made = Trainer(**rules)
    made.callback = FlyballCallback(made, job_id="job", announces_work=True)
    return made


@pytest.fixture(autouse=True)
def _no_gpu(no_settings: None) -> None:
    """Each test attaches to a machine without a GPU."""


def test_each_step_is_announced_a_step_ahead_and_its_batches_are_the_collators(
    told: Told,  # noqa: F811
) -> None:
    training = trainer()
    before = dict(vars(training))
    training.train()
    assert told.plans == [(None, "step")]
    # Padded to the longest of two, two batches a step, and a last step of one.
    assert told.work == {
        3: [[5.0, 5.0, 7.0, 7.0]],
        4: [[6.0, 6.0, 8.0, 8.0]],
        5: [[9.0, 9.0]],
    }
    assert [set(inputs) for inputs in training.inputs] == [{"input_ids"}] * 5
    assert training.data_collator is padded
    assert set(vars(training)) == set(before)  # get_batch_samples is the class's again
    # Another training of the same trainer.
    training.state.global_step = 0
    training.train()
    assert told.plans[1:] == [(None, "step")]
    assert [step for step in told.work if step < 3] == [0, 1, 2]


@pytest.mark.parametrize("gathers_again", [True, False])
def test_each_batch_is_a_microbatch_where_fsdp2_accumulates(
    told: Told,  # noqa: F811
    world: None,  # noqa: F811
    gathers_again: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    training = trainer(is_fsdp=True, accumulate=2)
    model = nn.Sequential(nn.Linear(2, 2))
    fully_shard(model[0], reshard_after_forward=gathers_again)
    fully_shard(model, reshard_after_forward=gathers_again)
    training.model_wrapped = model
    training.train()
    assert told.plans == [(None, "instruction")]
    # The first step shows where ranks meet; the last has one batch.
    assert told.work == ({5: [[9.0, 9.0]]} if gathers_again else {})
    assert ("wait for each other in some microbatches" in caplog.text) != gathers_again


def test_nothing_is_read_behind_the_last_step(told: Told) -> None:  # noqa: F811
    training = trainer(accumulate=1)
    training.state.max_steps = 5
    training.train()
    assert sorted(told.work) == [3, 4]


def test_an_exception_of_the_loader_comes_in_its_own_step(told: Told) -> None:  # noqa: F811
    training = trainer(fails_at=4, accumulate=1)
    with pytest.raises(OSError, match="this file is broken"):
        training.train()
    assert len(training.inputs) == 2
    # The next training of this trainer detaches first.
    training.rules["fails_at"] = -1
    training.train()
    assert len(training.inputs) == 7


@pytest.mark.parametrize("why", ["dispatched", "no lengths", "not asked for"])
def test_a_training_that_cannot_announce_trains(
    told: Told,  # noqa: F811
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if why == "not asked for":
        training = Trainer()
        training.callback = FlyballCallback(training, job_id="job")
    elif why == "dispatched":
        training = trainer(loader=DataLoaderDispatcher)
    else:
        training = trainer(collator=lambda features: {"pixels": torch.zeros(2)})
    with caplog.at_level(logging.WARNING):
        training.train()
    assert (len(training.inputs), told.work) == (5, {})
    warned = [each.getMessage() for each in caplog.records if "huggingface" in each.name]
    assert len(warned) == (0 if why == "not asked for" else 1)
    assert all(line.startswith("steps are not announced: ") for line in warned)


def test_lengths_are_those_that_are_computed() -> None:
    features = [{"input_ids": [1, 2, 3]}, {"input_ids": [4]}]
    assert lengths_of_features(features, padded(features)) == [3, 3]
    assert lengths_of_features(features, packed(features)) == [3, 1]

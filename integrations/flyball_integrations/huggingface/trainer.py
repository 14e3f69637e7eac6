"""Flyball in Hugging Face's Trainer: a callback, nothing forked.

    trainer = Trainer(model, args, train_dataset=dataset, data_collator=collator)
    trainer.add_callback(FlyballCallback(trainer, job_id="llama", announces_work=True))
    trainer.train()

A callback sees no batch, so the trainer's `get_batch_samples` is wrapped: it reads one step ahead.
Lengths come with the batch from the collator, as Python integers, and are taken out before the
trainer has it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Unpack

import torch
from transformers import TrainerCallback

from flyball_integrations.data_parallel.rank_waits import fsdp_groups
from flyball_integrations.data_parallel.training import announcer_of, attach, detach, training_step
from flyball_integrations.shared.attach_options import (
    AttachOptions,
    announces_work,
    check_options,
)
from flyball_integrations.shared.attachment import Overrides
from flyball_integrations.shared.loading.step_work import BatchLengths

_logger = logging.getLogger(__name__)

LENGTHS_KEY = "flyball_lengths"
_INPUT = "input_ids"

CountLengths = Callable[[Sequence[Any], Any], Sequence[int]]


def lengths_of_features(features: Sequence[Any], batch: Any) -> Sequence[int]:  # noqa: ANN401
    """Return the lengths that a collated batch is computed with, in tokens.

    Args:
        features: what the collator has taken.
        batch: what it has made of them: with as many rows they are padded to one length, else
            packed.
    """
    num_rows, num_tokens = batch[_INPUT].shape
    if num_rows == len(features):
        return [num_tokens] * num_rows
    return [len(feature[_INPUT]) for feature in features]


class FlyballCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Callback that attaches Flyball to a trainer's model in each training.

    Args:
        trainer: transformers' Trainer that it is added to.
        job_id: the job's name at the planner; the same on all ranks.
        lengths: returns the lengths of a batch in tokens, from the collator's features and its
            batch; default: of `input_ids`. It runs where the collator does.
        options: of `attach` in `flyball_integrations.data_parallel`.

    Raises:
        TypeError: there is no such option.
        ValueError: `announces_work` is neither True nor False.
    """

    def __init__(
        self,
        trainer: Any,  # noqa: ANN401 - transformers has no types
        *,
        job_id: str,
        lengths: CountLengths = lengths_of_features,
        **options: Unpack[AttachOptions],
    ) -> None:
        check_options(FlyballCallback, options)
        self._trainer = trainer
        self._job_id = job_id
        self._options = options
        self._model: torch.nn.Module | None = None
        self._step = ExitStack()
        self._overrides = Overrides()
        self._reader: _StepReader | None = None
        if announces_work(options):
            # Its loader is made before a training begins, and evaluations have another.
            load = partial(_load_with_lengths, trainer, trainer.get_train_dataloader, lengths)
            Overrides().set(trainer, "get_train_dataloader", load)

    # ------------------------------------------------------------------ the trainer's events

    def on_train_begin(self, args: Any, state: Any, *_: object, **__: object) -> None:  # noqa: ANN401
        """Attach to the model that is trained."""
        self._end()
        model: torch.nn.Module = self._trainer.model_wrapped
        attach(
            model,
            job_id=self._job_id,
            initial_step=state.global_step,
            num_microbatches=self._num_microbatches(model, args.gradient_accumulation_steps),
            **self._options,
        )
        self._model = model
        if announcer_of(model) is not None:
            reading = self._reading_ahead(self._trainer.get_batch_samples)
            self._overrides.set(self._trainer, "get_batch_samples", reading)

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Begin a step."""
        if self._model is not None:
            self._step.enter_context(training_step(self._model))

    def on_step_end(self, *_: object, **__: object) -> None:
        """End the step; the optimizer has stepped."""
        self._step.close()

    def on_train_end(self, *_: object, **__: object) -> None:
        """Detach."""
        self._end()

    # ------------------------------------------------------------------ inside

    def _end(self) -> None:
        """Detach, also from a training that has failed."""
        self._step.close()
        self._overrides.remove()
        model, self._model, self._reader = self._model, None, None
        if model is not None:
            detach(model)

    def _num_microbatches(self, model: torch.nn.Module, num_accumulated: int) -> int | None:
        """Return the number of batches in a step, if they have clocks of their own.

        FSDP2 gathers parameters in each, also within accelerate's `no_sync`.
        """
        has_own = announces_work(self._options) and num_accumulated > 1
        return num_accumulated if has_own and fsdp_groups(model) else None

    def _reading_ahead(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        def get_batch_samples(batches: Iterator[Any], *args: object) -> object:
            reader = self._reader
            if reader is None or reader.batches is not batches:
                gradients = self._trainer.accelerator.gradient_state
                reader = _StepReader(batches, lambda: bool(gradients.end_of_dataloader))
                self._reader = reader
            samples = stock(reader, *args)
            self._announce(reader)
            return samples

        return get_batch_samples

    def _announce(self, reader: _StepReader) -> None:
        announcer = None if self._model is None else announcer_of(self._model)
        if announcer is None:
            return
        trainer, step, work = self._trainer, announcer.next_step, reader.taken()
        if work and step != reader.announced:
            announcer.announce(work, step)
        if trainer.state.global_step + 1 < trainer.state.max_steps:
            reader.announced = step + 1
            if work := reader.read_ahead(trainer.args.gradient_accumulation_steps):
                announcer.announce(work, step + 1)


def _load_with_lengths(trainer: Any, load: Callable[[], Any], lengths: CountLengths) -> Any:  # noqa: ANN401
    """Return the trainer's loader, with lengths in its batches."""
    collator = trainer.data_collator
    trainer.data_collator = counting = _CountingCollator(collator, lengths)
    try:
        loader = load()
    finally:
        trainer.data_collator = collator
    if type(loader).__name__ == "DataLoaderDispatcher":
        counting.lengths = None
        _logger.warning(
            "steps are not announced: rank 0 reads the batches of all ranks; set dispatch_batches"
            " to False in accelerator_config"
        )
    return loader


class _CountingCollator:
    """Collator whose batches have their lengths with them.

    Attributes:
        lengths: None: they have none.
    """

    def __init__(self, collator: Callable[[Any], Any], lengths: CountLengths) -> None:
        self._collator = collator
        self.lengths: CountLengths | None = lengths

    def __call__(self, features: Sequence[Any]) -> Any:  # noqa: ANN401 - the collator's
        batch = self._collator(features)
        if self.lengths is not None and isinstance(batch, MutableMapping):
            try:
                batch[LENGTHS_KEY] = [int(length) for length in self.lengths(features, batch)]
            except Exception as error:
                self.lengths = None
                _logger.warning("steps are not announced: lengths: %r", error)
        return batch


class _StepReader:
    """Batches of an epoch without their lengths, as far as they were read ahead or not.

    Args:
        batches: with lengths.
        is_at_end: returns whether the last batch was read; accelerate's loaders may not be asked
            for one more before it was trained on.

    Attributes:
        announced: number of the step that was read ahead; None: none yet.
    """

    def __init__(self, batches: Iterator[Any], is_at_end: Callable[[], bool]) -> None:
        self.batches = batches
        self.announced: int | None = None
        self._is_at_end = is_at_end
        self._ahead: deque[tuple[Any, Any]] = deque()
        self._failed: Exception | None = None
        self._taken: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - a batch
        if not self._ahead and self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        batch, lengths = self._ahead.popleft() if self._ahead else self._read()
        self._taken.append(lengths)
        return batch

    def taken(self) -> list[BatchLengths]:
        """Return the lengths of the batches taken since the last call; empty: not all have any."""
        taken, self._taken = self._taken, []
        return taken if all(taken) else []

    def read_ahead(self, num_batches: int) -> list[BatchLengths]:
        """Read the next step's batches; return their lengths; empty: not all have any."""
        while len(self._ahead) < num_batches and self._failed is None and not self._is_at_end():
            try:
                self._ahead.append(self._read())
            except StopIteration:
                break
            except Exception as error:  # of the next step, and raised there
                self._failed = error
        all_lengths = [lengths for _, lengths in self._ahead]
        return all_lengths if all(all_lengths) else []

    def _read(self) -> tuple[Any, Any]:
        batch = next(self.batches)
        if isinstance(batch, MutableMapping):
            return batch, batch.pop(LENGTHS_KEY, None)
        return batch, None

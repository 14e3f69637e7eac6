"""Loader that reads one step ahead, so that the step's work is known while the step before runs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, cast

from torch.utils._pytree import register_pytree_node

from flyball_integrations.shared.loading.loader_position import LoaderPosition
from flyball_integrations.shared.loading.step_work import StepAnnouncer, WorkReader

B = TypeVar("B")
# Of loaders that accelerate has prepared, which read one batch ahead themselves.
_IS_LAST = "end_of_dataloader"


class StepLoader(Generic[B]):
    """Items of a loader, read one step ahead and announced.

    Items and their order are the loader's. With each item of a step that is given, one of the next
    step is read, which is announced with the last. `state_dict`, the loader's own too, is that
    before what was read ahead. A pass reads nothing of the next pass. All other attributes are the
    loader's. A pass of an iterator begins with what was read ahead as the one before it was left.

    Args:
        loader: of batches.
        lengths: returns a batch's lengths, as the announcer takes them.
        find_announcer: returns the announcer; None: none yet, and nothing is read ahead.
        num_batches: number of batches in a step; None: one.
        gives_lists: True: with `num_batches`, those of a step come as a list.
    """

    def __init__(
        self,
        loader: Iterable[B],
        *,
        lengths: Callable[[B], Any],
        find_announcer: Callable[[], StepAnnouncer | None],
        num_batches: int | None = None,
        gives_lists: bool = True,
    ) -> None:
        if num_batches is not None and num_batches < 1:
            raise ValueError(f"accumulate must be at least 1, not {num_batches}")
        self._loader = loader
        self._work: WorkReader[B] = WorkReader(lengths)
        self._find_announcer = find_announcer
        self._num_batches = num_batches or 1
        self._gives_lists = gives_lists and num_batches is not None
        #: True: of the list before, the last batch was not seen to be taken.
        self._are_taken_unseen = False
        self._position = LoaderPosition(loader)
        self._pass = self._new_pass()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the loader's
        if name.startswith("__") or name == "_loader":  # as a copy looks for them
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        size = len(cast("Sequence[B]", self._loader))
        return math.ceil(size / self._num_batches) if self._gives_lists else size

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        is_iterator = cast("object", batches) is self._loader
        goes_on = is_iterator and not self._position.is_lost
        if not goes_on or not (self._pass.now or self._pass.ahead):
            self._position.release()
        own = self._pass = self._pass.go_on() if goes_on else self._new_pass()
        own.source = _Source(self._loader, batches)
        try:
            yield from self._steps(own)
        except GeneratorExit:  # the loop was left
            own.source = None
            if self._pass is own and not is_iterator:
                self._position.watch()
                self._pass = self._new_pass()
            raise

    def _new_pass(self) -> _Pass[B]:
        return _Pass(gives_lists=self._gives_lists)

    def _steps(self, own: _Pass[B]) -> Iterator[Any]:
        """Yield what each step of a pass is given."""
        announced: int | None = None
        yield from self._given(own)
        own.fill(self._num_batches)
        while own.ahead:
            own.now, own.ahead = own.ahead, deque()
            is_last = own.now[-1].is_last
            announcer = self._announcer()
            if announcer is not None:
                step = announcer.next_step
                if step != announced:
                    self._announce(announcer, step, own.now)
            if announcer is None or is_last:
                yield from self._given(own)
                own.fill(self._num_batches)
                announced = None
            else:
                announced = step + 1
                announce = partial(self._announce, announcer, announced)
                ahead = _ReadAhead(own, self._num_batches, announce)
                if self._are_taken_unseen:
                    ahead.finish()
                yield from self._given(own, ahead)
                ahead.finish()
                self._are_taken_unseen = self._gives_lists and not ahead.has_ended
        self._position.release()
        failed, own.failed = own.failed, None
        if failed is not None:
            raise failed

    def _announcer(self) -> StepAnnouncer | None:
        """Return the announcer, with the position kept; None: nothing is read ahead."""
        announcer = self._find_announcer()
        if announcer is not None and not self._work.is_broken and self._position.hold():
            return announcer
        self._position.release()
        return None

    def _given(self, own: _Pass[B], ahead: _ReadAhead[B] | None = None) -> Iterator[Any]:
        """Yield what a step is given, of which what was given is removed."""
        read = list(own.now)
        giving = partial(self._give, read, ahead)
        if self._gives_lists:
            own.now.clear()
            if read:
                self._set_is_last(read[-1].is_last)
                yield _Batches((reading.batch for reading in read), giving)
            return
        for number, reading in enumerate(read):
            own.now.popleft()
            giving(number)
            yield reading.batch

    def _give(self, read: Sequence[_Read[B]], ahead: _ReadAhead[B] | None, number: int) -> None:
        """Read ahead with a batch of a step; accelerate's loader is then where it would be."""
        if ahead is not None:
            ahead.go_on(number)
        self._set_is_last(read[number].is_last)

    def _set_is_last(self, is_last: bool) -> None:
        if hasattr(self._loader, _IS_LAST):
            setattr(self._loader, _IS_LAST, is_last)

    def _announce(self, announcer: StepAnnouncer, step: int, read: Iterable[_Read[B]]) -> None:
        self._work.announce(announcer, step, (reading.batch for reading in read))


class _Read(NamedTuple, Generic[B]):
    """Batch that was read."""

    batch: B
    #: True: accelerate's loader knows that it is the last batch.
    is_last: bool


class _Source(Generic[B]):
    """Batches of a pass, as the loader gives them."""

    def __init__(self, loader: object, batches: Iterator[B]) -> None:
        self._loader = loader
        self._batches = batches

    def read(self) -> _Read[B] | None:
        """Read one; None: there are no more."""
        for batch in self._batches:
            return _Read(batch, bool(getattr(self._loader, _IS_LAST, False)))
        return None


@dataclass
class _Pass(Generic[B]):
    """Batches that a pass has read and not given yet."""

    #: True: the batches of a step come as a list, and never some of them alone.
    gives_lists: bool
    now: deque[_Read[B]] = field(default_factory=deque)
    ahead: deque[_Read[B]] = field(default_factory=deque)
    #: Raised by the loader for the step that follows.
    failed: Exception | None = None
    #: Of further batches; None: the pass has not begun, or was left.
    source: _Source[B] | None = None

    def go_on(self) -> _Pass[B]:
        """Return a pass that begins with what is left of this pass."""
        return _Pass(self.gives_lists, self.now, self.ahead, self.failed)

    def fill(self, num_batches: int) -> None:
        """Read what is missing of the step that follows."""
        while self.failed is None and not self.is_whole(num_batches):
            if not self.read():
                return

    def is_whole(self, num_batches: int) -> bool:
        """Return whether all of the step that follows was read."""
        return len(self.ahead) == num_batches or any(reading.is_last for reading in self.ahead)

    def read(self) -> bool:
        """Read a batch of the step that follows; return whether there was one.

        What the loader raises comes with that step, after the batches that were read before.
        """
        try:
            read = None if self.source is None else self.source.read()
        except Exception as error:
            self.failed, read = error, None
            if self.gives_lists:
                self.ahead.clear()
        if read is not None:
            self.ahead.append(read)
        return read is not None


class _ReadAhead(Generic[B]):
    """Reading of the step that follows, with each batch of this one a part of it."""

    def __init__(
        self, own: _Pass[B], num_batches: int, then: Callable[[Iterable[_Read[B]]], None]
    ) -> None:
        self._own = own
        self._num_batches = num_batches
        self._then = then
        self._num_now = len(own.now)
        self._is_over = False
        #: Whether the last batch of this step was given.
        self.has_ended = False

    def go_on(self, number: int) -> None:
        """Read what belongs to a batch of this step, which is given now."""
        self.has_ended |= number + 1 == self._num_now
        self._read_to(math.ceil((1 + number) * self._num_batches / self._num_now))

    def finish(self) -> None:
        """Read what is left of it."""
        self._read_to(self._num_batches)

    def _read_to(self, number: int) -> None:
        own = self._own
        is_over = own.source is None or own.failed is not None
        while not (is_over or self._is_over) and len(own.ahead) < number:
            if not own.read() or own.is_whole(self._num_batches):
                self._is_over = True
                if own.ahead and own.failed is None:
                    self._then(own.ahead)


class _Batches(list[Any]):
    """Batches of a step; as they are taken, in a loop or by index, those of the next step are read.

    `torch.stack` takes them unseen. After a list whose last batch was not seen to be taken, the
    next step is read before the list is given.

    As a list is given, and as a batch is taken, `end_of_dataloader` of accelerate's loader is set
    for it, by which `Accelerator.accumulate` ends a step. Copies are plain lists, and torch's trees
    take it for one.
    """

    def __init__(
        self, batches: Iterable[Any], giving: Callable[[int], None] = lambda _: None
    ) -> None:
        super().__init__(batches)
        self._giving = giving

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(super().__iter__()):
            self._giving(number)
            yield batch

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - a number or a slice
        found = super().__getitem__(index)
        numbers = range(len(self))[index]
        for number in numbers if isinstance(numbers, range) else [numbers]:
            self._giving(number)
        return found

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        return list, (super().__getitem__(slice(None)),)


register_pytree_node(
    _Batches,
    lambda batches: (list(batches), None),
    lambda batches, _: list(batches),
)

"""Microbatches of a loader, read one step ahead for frameworks that ask for them one by one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar, cast

from flyball_integrations.shared.loading.loader_position import LoaderPosition
from flyball_integrations.shared.loading.step_work import StepAnnouncer, WorkReader, read_lengths

B = TypeVar("B")


class MicrobatchReader(Generic[B]):
    """Microbatches of a loader; with each of a step, about one of the next step is read.

    An iterator for frameworks that read a step's microbatches one by one, within the step. The next
    step is announced with the last microbatch of this step. The loader's `state_dict` is that
    before what was read ahead, and within a step that before the step: one copy is made for each.
    Where a step has fewer microbatches than the one before, it is that of an earlier step until
    those read ahead are taken.

    Args:
        loader: of microbatches, of all steps.
        lengths: returns a microbatch's lengths, as `read_lengths` takes them.
        announcer: of the rank's steps.
        num_microbatches: returns the number of microbatches of a step.
    """

    def __init__(
        self,
        loader: Iterable[B],
        *,
        lengths: Callable[[B], Any],
        announcer: StepAnnouncer,
        num_microbatches: Callable[[], int],
    ) -> None:
        # Megatron's have no `__iter__`.
        self._is_iterator = hasattr(loader, "__next__")
        self._batches = cast("Iterator[B]", loader) if self._is_iterator else iter(loader)
        self._work: WorkReader[B] = WorkReader(lambda batch: read_lengths(lengths(batch)))
        self._announcer = announcer
        self._num_microbatches = num_microbatches
        self._position = LoaderPosition(loader)
        self._position.release()
        self._ahead: deque[B] = deque()
        self._num_taken = 0
        # The loader's position after so many, at ends of steps: the newest that was reached, first.
        self._positions: deque[tuple[int, object]] = deque()
        self._failed: Exception | None = None
        # Of the step that runs: the next step's number, where it began, its number of microbatches,
        # and how many of them were read before.
        self._next_step: int | None = None
        self._first = self._number = self._num_before = 0
        self._is_over = False

    def __iter__(self) -> Iterator[B]:
        return self

    def __next__(self) -> B:
        if self._position.is_lost:
            self._lose_ahead()
        if not self._work.is_broken:
            self._begin_step(self._announcer.next_step)
            self._read_ahead()
        if self._ahead:
            batch = self._ahead.popleft()
            self._num_taken += 1
            self._show_position()
            return batch
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        return next(self._batches)

    @property
    def _num_read(self) -> int:
        return self._num_taken + len(self._ahead)

    def _lose_ahead(self) -> None:
        """Forget positions from before the loader was set elsewhere, and what an iterator read."""
        self._position.is_lost = False
        self._positions.clear()
        if self._is_iterator:
            self._ahead.clear()
            self._failed = self._next_step = None

    def _begin_step(self, next_step: int) -> None:
        """Note where a step begins; without effect within it."""
        if next_step == self._next_step:
            return
        self._next_step, self._is_over = next_step, False
        self._first, self._number = self._num_taken, max(self._num_microbatches(), 1)
        self._num_before = len(self._ahead)

    def _read_ahead(self) -> None:
        """Read what belongs to the microbatch that is taken now, and announce the next step.

        By the end of the step it and the next step are read, as evenly as that goes.
        """
        if self._is_over:
            return
        end = self._first + 2 * self._number
        missing = 2 * self._number - self._num_before
        taken = 1 + self._num_taken - self._first
        due = self._first + self._num_before + math.ceil(taken * missing / self._number)
        self._read_to(min(due, end))
        if self._num_read >= end:
            self._is_over = True
            self._announce()

    def _read_to(self, number: int) -> None:
        """Read until so many were read in all."""
        kept_at = self._first + self._num_before, self._first + self._number
        while self._num_read < number and self._failed is None and not self._is_over:
            if self._num_read in kept_at:
                if not self._position.capture():
                    self._is_over = True
                    break
                self._positions.append((self._num_read, self._position.captured))
            try:
                self._ahead.append(next(self._batches))
            except StopIteration:
                self._is_over = True
            except Exception as error:  # of the microbatch, and raised there
                self._failed = error
        self._show_position(is_new=True)

    def _announce(self) -> None:
        own = self._first + self._number - self._num_taken
        ahead = islice(self._ahead, own, own + self._number)
        self._work.announce(self._announcer, cast("int", self._next_step), ahead)

    def _show_position(self, *, is_new: bool = False) -> None:
        """Let the loader be where it was at the newest end of a step that was reached."""
        if not self._ahead:
            self._positions.clear()
            self._position.release()
            return
        while len(self._positions) > 1 and self._positions[1][0] <= self._num_taken:
            self._positions.popleft()
            is_new = True
        if is_new and self._positions:
            self._position.show(self._positions[0][1])

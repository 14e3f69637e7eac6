"""Loader that reads one step ahead, so that the step's work is known while the one before runs."""

from __future__ import annotations

import copy
import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from numbers import Integral, Real
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

import torch

from flyball_client.session.rank_session import RankSession
from flyball_integrations.shared.attachment import Overrides
from flyball_integrations.shared.device_hooks import DeviceHooks

_logger = logging.getLogger(__name__)

B = TypeVar("B")
# Of loaders that accelerate has prepared, which read one batch ahead themselves.
_IS_LAST = "end_of_dataloader"
BatchLengths = float | Sequence[float]
"""Lengths of a batch's sequences, or as a float its time over that in the profile."""


MicrobatchLengths = Sequence[BatchLengths]
"""Of each microbatch of a batch."""


class StepAnnouncer(Protocol):
    """Receiver of the work of steps, of one rank."""

    @property
    def next_step(self) -> int:
        """Number of the step that begins next."""
        ...

    def announce(self, work: Sequence[Any], step: int) -> None:
        """Announce a step by the lengths of each of its batches; it raises nothing."""
        ...


class PipelineAnnouncer:
    """Announcer of a pipeline's steps, by microbatch.

    Args:
        session: session of the rank.
        hooks: of the rank, by whose launches steps are counted.
    """

    def __init__(self, session: RankSession, hooks: DeviceHooks) -> None:
        self._session = session
        self._hooks = hooks

    @property
    def next_step(self) -> int:
        """Number of the step that is launched next."""
        return self._hooks.next_step

    def announce(self, work: Sequence[BatchLengths], step: int) -> None:
        """Announce a step whose batches are its microbatches."""
        self._session.announce_step(work, step=step)


class WholeBatchAnnouncer(PipelineAnnouncer):
    """Announcer of steps of one batch, which the pipeline splits into its microbatches."""

    def announce(self, work: Sequence[MicrobatchLengths], step: int) -> None:  # type: ignore[override]
        """Announce a step of one batch, with the lengths of each microbatch."""
        super().announce(work[0], step)


def split_lengths(given: object, num_microbatches: int) -> MicrobatchLengths:
    """Return the lengths of each microbatch of a batch.

    Args:
        given: as `read_lengths` takes it, for the sequences of the whole batch, which is split as
            `torch.tensor_split` does; or a list of it with an entry for each microbatch.
        num_microbatches: that the batch is split into.

    Raises:
        ValueError, TypeError: as `read_lengths`; or the list has another number of entries.
    """
    if isinstance(given, list | tuple) and not all(map(_is_number, given)):
        if len(given) != num_microbatches:
            raise ValueError(f"{len(given)} entries for {num_microbatches} microbatches")
        return [read_lengths(each) for each in given]
    lengths = read_lengths(given)
    if isinstance(lengths, float):
        return [lengths] * num_microbatches
    size, more = divmod(len(lengths), num_microbatches)
    ends = [size * number + min(number, more) for number in range(num_microbatches + 1)]
    return [lengths[first:end] for first, end in itertools.pairwise(ends)]


def read_lengths(given: object) -> BatchLengths:
    """Return lengths as numbers.

    Args:
        given: list, array or CPU tensor of lengths; a whole number: the only sequence's; another
            number: a factor. Arrays and tensors without a dimension are numbers.

    Raises:
        ValueError: it is a tensor on a GPU, which would have to be waited for.
        TypeError: it is none of these.
    """
    if isinstance(given, torch.Tensor):
        _check_host(given)
        given = given.tolist()
    if _is_number(given):
        number = _to_number(given)
        return [float(number)] if isinstance(number, Integral) else float(number)
    if isinstance(given, str | bytes | Mapping):
        raise TypeError(f"lengths must be numbers, not {given!r:.40}")
    return [float(_to_number(each)) for each in cast("Iterable[object]", given)]


def _check_host(given: torch.Tensor) -> None:
    if given.device.type != "cpu":
        raise ValueError(f"lengths must be on the host, not on {given.device}")


def _is_number(given: object) -> bool:
    return isinstance(given, Real) or getattr(given, "ndim", None) == 0


def _to_number(given: object) -> Real:
    if isinstance(given, torch.Tensor):
        _check_host(given)
    number = cast("Any", given).item() if getattr(given, "ndim", None) == 0 else given
    if not isinstance(number, Real):
        raise TypeError(f"lengths must be numbers, not {number!r:.40}")
    return number


class StepLoader(Generic[B]):
    """Items of a loader, read one step ahead and announced.

    Items and their order are the loader's. `state_dict`, the loader's own too, is that before what
    was read ahead. A pass reads nothing of the next one. All other attributes are the loader's.
    A pass of an iterator begins with what was read ahead as the one before it was left.

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
        self._lengths = lengths
        self._find_announcer = find_announcer
        self._num_batches = num_batches or 1
        self._gives_lists = gives_lists and num_batches is not None
        self._position = _Position(loader)
        self._is_broken = False
        self._pass: _Pass[B] = _Pass()

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
        own = self._pass = self._pass.go_on() if goes_on else _Pass()
        try:
            yield from self._steps(own, batches)
        except GeneratorExit:  # the loop was left
            if self._pass is own and not is_iterator:
                self._position.watch()
                self._pass = _Pass()
            raise

    def _steps(self, own: _Pass[B], batches: Iterator[B]) -> Iterator[Any]:
        """Yield what each step of a pass is given."""
        announced: int | None = None
        yield from self._given(own.now)
        if not own.ahead and own.failed is None:
            own.ahead = self._read(batches)
        while own.ahead:
            own.now, own.ahead = own.ahead, deque()
            is_last = own.now[-1].is_last
            announcer = self._find_announcer()
            looks_ahead = announcer is not None and not self._is_broken and self._position.hold()
            if not looks_ahead:
                self._position.release()
            elif announcer is not None:
                step = announcer.next_step
                if step != announced:
                    self._announce(announcer, own.now, step)
                try:
                    own.ahead = deque() if is_last else self._read(batches)
                except Exception as error:  # of the next step, and raised there
                    own.failed = error
                announced = step + 1
                if own.ahead:
                    self._announce(announcer, own.ahead, announced)
            yield from self._given(own.now)
            if own.failed is None and (not looks_ahead or is_last):
                own.ahead, announced = self._read(batches), None
        self._position.release()
        failed, own.failed = own.failed, None
        if failed is not None:
            raise failed

    def _read(self, batches: Iterator[B]) -> deque[_Read[B]]:
        found: deque[_Read[B]] = deque()
        for batch in islice(batches, self._num_batches):
            found.append(_Read(batch, bool(getattr(self._loader, _IS_LAST, False))))
            if found[-1].is_last:
                break
        return found

    def _given(self, now: deque[_Read[B]]) -> Iterator[Any]:
        """Yield what a step is given, with accelerate's loader where it would be.

        Args:
            now: batches of the step, of which those that were given are removed.
        """
        is_prepared = hasattr(self._loader, _IS_LAST)
        while now:
            if is_prepared:
                setattr(self._loader, _IS_LAST, now[0].is_last)
            if self._gives_lists:
                read = list(now)
                now.clear()
                yield _Batches(self._loader, read) if is_prepared else [each.batch for each in read]
            else:
                yield now.popleft().batch

    def _announce(self, announcer: StepAnnouncer, batches: Iterable[_Read[B]], step: int) -> None:
        if self._is_broken:  # since this step's own lengths
            return
        try:
            work = [self._lengths(each.batch) for each in batches]
        except Exception as error:
            self._is_broken = True
            _logger.warning("steps are no longer announced: lengths: %s", error)
            return
        announcer.announce(work, step)


class _Read(NamedTuple, Generic[B]):
    """Batch that was read."""

    batch: B
    #: Whether accelerate's loader knows that it is the last one.
    is_last: bool


@dataclass
class _Pass(Generic[B]):
    """What a pass has read and not given yet."""

    now: deque[_Read[B]] = field(default_factory=deque)
    ahead: deque[_Read[B]] = field(default_factory=deque)
    #: Raised by the loader for the step that follows.
    failed: Exception | None = None

    def go_on(self) -> _Pass[B]:
        """Return a pass that begins with what is left of this one."""
        return _Pass(self.now, self.ahead, self.failed)


class _Batches(list[Any]):
    """Batches of a step; each tells accelerate's loader whether it is the last one.

    `Accelerator.accumulate` ends a step there.
    """

    def __init__(self, loader: object, read: Sequence[_Read[Any]]) -> None:
        super().__init__(each.batch for each in read)
        self._loader = loader
        self._read = read

    def __iter__(self) -> Iterator[Any]:
        for batch, is_last in self._read:
            setattr(self._loader, _IS_LAST, is_last)
            yield batch


class _Position:
    """Position of a loader as it was before a step was read ahead.

    A loader shows at most one, that of its newest pass.
    """

    def __init__(self, loader: object) -> None:
        self._loader = loader
        self._is_stateful = callable(getattr(loader, "state_dict", None))
        self._overrides = Overrides()
        self._state: object = None
        self._iterator: object = None
        # The loader's own one as the loop was left, if it is watched.
        self._own: object = None
        self.captured: object = None
        self._can_be_held = True
        #: Whether the loader has gone somewhere else since this position was kept.
        self.is_lost = False

    def hold(self) -> bool:
        """Keep the position as it is now; return whether that was possible."""
        if not self.capture():
            return False
        self.show(self.captured)
        return True

    def capture(self) -> bool:
        """Copy the position as it is now to `captured`; return whether that was possible."""
        loader: Any = self._loader
        if not self._can_be_held:
            return False
        if not self._is_stateful:
            return True
        self.release()
        try:
            # What it returns may be what it goes on to change.
            self.captured = copy.deepcopy(loader.state_dict())
            self._iterator = vars(loader).get("_iterator")
        except AttributeError:  # accelerate's, around one without a position
            self._is_stateful = False
        except Exception as error:
            self._can_be_held = False
            _logger.warning("steps are not announced: state_dict of the loader: %s", error)
        return self._can_be_held

    def show(self, state: object) -> None:
        """Let the loader have a position that was captured."""
        loader: Any = self._loader
        self._overrides.remove()
        self._state, self.is_lost = state, False
        if self._is_stateful:
            self._overrides.set(loader, "state_dict", self._state_dict)
            if callable(getattr(loader, "load_state_dict", None)):
                self._overrides.set(loader, "load_state_dict", self._load_state_dict)

    def release(self) -> None:
        """Let the loader have its own position, whichever pass has overridden it."""
        override = getattr(self._loader, "__dict__", {}).get("state_dict")
        shown = getattr(override, "__self__", None)
        if isinstance(shown, _Position) and shown is not self:
            shown.lose()
        self._overrides.remove()
        self._state, self._own, self.is_lost = None, None, False

    def lose(self) -> None:
        """Let the loader have its own position, which what was read ahead does not follow."""
        self.release()
        self.is_lost = True

    def watch(self) -> None:
        """Let the loader have its own position again as soon as that changes.

        For a loop that was left: another pass may then begin without this class.
        """
        override = getattr(self._loader, "__dict__", {}).get("state_dict")
        if getattr(override, "__self__", None) is self:
            with suppress(Exception):  # as at the end of the process
                self._own = copy.deepcopy(self._own_state())

    def _own_state(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the loader's
        state = self._state
        self._overrides.remove()
        try:
            return cast("Any", self._loader).state_dict(*args, **kwargs)
        finally:
            self.show(state)

    def _state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the loader's
        loader: Any = self._loader
        # torch's loaders: another iterator, and so another pass that was begun without this class.
        has_moved = vars(loader).get("_iterator") is not self._iterator
        if not has_moved and self._own is not None:
            has_moved = _differ(self._own, self._own_state(*args, **kwargs))
        if not has_moved:
            return copy.deepcopy(self._state)
        self.lose()
        return loader.state_dict(*args, **kwargs)

    def _load_state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as above
        self.lose()
        return cast("Any", self._loader).load_state_dict(*args, **kwargs)


def _differ(first: object, second: object) -> bool:
    """Return whether states differ for certain, as their plain values and tensors tell."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() != second.keys() or any(
            _differ(value, second[key]) for key, value in first.items()
        )
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) != len(second) or any(map(_differ, first, second))
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return not torch.equal(first, second)
    plain = (str, bytes, int, float)
    if not isinstance(first, plain) or not isinstance(second, plain):
        return False
    return repr(first) != repr(second)  # not-a-number is like itself


class MicrobatchReader(Generic[B]):
    """Microbatches of a loader, those of the next step read and announced as a step begins.

    An iterator for frameworks that read a step's microbatches one by one, within the step. The
    loader's `state_dict` is that before what was read ahead, and within a step that before the
    step: one copy is made for each. Where a step has fewer microbatches than the one before, it is
    that of an earlier step until those read ahead are taken.

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
        self._lengths = lengths
        self._announcer = announcer
        self._num_microbatches = num_microbatches
        self._position = _Position(loader)
        self._position.release()
        self._ahead: deque[B] = deque()
        self._num_taken = 0
        # The loader's position after so many, at ends of steps: the newest that was reached, first.
        self._positions: deque[tuple[int, object]] = deque()
        self._next_step: int | None = None
        self._failed: Exception | None = None
        self._is_broken = False

    def __iter__(self) -> Iterator[B]:
        return self

    def __next__(self) -> B:
        if self._position.is_lost:
            self._lose_ahead()
        step = self._announcer.next_step
        if step != self._next_step and not self._is_broken:
            self._next_step = step
            self._read_ahead(step)
        if self._ahead:
            batch = self._ahead.popleft()
            self._num_taken += 1
            self._show_position()
            return batch
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        return next(self._batches)

    def _lose_ahead(self) -> None:
        """Forget positions from before the loader was set elsewhere, and what an iterator read."""
        self._position.is_lost = False
        self._positions.clear()
        if self._is_iterator:
            self._ahead.clear()
            self._failed = self._next_step = None

    def _read_ahead(self, step: int) -> None:
        """Read what is left of this step, and the next one's, whose number is given."""
        number = self._num_microbatches()
        if not self._read_to(2 * number, ends=number):
            return
        try:
            work = [
                read_lengths(self._lengths(batch)) for batch in islice(self._ahead, number, None)
            ]
        except Exception as error:
            self._is_broken = True
            _logger.warning("steps are no longer announced: lengths: %s", error)
        else:
            self._announcer.announce(work, step)

    def _read_to(self, number: int, *, ends: int) -> bool:
        """Read until so many are ahead; return whether there are.

        Args:
            number: to be ahead.
            ends: number of those that are left of this step.
        """
        is_first = True
        while len(self._ahead) < number and self._failed is None:
            if is_first or len(self._ahead) == ends:
                if not self._position.capture():
                    break
                self._positions.append(
                    (self._num_taken + len(self._ahead), self._position.captured)
                )
                is_first = False
            try:
                self._ahead.append(next(self._batches))
            except StopIteration:
                break
            except Exception as error:  # of the microbatch, and raised there
                self._failed = error
        self._show_position(is_new=True)
        return len(self._ahead) == number

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

"""Work of steps: lengths as numbers, and what announces them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Generic, Protocol, TypeVar, cast

import torch

from flyball_client.session.rank_session import RankSession
from flyball_integrations.shared.device_hooks import DeviceHooks

_logger = logging.getLogger(__name__)

B = TypeVar("B")

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
    """Announcer of a pipeline's steps, by microbatch."""

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


class WorkReader(Generic[B]):
    """Work of steps, by the lengths of their batches.

    Args:
        lengths: returns a batch's lengths, as the announcer takes them.

    Attributes:
        is_broken: True: lengths could not be read, and nothing is announced any more.
    """

    def __init__(self, lengths: Callable[[B], Any]) -> None:
        self._lengths = lengths
        self.is_broken = False

    def announce(self, announcer: StepAnnouncer, step: int, batches: Iterable[B]) -> None:
        """Announce a step by its batches; lengths that cannot be read are logged."""
        if self.is_broken:
            return
        try:
            work = [self._lengths(batch) for batch in batches]
        except Exception as error:
            self.is_broken = True
            _logger.warning("steps are no longer announced: lengths: %s", error)
        else:
            announcer.announce(work, step)


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
        return [read_lengths(of_microbatch) for of_microbatch in given]
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
    return [float(_to_number(value)) for value in cast("Iterable[object]", given)]


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

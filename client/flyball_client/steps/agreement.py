"""Agreement of ranks on a step: what their pipeline announces, and the slowest pipeline's time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Literal, Protocol, TypeVar, get_args

from flyball_pipeline.errors import PipelineError

T_co = TypeVar("T_co", covariant=True)

Coupling = Literal["step", "backward", "instruction", "unknown"]
"""Where data-parallel ranks wait for each other.

- `step`: at its end: pipelines, and DDP whose gradients are averaged once a step (`no_sync`).
- `backward`: at every backward: DDP that averages with each microbatch.
- `instruction`: at every forward and backward of a microbatch, or in their layers: FSDP, expert
  and context parallelism.
- `unknown`: steps get no plans of their own.
"""


def check_coupling(coupling: object) -> None:
    """Refuse what is no `Coupling`.

    Raises:
        PipelineError: it is none.
    """
    known = get_args(Coupling)
    if coupling not in known:
        raise PipelineError(f"must be {', '.join(known)}, not {coupling!r:.40}", field="coupling")


class AgreementError(Exception):
    """An exchange that failed or took too long; its ranks cannot agree any more."""


class Pending(Protocol[T_co]):
    """Exchange in progress."""

    def result(self) -> T_co | None:
        """Return the result, or None while there is none; it does not wait.

        Raises:
            AgreementError: The exchange has failed.
        """
        ...


class StepAgreement(Protocol):
    """Exchanges with other ranks on the CPU, one at a time and in the same order on all of them.

    Nothing here may wait: what is not done when it is asked for is asked for again.
    """

    def gather(self, message: bytes) -> Pending[list[bytes]]:
        """Begin to gather the messages of the ranks of this rank's pipeline, its own included."""
        ...

    def greatest(self, numbers: Sequence[float]) -> Pending[list[float]]:
        """Begin to find the greatest of each number over all pipelines; all give as many."""
        ...

    def close(self) -> None:
        """Give up what is in progress, without waiting for other ranks."""
        ...


class _Done(Generic[T_co]):
    """Exchange of a rank that is alone."""

    def __init__(self, found: T_co) -> None:
        self._found = found

    def result(self) -> T_co:
        return self._found


class AloneAgreement:
    """Agreement of the only rank."""

    def gather(self, message: bytes) -> Pending[list[bytes]]:
        """Return its own message."""
        return _Done([message])

    def greatest(self, numbers: Sequence[float]) -> Pending[list[float]]:
        """Return its own numbers."""
        return _Done(list(numbers))

    def close(self) -> None:
        """Do nothing."""

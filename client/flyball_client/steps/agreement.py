"""Agreement of ranks on a step: what their pipeline announces, and the slowest pipeline's time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeVar, get_args

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

    @property
    def gather(self) -> Callable[[bytes], Pending[list[bytes]]] | None:
        """Function that begins to gather messages of this rank's pipeline, its own included.

        None: it is alone there.
        """
        ...

    @property
    def greatest(self) -> Callable[[Sequence[float]], Pending[list[float]]] | None:
        """Function that begins to find the greatest of each number over all pipelines.

        All give as many. None: there is one pipeline.
        """
        ...

    def close(self) -> None:
        """Give up what is in progress, without waiting for other ranks."""
        ...


class AloneAgreement:
    """Agreement of the only rank."""

    gather = greatest = None

    def close(self) -> None:
        """Do nothing."""

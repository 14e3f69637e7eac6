"""Number of microbatches of a rank's steps, which a training may change in mid-run."""

from __future__ import annotations

from collections.abc import Callable


class StepShape:
    """Number of microbatches of the steps, followed where two steps in a row have another number.

    All ranks run the same microbatches, so all of them change at the same step.

    Attributes:
        num_microbatches: Number of the last steps; None: not known.
        tell: Called with a number that two steps in a row had, on the thread of the hooks.
    """

    def __init__(self) -> None:
        self.num_microbatches: int | None = None
        self.tell: Callable[[int], None] = lambda num_microbatches: None
        self._other: int | None = None

    def end_step(self, num_microbatches: int | None) -> None:
        """Count a step of this number; None: not known."""
        if num_microbatches is None or num_microbatches == self.num_microbatches:
            self._other = None
        elif num_microbatches != self._other:
            self._other = num_microbatches
        else:
            self._other, self.num_microbatches = None, num_microbatches
            self.tell(num_microbatches)

"""Which plan a rank runs: new ones wait here for the step from which all ranks run them."""

from __future__ import annotations

from collections import deque

from flyball_client.plan_cursor import CompiledPlan


class PlanSwitch:
    """Plans that have come, with their first steps.

    `put` may be called from another thread than the rest: a deque's append and popleft are
    atomic.
    """

    def __init__(self) -> None:
        self._arrived: deque[tuple[int, CompiledPlan]] = deque()
        self._awaiting_step: list[tuple[int, CompiledPlan]] = []

    def put(self, plan: CompiledPlan, first_step: int) -> None:
        """A plan has come that all ranks run from this step on."""
        self._arrived.append((first_step, plan))

    def take_due(self, step: int) -> CompiledPlan | None:
        """The newest plan whose first step has come; None: no other than before."""
        while self._arrived:
            self._awaiting_step.append(self._arrived.popleft())
        due = [i for i, (first_step, _) in enumerate(self._awaiting_step) if first_step <= step]
        if not due:
            return None
        plan = self._awaiting_step[due[-1]][1]
        # What came before it is superseded, even where its step is still to come.
        del self._awaiting_step[: due[-1] + 1]
        return plan

"""Which plan a rank runs: new ones wait here for the step from which all ranks run them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from flyball_client.session.plan_cursor import CompiledPlan

# A plan that is not chosen is offered again in every step, perhaps for ever.
_MAX_OFFERED = 16

PlanChoice = Callable[[tuple[CompiledPlan, ...]], CompiledPlan | None]


def newest_plan(due: tuple[CompiledPlan, ...]) -> CompiledPlan:
    """The plan that has come last."""
    return due[-1]


class PlanSwitch:
    """Plans that have come, with their first steps.

    `put` may be called from another thread than the rest: a deque's append and popleft are
    atomic.

    Args:
        choose: of the plans whose first step has come, in the order in which they came, at
            least one, which is to be run from now on; None: the one as before. What is not
            chosen is offered again at the next step, unless a later one was chosen; of those the 16
            that came last.
    """

    def __init__(self, choose: PlanChoice = newest_plan) -> None:
        self._choose = choose
        self._arrived: deque[tuple[int, CompiledPlan]] = deque()
        self._awaiting_step: list[tuple[int, CompiledPlan]] = []

    def put(self, plan: CompiledPlan, first_step: int) -> None:
        """A plan has come that all ranks run from this step on."""
        self._arrived.append((first_step, plan))

    def take_due(self, step: int) -> tuple[CompiledPlan, int] | None:
        """The plan to run from this step on, with its first step; None: no other than before."""
        while self._arrived:
            self._awaiting_step.append(self._arrived.popleft())
        due = [entry for entry in self._awaiting_step if entry[0] <= step]
        for entry in due[:-_MAX_OFFERED]:
            self._awaiting_step.remove(entry)
        offered = tuple(plan for _, plan in due[-_MAX_OFFERED:])
        chosen = self._choose(offered) if offered else None
        if chosen is None:
            return None
        # What came before it is superseded, even where its step is still to come.
        index = next(i for i, (_, plan) in enumerate(self._awaiting_step) if plan is chosen)
        first_step, _ = self._awaiting_step[index]
        del self._awaiting_step[: index + 1]
        return chosen, first_step

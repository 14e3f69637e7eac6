from __future__ import annotations

from dataclasses import replace

from tests.unit.client.memory_planner import compiled_plan

from flyball_client.session.active_plan import PendingPlans
from flyball_client.session.plan_cursor import CompiledPlan


def plan(version: int) -> CompiledPlan:
    return replace(compiled_plan(("forward", 0, 1200)), version=version)


class Chooser:
    """Chooses what it is told to, and remembers what it was offered."""

    def __init__(self) -> None:
        self.wanted: CompiledPlan | None = None
        self.offered: list[list[int]] = []

    def __call__(self, due: tuple[CompiledPlan, ...]) -> CompiledPlan | None:
        self.offered.append([plan.version for plan in due])
        return self.wanted


def test_the_newest_plan_whose_step_has_come_is_run_and_older_ones_are_forgotten() -> None:
    switch = PendingPlans()
    switch.put(plan(1), 2)
    switch.put(plan(2), 1)
    switch.put(plan(3), 5)
    assert switch.take_due(0) is None
    taken = switch.take_due(1)
    assert taken is not None
    assert (taken[0].version, taken[1]) == (2, 1)
    assert switch.take_due(4) is None
    taken = switch.take_due(7)
    assert taken is not None
    assert (taken[0].version, taken[1]) == (3, 5)
    assert switch.take_due(8) is None


def test_an_older_plan_may_be_chosen_and_the_newer_one_goes_on_waiting() -> None:
    chooser = Chooser()
    switch = PendingPlans(chooser)
    older, newer = plan(1), plan(2)
    switch.put(older, 1)
    switch.put(newer, 3)
    for step in range(4):
        assert switch.take_due(step) is None
    chooser.wanted = older
    assert switch.take_due(4) == (older, 1)
    chooser.wanted = newer
    assert switch.take_due(5) == (newer, 3)
    assert switch.take_due(6) is None
    # Nothing is offered where nothing is due.
    assert chooser.offered == [[1], [1], [1, 2], [1, 2], [2]]


def test_of_plans_that_are_never_chosen_the_newest_are_kept() -> None:
    chooser = Chooser()
    switch = PendingPlans(chooser)
    kept = [plan(version) for version in range(40)]
    for step, due in enumerate(kept[:39]):
        switch.put(due, step)
        assert switch.take_due(step) is None
    switch.put(kept[39], 100)
    assert switch.take_due(39) is None
    assert chooser.offered[-1] == list(range(23, 39))
    assert len(switch) == 17
    chooser.wanted = kept[39]
    assert switch.take_due(100) == (kept[39], 100)


def test_plans_that_are_equal_are_still_two() -> None:
    # A planner that has started over counts its versions from 1 again.
    chooser = Chooser()
    switch = PendingPlans(chooser)
    chooser.wanted = plan(1)
    switch.put(plan(1), 0)
    switch.put(chooser.wanted, 1)
    assert switch.take_due(1) == (chooser.wanted, 1)
    assert switch.take_due(2) is None


def test_plans_whose_first_step_never_comes_do_not_pile_up() -> None:
    switch = PendingPlans()
    for version in range(1, 1001):
        switch.put(plan(version), 10**9)
        if version % 100 == 0:
            assert switch.take_due(0) is None
    assert len(switch) <= 128
    taken = switch.take_due(10**9)
    assert taken is not None
    assert taken[0].version == 1000

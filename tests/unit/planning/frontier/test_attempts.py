"""How often a tiny pipeline is annealed: until a plan is as good as the bound, or all attempts."""

from __future__ import annotations

import pytest
from tests.unit.planning.oracles import every_plan, least_energy_j
from tests.unit.planning.tiny_pipelines import equal_profile, model_of

from flyball_server.planning.frontier.rounding import RoundedPlan, Rounding
from flyball_server.planning.frontier.solver import MAX_ATTEMPTS, DeadlineSolver


@pytest.mark.parametrize(
    ("slowdown", "fewest", "most"),
    [(1.0, 0, 1), (1.05, MAX_ATTEMPTS, MAX_ATTEMPTS)],
    ids=["the bound is a plan", "no plan is as good as the bound"],
)
def test_no_attempt_follows_a_plan_that_is_as_good_as_the_bound(
    slowdown: float, fewest: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    improve, seeds = Rounding.improve, list[int]()

    def counted(
        rounding: Rounding,
        plan: RoundedPlan,
        deadline_s: float,
        num_moves: int,
        *,
        is_hot: bool,
        seed: int,
    ) -> RoundedPlan:
        seeds.append(seed)
        return improve(rounding, plan, deadline_s, num_moves, is_hot=is_hot, seed=seed)

    monkeypatch.setattr(Rounding, "improve", counted)
    model = model_of(equal_profile(2), 2)
    solver = DeadlineSolver(model)
    deadline_s = solver.fastest_time_s * slowdown
    plan = solver.plan(solver.relax(deadline_s), num_moves=20_000)
    assert fewest <= len(seeds) == len(set(seeds)) <= most
    assert plan.energy_j == pytest.approx(least_energy_j(every_plan(model), deadline_s), rel=1e-9)

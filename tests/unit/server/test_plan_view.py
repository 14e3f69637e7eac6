"""A plan version as the wire shows it."""

from __future__ import annotations

from tests.planner.samples import plan_record

from flyball_server.http.mapping.jobs import plan_view
from flyball_server.jobs.records import StepReport


def test_a_comparison_does_not_look_like_the_plan_that_it_compares() -> None:
    plain = plan_record(1, first_step=4)
    compared = plain.evolve(
        version=2, baseline_cycle=(True, False, False, True), report=StepReport.CLOCKS
    )
    assert plan_view(plain).baseline_cycle == ()
    assert plan_view(plain).report == "totals"
    view = plan_view(compared)
    assert view.plan == plan_view(plain).plan
    assert (view.baseline_cycle, view.report) == ((True, False, False, True), "clocks")

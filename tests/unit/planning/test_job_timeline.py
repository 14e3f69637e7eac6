"""The timeline of a job's plan: rows by hand, the slowdowns of the plan, and invariants."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.documents.predicted_timeline import (
    critical_places,
    job_timeline,
    timeline_rows,
)
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.planning.simulated_plan import SimulatedPlan
from flyball_server.planning.stragglers.slowed_pipelines import make_slowed_plan
from flyball_wire.plans.plan import Plan, Slowdown
from flyball_wire.read_models import TimelineRow

from .tiny_pipelines import (
    B,
    F,
    any_requests,
    merged_profile,
    profile_of,
    profiles,
    request_of,
    slowed_request,
)

CLOSE = 1e-9


def rows_of(
    profile: StageProfile,
    plan: Plan,
) -> tuple[SimulatedPlan, tuple[TimelineRow, ...]]:
    """Of a plan that must be drawn as it was planned."""
    timeline, is_as_planned = job_timeline(profile, plan)
    assert is_as_planned
    return timeline, timeline_rows(timeline)


# ------------------------------------------------------------------ on paper


def test_of_a_pipeline_that_never_flushes_each_row_is_a_period_of_its_stage() -> None:
    """Two microbatches: stage 0 takes 3 s each of the 4 s of stage 1, and has 2 s to spare."""
    quick = {F: [(1410, 1.0, 6.0), (1000, 2.0, 5.0)], B: [(1410, 2.0, 9.0), (1000, 3.0, 8.0)]}
    slow = {F: [(1410, 2.0, 6.0), (1000, 3.0, 5.0)], B: [(1410, 2.0, 9.0), (1000, 3.0, 8.0)]}
    profile = profile_of([quick, slow])
    plan = make_plan(request_of(profile, 2, policy="baseline", schedule="pipedream")).plan
    timeline, (first, last) = rows_of(profile, plan)
    assert (first.kinds, first.microbatches) == ((F, B, F, B), (1, 0, 0, 1))
    assert (first.start_s, first.duration_s) == ((0.0, 1.0, 3.0, 4.0), (1.0, 2.0, 1.0, 2.0))
    assert (last.start_s, last.duration_s) == ((0.0, 2.0, 4.0, 6.0), (2.0, 2.0, 2.0, 2.0))
    assert (first.energy_j, first.float_s) == ((6.0, 9.0, 6.0, 9.0), (2.0,) * 4)
    assert critical_places(timeline) == ((1, 0), (1, 1), (1, 2), (1, 3))


def test_pipelines_that_run_alike_share_their_rows_and_wait_for_the_slow_one() -> None:
    """Of four pipelines of 3 s the third takes 3.5 s; the others' backward is slowed to that."""
    slow = Slowdown(stage=0, slowdown=7 / 6, dp_rank=2)
    plan = make_slowed_plan(slowed_request(merged_profile(4), slow, num_pipelines=4))
    timeline, (three, one) = rows_of(merged_profile(4), plan)
    assert [(row.dp_rank, row.stage) for row in (three, one)] == [(0, 0), (2, 0)]
    assert (three.clock_mhz, one.clock_mhz) == ((1410, 1000), (1410, 1410))
    assert three.energy_j == pytest.approx((30, 60))
    assert one.energy_j == pytest.approx((70 / 6, 210 / 6))
    assert one.duration_s == pytest.approx((7 / 6, 7 / 3))
    assert (three.blocking_power_w, one.blocking_power_w) == (15.0, 5.0)
    assert critical_places(timeline) == ((0, 0), (0, 1), (1, 0), (1, 1))
    # At the highest clocks the three have finished half a second before the fourth.
    at_highest = timeline_rows(timeline.baseline())
    assert at_highest[0].float_s == pytest.approx((0.5, 0.5))
    assert at_highest[1].float_s == pytest.approx((0.0, 0.0))


# ------------------------------------------------------------------ what holds always


def check(timeline: SimulatedPlan, rows: Sequence[TimelineRow]) -> None:
    """The rows add up to the iteration, and the critical paths lead through all of it."""
    whole = timeline.simulation.whole
    end_s = whole.iteration_time_s
    busy_j = sum(
        energy_j - row.blocking_power_w * duration_s
        for row in rows
        for energy_j, duration_s in zip(row.energy_j, row.duration_s, strict=True)
    )
    waiting_w = sum(row.blocking_power_w for row in rows)
    assert busy_j + waiting_w * end_s == pytest.approx(whole.energy_j, rel=CLOSE)
    idle_s = sum(end_s - sum(row.duration_s) for row in rows)
    assert idle_s / (len(rows) * end_s) == pytest.approx(whole.bubble_fraction, abs=CLOSE)
    ends_s = [
        [start + duration for start, duration in zip(row.start_s, row.duration_s, strict=True)]
        for row in rows
    ]
    assert max(map(max, ends_s)) == pytest.approx(end_s, rel=CLOSE)
    for row, of_row in zip(rows, ends_s, strict=True):
        assert min(row.float_s) >= 0
        assert all(
            end + slack <= end_s * (1 + CLOSE)
            for end, slack in zip(of_row, row.float_s, strict=True)
        )
        assert all(
            end <= start + CLOSE * end_s
            for end, start in zip(of_row, row.start_s[1:], strict=False)
        )
    places = critical_places(timeline)
    begins = [n for n, (r, at) in enumerate(places) if rows[r].start_s[at] == 0.0]
    assert len(begins) == len(timeline.models)
    for first, after in pairwise([*begins, len(places)]):
        for (r, at), (next_r, next_at) in pairwise(places[first:after]):
            begin_s = rows[next_r].start_s[next_at]
            assert begin_s == pytest.approx(ends_s[r][at], abs=CLOSE * end_s)


@settings(max_examples=20)
@given(any_requests())
def test_rows_of_a_plan_of_any_schedule_are_its_instructions_and_add_up_to_it(
    request: PlanRequest,
) -> None:
    plan = make_plan(request).plan
    timeline, rows = rows_of(request.profile, plan)
    for row, stage in zip(rows, plan.stages, strict=True):
        planned = [(item.kind, item.microbatch, item.chunk, item.frequency_mhz) for item in stage]
        columns = (row.kinds, row.microbatches, row.chunks, row.clock_mhz)
        assert list(zip(*columns, strict=True)) == planned
    check(timeline, rows)
    at_highest = timeline.baseline()
    assert at_highest.simulation.whole.energy_j == pytest.approx(plan.predicted.baseline_energy_j)
    check(at_highest, timeline_rows(at_highest))


@settings(max_examples=10)
@given(profiles(max_stages=3), st.integers(1, 3), st.sampled_from([0.8, 1.3]), st.data())
def test_rows_of_pipelines_of_uneven_speed_add_up_to_their_plan(
    profile: StageProfile, num_microbatches: int, slowdown: float, data: st.DataObject
) -> None:
    slowed = Slowdown(
        stage=data.draw(st.integers(0, profile.num_stages - 1)),
        slowdown=slowdown,
        dp_rank=data.draw(st.integers(0, 2)),
    )
    request = slowed_request(profile, slowed, num_pipelines=3, num_microbatches=num_microbatches)
    plan = make_slowed_plan(request)
    timeline, rows = rows_of(profile, plan)
    assert len(rows) == 2 * profile.num_stages
    assert timeline.simulation.whole.energy_j == pytest.approx(plan.predicted.energy_j)
    check(timeline, rows)

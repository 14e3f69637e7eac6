"""The mean clock of a stage, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.planner.samples import one_microbatch

from flyball_profiles.rank_merge import whole_stages
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.planner import make_plan
from flyball_server.views.plan_facts import mean_stage_clocks_mhz
from flyball_wire.plan_options import Effort, Policy
from flyball_wire.plans.plan import PipelinePlan, probe_of

from .tiny_pipelines import (
    B,
    F,
    equal_profile,
    profile_of,
    request_of,
    timed_profile,
)

# Stage 0 of two equal ones has time to spare for its second forward and its first backward.
PLAN = make_plan(request_of(equal_profile(2), 2, effort=Effort.LOW)).plan


def test_each_instruction_counts_by_what_it_takes_at_its_clock() -> None:
    """Stage 0: 1 s and 2 s at 1410 MHz; 1.25 s, and where there is room 2.5 s, at 1000 MHz."""
    assert [item.frequency_mhz for item in PLAN.stages[0]] == [1410, 1000, 1000, 1410]
    expected = (3 * 1410 + 3.75 * 1000) / 6.75
    assert mean_stage_clocks_mhz(PLAN, equal_profile(2)) == pytest.approx((expected, 1410.0))


@pytest.mark.parametrize(
    "profile",
    [
        None,
        equal_profile(3),
        profile_of([{F: [(1410, 1, 1), (900, 2, 1)], B: [(1410, 1, 1), (900, 2, 1)]}] * 2),
    ],
    ids=["no profile", "of other stages", "of other clocks"],
)
def test_where_the_times_are_not_known_each_counts_the_same(profile: StageProfile | None) -> None:
    assert mean_stage_clocks_mhz(PLAN, profile)[0] == pytest.approx((1410 + 1000) / 2)


def test_a_chunk_counts_by_its_own_time() -> None:
    """Chunks of 1 and 2 s, and of 3 and 4 s; the first one's forward at 1000 MHz takes 2 s."""
    chunks = (timed_profile(1, {F: 1.0, B: 2.0}), timed_profile(1, {F: 3.0, B: 4.0}))
    profile = whole_stages(chunks)
    plan = make_plan(request_of(profile, schedule="interleaved-1f1b", policy=Policy.BASELINE)).plan
    forward, *others = plan.stages[0]
    stages = ((forward._replace(frequency_mhz=1000), *others),)
    slowed = replace(plan, pipelines=(PipelinePlan(stages=stages),))
    expected = (2 * 1000 + (3 + 4 + 2) * 1410) / 11
    assert mean_stage_clocks_mhz(slowed, profile) == pytest.approx((expected,))
    # A profile of the whole stage alone does not know what a chunk takes.
    whole = timed_profile(1, {F: 4.0, B: 6.0})
    assert mean_stage_clocks_mhz(slowed, whole) == pytest.approx(((1000 + 3 * 1410) / 4,))


def test_of_a_plan_to_learn_from_it_is_over_all_steps_of_its_cycle() -> None:
    """Two steps of one row, one of another; forward takes 1 or 1.25 s, backward 2 or 2.5 s."""
    cycle_mhz = (((1410, 1000),), ((1000, 1410),), ((1410, 1000),))
    plan = probe_of(one_microbatch(1), cycle_mhz, 3.5)
    assert mean_stage_clocks_mhz(plan, None) == pytest.approx(((3 * 1410 + 3 * 1000) / 6,))
    expected = (2 * (1410 + 2500) + (1250 + 2 * 1410)) / (2 * 3.5 + 3.25)
    assert mean_stage_clocks_mhz(plan, equal_profile(1)) == pytest.approx((expected,))

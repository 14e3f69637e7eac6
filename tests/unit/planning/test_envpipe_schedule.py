"""EnvPipe's extra warm-up forwards, worked out by hand.

On `equal_profile` a backward takes 2 s at the highest clock and a forward 1.25 s at the valley.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_profiles.stage_profile import InstructionKind, StageProfile
from flyball_server.planning.schedules._base import ActivationMemory, ScheduleContext
from flyball_server.planning.schedules.envpipe import extra_warmup_forwards

from .tiny_pipelines import B, F, I, Points, W, context_of, equal_profile, profile_of, profiles


def bounded(
    num_stages: int, num_microbatches: int, free_bytes: tuple[int, ...], activation_bytes: int = 100
) -> ScheduleContext:
    return ScheduleContext(
        profile=equal_profile(num_stages),
        num_microbatches=num_microbatches,
        activation_memory=ActivationMemory(
            activation_bytes=(activation_bytes,) * num_stages, free_bytes=free_bytes
        ),
    )


@pytest.mark.parametrize(
    ("num_microbatches", "expected"),
    [
        # floor(2 * 3 / 1.25) = 4, floor(2 * 2 / 1.25) = 3, floor(2 / 1.25) = 1, and 0 at the end.
        (12, (4, 3, 1, 0)),
        (8, (4, 3, 1, 0)),
        # Stage 0 has 4 + 3 forwards in front: all 7. Stage 1 keeps its 3.
        (7, (3, 3, 1, 0)),
        # Stage 0 has all 5 in front with 1 extra, so stage 1 may have 2 though that is more.
        (5, (1, 2, 1, 0)),
        # Fewer microbatches than stages: M - (P - s) is negative for stage 0 and counts as 0.
        (3, (0, 0, 1, 0)),
        (1, (0, 0, 0, 0)),
    ],
)
def test_time_and_microbatches_bound_the_extra_forwards(
    num_microbatches: int, expected: tuple[int, ...]
) -> None:
    assert extra_warmup_forwards(context_of(equal_profile(4), num_microbatches)) == expected


@pytest.mark.parametrize(
    ("free_bytes", "expected"),
    [
        ((1000, 1000, 1000, 1000), (4, 3, 1, 0)),
        ((1000, 299, 1000, 1000), (4, 2, 1, 0)),
        ((1000, 1000, 99, 1000), (4, 3, 0, 0)),
        # Stage 0 has 6 of 8 in front: stage 1 may have no more than it.
        ((250, 1000, 1000, 1000), (2, 2, 1, 0)),
        # The rule goes down stage by stage: 0 is handed on through 1 to 2.
        ((0, 1000, 1000, 1000), (0, 0, 0, 0)),
        ((1000, 0, 1000, 1000), (4, 0, 0, 0)),
    ],
)
def test_memory_bounds_them_and_a_later_stage_never_leads_an_earlier_one(
    free_bytes: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert extra_warmup_forwards(bounded(4, 8, free_bytes)) == expected


def test_a_single_stage_has_none() -> None:
    assert extra_warmup_forwards(context_of(equal_profile(1), 6)) == (0,)


def test_both_parts_of_a_split_backward_count_as_the_wait() -> None:
    """Input 2 s and weight 3 s before a forward of 1 s: 5 with one stage behind."""
    stage: dict[InstructionKind, Points] = {
        F: [(2, 1.0, 1.0), (1, 9.0, 9.0)],
        I: [(2, 2.0, 1.0), (1, 9.0, 9.0)],
        W: [(2, 3.0, 1.0), (1, 9.0, 9.0)],
    }
    profile = profile_of([stage, stage])
    assert extra_warmup_forwards(context_of(profile, 20)) == (5, 0)


def test_the_valley_counts_only_what_the_schedule_runs() -> None:
    """Split parts beside a whole backward do not move the valley of forward and backward.

    Forward and backward together are least at 1 MHz (4 J), where a forward takes 2 s, so
    floor(4 / 2) = 2; with the parts, which nothing runs, it would be 2 MHz, 1 s and 4.
    """
    stage: dict[InstructionKind, Points] = {
        F: [(2, 1.0, 3.0), (1, 2.0, 2.0)],
        B: [(2, 4.0, 3.0), (1, 8.0, 2.0)],
        I: [(2, 1.0, 1.0), (1, 1.0, 90.0)],
        W: [(2, 1.0, 1.0), (1, 1.0, 90.0)],
    }
    profile = profile_of([stage, stage])
    assert extra_warmup_forwards(context_of(profile, 20)) == (2, 0)


@given(profiles(), st.integers(1, 8), st.data())
def test_the_bounds_and_the_consistency_rule_hold_always(
    profile: StageProfile, num_microbatches: int, data: st.DataObject
) -> None:
    num_stages = profile.num_stages
    slots = data.draw(st.lists(st.integers(0, 5), min_size=num_stages, max_size=num_stages))
    context = ScheduleContext(
        profile=profile,
        num_microbatches=num_microbatches,
        activation_memory=ActivationMemory(
            activation_bytes=(10,) * num_stages, free_bytes=tuple(10 * slot for slot in slots)
        ),
    )
    extra = extra_warmup_forwards(context)
    assert extra[-1] == 0
    for stage, more in enumerate(extra):
        assert 0 <= more <= slots[stage]
        assert more <= max(0, num_microbatches - (num_stages - stage))
    for stage in range(num_stages - 1):
        all_in_front = num_stages - stage + extra[stage] >= num_microbatches
        assert all_in_front or extra[stage] >= extra[stage + 1]

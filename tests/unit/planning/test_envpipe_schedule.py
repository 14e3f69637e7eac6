"""EnvPipe's extra warm-up forwards, worked out by hand.

On `equal_profile` a backward takes 2 s at the highest clock and a forward 1.25 s at the valley.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_profiles.stage_profile import InstructionKind, StageProfile
from flyball_server.planning.schedules._base import ActivationMemory, ScheduleContext
from flyball_server.planning.schedules.envpipe import extra_warmup_forwards

from .tiny_pipelines import B, F, I, Points, W, context_of, equal_profile, profile_of, profiles


@pytest.mark.parametrize(
    ("num_microbatches", "free_bytes", "expected"),
    [
        # floor(2 * 3 / 1.25) = 4, floor(2 * 2 / 1.25) = 3, floor(2 / 1.25) = 1, and 0 at the end.
        (12, None, (4, 3, 1, 0)),
        (8, None, (4, 3, 1, 0)),
        # Stage 0 has 4 + 3 forwards in front: all 7. Stage 1 keeps its 3.
        (7, None, (3, 3, 1, 0)),
        # Stage 0 has all 5 in front with 1 extra, so stage 1 may have 2 though that is more.
        (5, None, (1, 2, 1, 0)),
        # Fewer microbatches than stages: M - (P - s) is negative for stage 0 and counts as 0.
        (3, None, (0, 0, 1, 0)),
        (1, None, (0, 0, 0, 0)),
        (8, (1000, 1000, 1000, 1000), (4, 3, 1, 0)),
        (8, (1000, 299, 1000, 1000), (4, 2, 1, 0)),
        (8, (1000, 1000, 99, 1000), (4, 3, 0, 0)),
        # Stage 0 has 6 of 8 in front: stage 1 may have no more than it.
        (8, (250, 1000, 1000, 1000), (2, 2, 1, 0)),
        # The rule goes down stage by stage: 0 is handed on through 1 to 2.
        (8, (0, 1000, 1000, 1000), (0, 0, 0, 0)),
        (8, (1000, 0, 1000, 1000), (4, 0, 0, 0)),
    ],
)
def test_time_microbatches_and_memory_bound_the_extra_forwards(
    num_microbatches: int, free_bytes: tuple[int, ...] | None, expected: tuple[int, ...]
) -> None:
    """Four stages, activations of 100 bytes; a later stage never leads an earlier one."""
    context = context_of(equal_profile(4), num_microbatches)
    if free_bytes:
        memory = ActivationMemory(activation_bytes=(100,) * 4, free_bytes=free_bytes)
        context = replace(context, activation_memory=memory)
    assert extra_warmup_forwards(context) == expected


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

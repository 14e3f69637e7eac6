"""Small recorded steps, and the profile that they are replayed with."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import parse_stage_profile
from flyball_server.replay.steps.recorded_steps import parse_recorded_steps
from flyball_server.replay.steps.step_models import Steps, pipeline_steps

HEADER = "step,dp_rank,stage,instruction,microbatch,begin_s,time_s\n"
# Forwards and backwards take 10 % longer at 1200 MHz.
PROFILE_TEXT = """stage,instruction,frequency,time,energy
0,forward,1400,0.1,30
0,forward,1200,0.11,26
0,forward,1000,0.14,27
0,backward,1400,0.2,62
0,backward,1200,0.22,54
0,backward,1000,0.28,56
"""
WAITING_W = 80.0


def profile() -> StageProfile:
    """Return the profile of one stage."""
    return parse_stage_profile(PROFILE_TEXT)


def alone(of_steps: Sequence[Sequence[tuple[float, float]]]) -> str:
    """Return steps of ranks without a pipeline: a forward and a backward each, s."""
    rows = [
        f"{step},{rank},0,{kind},0,{begin_s},{time_s}\n"
        for step, ranks in enumerate(of_steps)
        for rank, (forward_s, backward_s) in enumerate(ranks)
        for kind, begin_s, time_s in (
            ("forward", 0, forward_s),
            ("backward", forward_s, backward_s),
        )
    ]
    return HEADER + "".join(rows)


def steps_of(
    text: str, *, transitions: ClockTransitions | None = None, gap_s: float = 0.0
) -> Steps:
    """Return the steps of a recording, all stages with the profile's curves."""
    return pipeline_steps(
        parse_recorded_steps(text),
        profile(),
        [WAITING_W],
        curve_stage=0,
        transitions=transitions,
        gap_s=gap_s,
    )

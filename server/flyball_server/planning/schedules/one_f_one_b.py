"""1F1B, PipeDream-Flush (Narayanan et al., 2021): one forward and one backward in turn."""

from __future__ import annotations

from flyball_server.planning.schedules._base import (
    Schedule,
    ScheduleContext,
    warmup_then_alternate,
)


def make_one_f_one_b(context: ScheduleContext) -> Schedule:
    """Stage s of P runs P - s forwards (P - s - 1 of them warm-up) before its first backward."""
    num_stages = context.profile.num_stages
    return Schedule(
        name="1f1b",
        num_microbatches=context.num_microbatches,
        stages=tuple(
            tuple(warmup_then_alternate(context, stage, num_stages - stage))
            for stage in range(num_stages)
        ),
    )

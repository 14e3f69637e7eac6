"""GPipe: all forwards, then all backwards (Huang et al., 2019)."""

from __future__ import annotations

from flyball_server.planning.schedules._base import (
    Schedule,
    ScheduleContext,
    warmup_then_alternate,
)


def make_gpipe(context: ScheduleContext) -> Schedule:
    """All M forwards of a stage, then its M backwards in the same order."""
    return Schedule(
        name="gpipe",
        num_microbatches=context.num_microbatches,
        stages=tuple(
            tuple(warmup_then_alternate(context, stage, context.num_microbatches))
            for stage in range(context.profile.num_stages)
        ),
    )

"""Schedules by name. A new one is a file beside these and a line in `SCHEDULES`."""

from __future__ import annotations

from flyball_server.planning.errors import PlanningError
from flyball_server.planning.schedules._base import (
    Schedule,
    ScheduleContext,
    ScheduleMaker,
    check_memory,
)
from flyball_server.planning.schedules.envpipe import ENVPIPE, make_envpipe
from flyball_server.planning.schedules.explicit import EXPLICIT, make_explicit
from flyball_server.planning.schedules.gpipe import (
    TORCHGPIPE,
    check_checkpoint,
    make_gpipe,
    make_torchgpipe,
)
from flyball_server.planning.schedules.interleaved import (
    make_interleaved_one_f_one_b,
    make_interleaved_zero_bubble,
    make_looped_bfs,
    make_zb_h1,
)
from flyball_server.planning.schedules.one_f_one_b import (
    make_early_recompute,
    make_one_f_one_b,
    make_pipedream,
    make_pipedream_2bw,
)
from flyball_server.planning.schedules.v_shaped import make_dualpipev, make_zbv
from flyball_server.planning.schedules.whole_step import STEP, make_step

SCHEDULES: dict[str, ScheduleMaker] = {
    "gpipe": make_gpipe,
    "1f1b": make_one_f_one_b,
    ENVPIPE: make_envpipe,
    TORCHGPIPE: make_torchgpipe,
    "early-recompute-1f1b": make_early_recompute,
    "interleaved-1f1b": make_interleaved_one_f_one_b,
    "looped-bfs": make_looped_bfs,
    "zb-h1": make_zb_h1,
    "interleaved-zb": make_interleaved_zero_bubble,
    "zbv": make_zbv,
    "dualpipev": make_dualpipev,
    "pipedream": make_pipedream,
    "pipedream-2bw": make_pipedream_2bw,
    STEP: make_step,
    EXPLICIT: make_explicit,
}


def make_schedule(name: str, context: ScheduleContext) -> Schedule:
    """Return the order called `name`.

    Raises:
        PlanningError: there is no such schedule, it cannot be made for this context, or a
            stage's memory cannot hold it.
    """
    if name not in SCHEDULES:
        raise PlanningError(f"unknown {name!r}; known: {', '.join(SCHEDULES)}", field="schedule")
    if context.order is not None and name != EXPLICIT:
        raise PlanningError(f"is for schedule {EXPLICIT}, not {name}", field="order")
    if context.extra_forwards is not None and name != ENVPIPE:
        raise PlanningError(f"is for schedule {ENVPIPE}, not {name}", field="extra_forwards")
    check_checkpoint(name, context.checkpoint)
    schedule = SCHEDULES[name](context)
    check_memory(schedule, context.activation_memory)
    return schedule

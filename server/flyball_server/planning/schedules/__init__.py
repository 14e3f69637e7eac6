"""Schedules by name. A new one is a file beside these and a line in `SCHEDULES`."""

from __future__ import annotations

from flyball_server.planning.errors import PlanningError
from flyball_server.planning.schedules._base import Schedule, ScheduleContext, ScheduleMaker
from flyball_server.planning.schedules.envpipe import make_envpipe
from flyball_server.planning.schedules.gpipe import make_gpipe
from flyball_server.planning.schedules.one_f_one_b import make_one_f_one_b

SCHEDULES: dict[str, ScheduleMaker] = {
    "gpipe": make_gpipe,
    "1f1b": make_one_f_one_b,
    "envpipe": make_envpipe,
}


def make_schedule(name: str, context: ScheduleContext) -> Schedule:
    """The order called `name`.

    Raises:
        PlanningError: there is no such schedule.
    """
    if name not in SCHEDULES:
        raise PlanningError(f"unknown {name!r}; known: {', '.join(SCHEDULES)}", field="schedule")
    return SCHEDULES[name](context)

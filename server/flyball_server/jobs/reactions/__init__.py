"""What the planner does by itself, in the order in which a job is looked at."""

from __future__ import annotations

import functools

from flyball_server.jobs.planning_slots import PlanningSlots
from flyball_server.jobs.reactions._base import Reaction
from flyball_server.jobs.reactions.ageing import Ageing
from flyball_server.jobs.reactions.comparing import Comparing
from flyball_server.jobs.reactions.pacing import Pacing
from flyball_server.jobs.reactions.probing import probing
from flyball_server.jobs.reactions.reconfiguring import reconfiguring
from flyball_server.jobs.reactions.replanning import replanning
from flyball_server.jobs.reactions.timetabled import timetabled


def all_reactions() -> tuple[Reaction, ...]:
    """Every reaction, for one reactor: some remember when they last looked at its jobs."""
    slots = PlanningSlots()
    return (
        Ageing(),
        functools.partial(replanning, slots=slots),
        functools.partial(probing, slots=slots),
        functools.partial(timetabled, slots=slots),
        Pacing(slots),
        Comparing(),
        reconfiguring,
    )

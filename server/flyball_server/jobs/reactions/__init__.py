"""What the planner does by itself: every reaction, in the order in which a job is looked at."""

from __future__ import annotations

from flyball_server.jobs.reactions._base import Reaction

REACTIONS: tuple[Reaction, ...] = ()

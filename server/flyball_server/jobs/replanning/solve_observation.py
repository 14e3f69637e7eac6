"""How long tries to plan a job take, and what comes of them."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

from flyball_server.jobs.errors import PlanningStoppedError, UnknownJobError
from flyball_server.jobs.replanning.solve import SupersededError
from flyball_server.jobs.services import JobServices, Solve


@contextmanager
def observed_solve(services: JobServices, policy: str) -> Generator[None]:
    """Tell `services.observe_solve` of the block, which makes a plan with this policy."""
    started_s = time.perf_counter()

    def tell(outcome: str) -> None:
        seconds = time.perf_counter() - started_s
        services.observe_solve(Solve(policy=policy, outcome=outcome, seconds=seconds))

    try:
        yield
    except (SupersededError, PlanningStoppedError, UnknownJobError):
        tell("superseded")
        raise
    except Exception:
        tell("failed")
        raise
    tell("planned")

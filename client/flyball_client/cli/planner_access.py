"""The planner of `--planner`, and errors of its calls as command errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from flyball_client.api.errors import PlannerError, PlannerRefusedError
from flyball_wire.command.command import CommandError

if TYPE_CHECKING:
    from flyball_client.api.planner_client import PlannerClient
    from flyball_wire.closed_loop import RecordedRuns

T = TypeVar("T")

_SHOWN_JOBS = 5


def open_planner(given: str | None) -> PlannerClient:
    """Open a client of the planner at this address, or the environment's; the caller closes it.

    Raises:
        CommandError: No address is given, or address or token cannot be used.
    """
    # Imported here, since httpx would slow down `flyball --help`.
    from flyball_client.api.planner_client import PlannerClient  # noqa: PLC0415

    name = "FLYBALL_PLANNER_URL" if given is None else "--planner"
    if given is not None and not given.strip():
        raise CommandError("--planner is empty; give the planner's address, or remove the option")
    url = given or os.environ.get("FLYBALL_PLANNER_URL")
    if not url:
        raise CommandError("give --planner URL, or set FLYBALL_PLANNER_URL")
    try:
        PlannerClient(url).close()
    except ValueError as error:
        raise CommandError(f"{name}: {error}") from None
    try:
        return PlannerClient(url, token=os.environ.get("FLYBALL_TOKEN") or None)
    except ValueError as error:
        raise CommandError(f"FLYBALL_TOKEN: {error}") from None


def asked(planner: PlannerClient, job_id: str | None, ask: Callable[[], T]) -> T:
    """Make a call about a job (None: about no single job), and return its result.

    Raises:
        CommandError: The planner cannot be reached, or refuses.
    """
    try:
        return ask()
    except PlannerRefusedError as error:
        if error.status == 401:
            raise CommandError(f"{error}; set FLYBALL_TOKEN to the planner's") from None
        if error.status != 404 or job_id is None:
            raise CommandError(str(error)) from None
        raise CommandError(_unknown(planner, job_id, error)) from None
    except PlannerError as error:
        raise CommandError(str(error)) from None


def recorded_runs(given: str | None, job_id: str) -> RecordedRuns:
    """Return a job's recorded runs from the planner at this address, or the environment's.

    Raises:
        CommandError: The planner cannot be reached, or refuses.
    """
    with open_planner(given) as planner:
        return asked(planner, job_id, lambda: planner.get_recorded_runs(job_id))


def _unknown(planner: PlannerClient, job_id: str, error: PlannerRefusedError) -> str:
    """Return the line of a 404: about a job that is not there, or something of one that is."""
    what = f"the planner at {planner.base_url} has no job {job_id!r}"
    try:
        names = [job.job_id for job in planner.list_jobs()]
    except PlannerError:
        return what
    if job_id in names:
        return str(error)
    if not names:
        seen = (
            "this token shows no other"
            if planner.options is not None and planner.options.token
            else "it has no other"
        )
        return f"{what}, and {seen}; a job appears when its ranks register"
    newest = ", ".join(names[: -_SHOWN_JOBS - 1 : -1])
    return f"{what}; of {len(names)} the newest: {newest}"

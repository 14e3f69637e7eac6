"""Ranks' calls of the planner; answers are reduced to the fields that a rank uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from flyball_client.api.connection import not_a_planner
from flyball_client.api.planner_client import MAX_WAIT_S, PlannerClient
from flyball_client.session.active_plan import compile_plan
from flyball_client.session.plan_cursor import CompiledPlan
from flyball_wire import routes
from flyball_wire.errors import CodecError
from flyball_wire.messages import (
    Accepted,
    Acknowledgement,
    JobRegistration,
    MeasurementBatch,
    PlanVersion,
    RankRegistration,
)

MAX_COUNT = 2**53
"""Largest version, and largest number of a step, which JSON's numbers keep exactly."""
_MAX_NAME_CHARS = 256

Answer = CompiledPlan | PlanVersion | Accepted | str | None


class KnownPlan(NamedTuple):
    """A plan that a rank has received.

    Attributes:
        version: Its version; 0: there is none.
        plan_id: Its identity beside that; None: not given.
    """

    version: int
    plan_id: str | None


NO_PLAN = KnownPlan(0, None)


class UnusablePlanError(CodecError):
    """The rank cannot run this plan."""

    def __init__(self, message: str, plan: KnownPlan) -> None:
        super().__init__(message)
        self.plan = plan


class PlannerCaller(Protocol):
    """Makes calls to one planner for a rank; may be used by several threads."""

    def call(self, procedure: str, *arguments: object, wait_s: float = 0.0) -> Answer:
        """Make one of the calls below.

        Args:
            procedure: Name of the function below.
            arguments: Its arguments after the client.
            wait_s: Time in s that the planner may take beside the usual, at most 60.

        Raises:
            PlannerError: The call failed.
            CodecError: What was to be sent has no JSON form.
            UnusablePlanError: The plan was received and cannot be run.
        """
        ...

    def close(self) -> None:
        """End the calls in progress; there are none afterwards."""
        ...


def perform(planner: PlannerClient, procedure: str, arguments: tuple[Any, ...]) -> Answer:
    """Make one of the calls below, by its name."""
    return _PROCEDURES[procedure](planner, *arguments)


def put_job(planner: PlannerClient, job_id: str, registration: JobRegistration) -> None:
    """Register a job; the answer, which has all its ranks, is not decoded."""
    planner.send("PUT", routes.JOB, job_id=job_id, body=registration, wait_s=MAX_WAIT_S)


def find_job(planner: PlannerClient, job_id: str) -> None:
    """Return where the planner has this job; PlannerRefusedError: it does not."""
    planner.send("GET", routes.JOB, job_id=job_id)


def put_rank(planner: PlannerClient, job_id: str, rank: int, registration: RankRegistration) -> str:
    """Register a rank, and return the run of the job that it is registered in."""
    run_id = planner.put_rank(job_id, rank, registration).run_id
    _check_name(planner, "run_id", run_id)
    return run_id


def newest_plan(  # noqa: PLR0917 - called by position
    planner: PlannerClient,
    job_id: str,
    rank: int,
    known: KnownPlan,
    wait_s: float,
    registration: RankRegistration,
) -> CompiledPlan | None:
    """Return the newest plan after the known one, for a rank that is registered in this way."""
    plan = planner.get_rank_plan(
        job_id, rank, after_version=known.version, plan_id=known.plan_id, wait_s=wait_s
    )
    if plan is None:
        return None
    _check_count(planner, "version", plan.version)
    _check_name(planner, "plan_id", plan.plan_id or "")
    try:
        return compile_plan(
            plan, stage=registration.stage, supported_mhz=registration.sm_clocks_mhz or ()
        )
    except CodecError as error:
        raise UnusablePlanError(str(error), KnownPlan(plan.version, plan.plan_id)) from None


def acknowledge(
    planner: PlannerClient,
    job_id: str,
    rank: int,
    acknowledgement: Acknowledgement,
    wait_s: float,
) -> PlanVersion:
    """Acknowledge a plan version, and wait for its first step."""
    activation = planner.acknowledge(job_id, rank, acknowledgement, wait_s=wait_s)
    _check_count(planner, "version", activation.version)
    _check_count(planner, "first_step", activation.first_step or 0)
    return activation


def post(planner: PlannerClient, job_id: str, rank: int, batch: MeasurementBatch) -> Accepted:
    """Post measured steps."""
    accepted = planner.post_measurements(job_id, rank, batch)
    _check_count(planner, "stored", accepted.stored)
    return accepted


def leave(planner: PlannerClient, job_id: str, rank: int, run_id: str | None) -> None:
    """Report the end of the rank's training."""
    planner.leave(job_id, rank, run_id=run_id)


_PROCEDURES: dict[str, Callable[..., Answer]] = {
    procedure.__name__: procedure
    for procedure in (put_job, find_job, put_rank, newest_plan, acknowledge, post, leave)
}


class DirectCaller:
    """PlannerCaller on the calling thread, for a client whose transport replaces the network.

    Args:
        planner: Client of the planner; not closed here.
    """

    def __init__(self, planner: PlannerClient) -> None:
        self._planner = planner

    def call(self, procedure: str, *arguments: object, wait_s: float = 0.0) -> Answer:
        """Make a call; `wait_s` is among the arguments of those that wait."""
        del wait_s
        return perform(self._planner, procedure, arguments)

    def close(self) -> None:
        """Do nothing: a call in progress ends with its timeout."""


def _check_count(planner: PlannerClient, name: str, value: int) -> None:
    if not 0 <= value <= MAX_COUNT:
        raise not_a_planner(planner.base_url, f"its {name} is not from 0 to {MAX_COUNT}")


def _check_name(planner: PlannerClient, name: str, value: str) -> None:
    if len(value) > _MAX_NAME_CHARS:
        raise not_a_planner(planner.base_url, f"its {name} has over {_MAX_NAME_CHARS} characters")

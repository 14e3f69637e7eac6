"""Plans: list and inspect the versions, and from which step each holds."""

from __future__ import annotations

from flyball_server.http.call_router import call_router
from flyball_server.http.dependencies import JobId, State, Version, WaitS
from flyball_server.http.mapping.jobs import activation_view, plan_view
from flyball_server.http.openapi import examples
from flyball_server.http.openapi.documentation import READ_ERRORS, answers
from flyball_server.jobs.activation.acknowledgements import activation_of
from flyball_server.jobs.records import ActivationRecord
from flyball_server.jobs.registry.inspection import get_plan, list_plans
from flyball_wire import messages, routes

ROUTER = call_router("plans")


@ROUTER.get(
    routes.PLANS,
    summary="List a job's plans",
    responses=answers([examples.PLAN], 404, *READ_ERRORS, meaning="All versions, rising."),
)
def get_plans(state: State, job_id: JobId) -> list[messages.PlanView]:
    """Every version with its prediction and the clock of every instruction of every stage."""
    return [plan_view(record) for record in list_plans(state.services, job_id)]


@ROUTER.get(
    routes.PLAN,
    name="get_plan",
    summary="Inspect a plan",
    responses=answers(examples.PLAN, 404, *READ_ERRORS, meaning="This version."),
)
def get_one_plan(state: State, job_id: JobId, version: Version) -> messages.PlanView:
    """One version; `plan` is what `flyball plan --json` prints."""
    return plan_view(get_plan(state.services, job_id, version))


@ROUTER.get(
    routes.ACTIVATION,
    name="get_activation",
    summary="From which step does a plan hold?",
    responses=answers(
        examples.ACTIVATION, 404, *READ_ERRORS, meaning="From which step the version holds."
    ),
)
async def get_plan_activation(
    state: State, job_id: JobId, version: Version, wait_s: WaitS
) -> messages.Activation:
    """Waits until all ranks have acknowledged the version (long poll).

    `first_step` is null when some have not by then, and stays so for a version that a newer
    one has overtaken.
    """

    async def look() -> ActivationRecord | None:
        activations = await state.rank_calls.activations.submit(job_id, None)
        activation = activation_of(activations, job_id, version)
        return None if activation.first_step is None else activation

    named = await state.waiters.until(job_id, look, wait_s=wait_s)
    return activation_view(named or ActivationRecord(version=version, first_step=None))

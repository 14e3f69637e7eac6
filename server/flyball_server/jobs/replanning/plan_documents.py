"""Any kind of plan as plain data, for storage and display."""

from __future__ import annotations

from typing import Any

from flyball_server.jobs.records import AnyPlan
from flyball_server.planning.documents.plan_document import (
    data_parallel_document,
    data_parallel_plan_from_document,
    is_data_parallel,
    plan_document,
    plan_from_document,
)
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.probe_plan import (
    ProbePlan,
    is_probe,
    probe_document,
    probe_from_document,
)


def any_plan_document(plan: AnyPlan, *, solve_s: float) -> dict[str, Any]:
    """Return the plan as JSON-ready data; `solve_s` is the planning time in s."""
    if isinstance(plan, ProbePlan):
        return {**probe_document(plan), "solve_s": solve_s}
    if isinstance(plan, FrequencyPlan):
        return plan_document(plan, solve_s=solve_s)
    return data_parallel_document(plan, solve_s=solve_s)


def any_plan_from_document(document: object) -> AnyPlan:
    """Return the plan from a document written by `any_plan_document`.

    Raises:
        PlanningError: the document is not a plan; `field` names the invalid part.
    """
    if is_probe(document):
        return probe_from_document(document)
    if is_data_parallel(document):
        return data_parallel_plan_from_document(document)
    return plan_from_document(document)

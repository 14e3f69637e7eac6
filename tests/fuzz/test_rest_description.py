"""Calls made up from the API's own description: each is answered as the description says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from schemathesis import engine
from schemathesis.engine import events
from schemathesis.schemas import BaseSchema
from tests.planner.live import LivePlanner, live_planner
from tests.planner.patience import PATIENCE_S

from flyball_server.jobs.auth.access import create_token
from flyball_wire.messages import TOKEN_HEADER

TOKEN = "a-token-of-this-test"  # noqa: S105 - opens nothing but its planner
UNSUITED_CHECKS = (
    "positive_data_acceptance",  # a valid value may still be one that the job cannot use
    "use_after_free",  # what is withdrawn can be looked at all the same
    "ensure_resource_availability",
    "unsupported_method",  # a word in the place of a rank is a bad rank, whatever the method
    "allow_header_conformance",
)


@pytest.fixture(scope="module")
def planner() -> Iterator[LivePlanner]:
    """A planner with a token, a job that is planned and one that waits for its profile."""
    with live_planner(token=TOKEN, max_wait_s=0.0) as live:
        live.http.headers[TOKEN_HEADER] = TOKEN
        live.put_planned_job("planned")
        live.put_job("waiting").raise_for_status()
        yield live


def described(planner: LivePlanner) -> BaseSchema:
    """The API as it describes itself, for calls that are the same in every run."""
    schema = schemathesis.openapi.from_url(f"{planner.http.base_url}/openapi.json")
    config = schema.config
    config.seed = 1
    config.request_timeout = PATIENCE_S
    config.headers = {TOKEN_HEADER: TOKEN}
    config.continue_on_failure = True
    config.generation.deterministic = True
    config.generation.with_security_parameters = False
    config.phases.stateful.enabled = False
    config.phases.coverage.unexpected_methods = set()
    for name in UNSUITED_CHECKS:
        getattr(config.checks, name).enabled = False
    return schema


def without_deletion(schema: BaseSchema) -> BaseSchema:
    """All calls but the one after which no other finds the job."""
    return schema.exclude(method="DELETE", path="/api/v1/jobs/{job_id}")


def called(schema: BaseSchema, *, max_examples: int, every_bound: bool = False) -> set[int]:
    """Make the calls, some of everything, all answered as described; the statuses.

    Args:
        schema: the API.
        max_examples: of each operation.
        every_bound: whether examples and bounds of all parameters and fields are tried once.
    """
    schema.config.phases.examples.enabled = every_bound
    schema.config.phases.coverage.enabled = every_bound
    schema.config.generation.max_examples = max_examples
    failures: list[str] = []
    statuses: set[int] = set()
    for event in engine.from_schema(schema).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            failures.append(str(getattr(event, "info", event)))
        if not isinstance(event, events.ScenarioFinished):
            continue
        recorder = event.recorder
        answers = (interaction.response for interaction in recorder.interactions.values())
        statuses |= {answer.status_code for answer in answers if answer is not None}
        for case_id, checks in recorder.checks.items():
            failed = [(check.name, check.failure_info) for check in checks if check.failure_info]
            if failed:
                command = recorder.cases[case_id].value.as_curl_command()[:2000]
                failures += [f"{name}: {failure.failure}\n{command}" for name, failure in failed]
    assert not failures, "\n\n".join(failures)
    return statuses


@pytest.mark.parametrize("job_id", ["planned", "waiting"])
def test_calls_about_a_job_that_is_there_are_answered_as_described(
    planner: LivePlanner, job_id: str
) -> None:
    schema = without_deletion(described(planner))
    parts: dict[str, Any] = {"path.job_id": job_id, "path.rank": 0, "path.version": 1}
    schema.config.parameters = parts
    is_planned = job_id == "planned"
    statuses = called(schema, max_examples=1, every_bound=is_planned)
    assert {200, 422} <= statuses
    assert max(statuses) < 500
    assert planner.http.get("/healthz").status_code == 200


def test_calls_of_those_who_are_no_operators_are_answered_as_described(
    planner: LivePlanner,
) -> None:
    store = planner.state.services.store
    of_job = create_token(store, job_id="planned", has_operator=True)[1]
    forged = "fb_0123456789abcdef_" + "A" * 43
    for token, allowed in (
        (of_job, {200, 201, 204, 400, 401, 403, 404, 409, 422}),
        (forged, {200, 401}),  # health and readiness, and nothing else
    ):
        schema = without_deletion(described(planner))
        schema.config.headers = {TOKEN_HEADER: token}
        statuses = called(schema, max_examples=1)
        assert {200, 403 if token == of_job else 401} <= statuses <= allowed


def test_calls_about_any_job_are_answered_as_described(planner: LivePlanner) -> None:
    statuses = called(described(planner), max_examples=1)
    assert {200, 404, 422} <= statuses
    assert max(statuses) < 500

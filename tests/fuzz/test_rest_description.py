"""Calls made up from the API's own description: each is answered as the description says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import schemathesis
from schemathesis import engine
from schemathesis.engine import events
from schemathesis.schemas import BaseSchema
from tests.planner.live import LivePlanner, live_planner

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


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What came of the calls.

    Attributes:
        failures: what was not as described, each with the call as a curl command.
        statuses: how often each HTTP status was answered.
    """

    failures: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    def add(self, event: events.ScenarioFinished) -> None:
        """Take in the calls of one scenario."""
        recorder = event.recorder
        for interaction in recorder.interactions.values():
            if interaction.response is not None:
                self.statuses[interaction.response.status_code] += 1
        for case_id, checks in recorder.checks.items():
            for check in checks:
                if check.failure_info is not None:
                    command = recorder.cases[case_id].value.as_curl_command()
                    failure = check.failure_info.failure
                    self.failures.append(f"{check.name}: {failure}\n{command[:2000]}")


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
    config.headers = {TOKEN_HEADER: TOKEN}
    config.continue_on_failure = True
    config.generation.deterministic = True
    config.generation.with_security_parameters = False
    config.phases.stateful.enabled = False
    config.phases.coverage.unexpected_methods = set()
    for name in UNSUITED_CHECKS:
        getattr(config.checks, name).enabled = False
    return schema


def called(schema: BaseSchema) -> Findings:
    """Make the calls."""
    found = Findings()
    for event in engine.from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            found.add(event)
        elif isinstance(event, events.NonFatalError | events.FatalError):
            found.failures.append(str(getattr(event, "info", event)))
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("job_id", ["planned", "waiting"])
def test_calls_about_a_job_that_is_there_are_answered_as_described(
    planner: LivePlanner, job_id: str
) -> None:
    schema = described(planner).exclude(method="DELETE", path="/api/v1/jobs/{job_id}")
    parts: dict[str, Any] = {"path.job_id": job_id, "path.rank": 0, "path.version": 1}
    schema.config.parameters = parts
    # Every bound of every parameter and field once, and some of everything.
    schema.config.phases.coverage.enabled = job_id == "planned"
    schema.config.generation.max_examples = 2
    found = called(schema)
    assert not found.failures, "\n\n".join(found.failures)
    assert {200, 422} <= set(found.statuses)
    assert max(found.statuses) < 500
    assert planner.http.get("/healthz").status_code == 200


@pytest.mark.timeout(600)
@pytest.mark.parametrize("caller", ["none", "forged", "job"])
def test_calls_of_those_who_are_no_operators_are_answered_as_described(
    planner: LivePlanner, caller: str
) -> None:
    store = planner.state.services.store
    tokens = {
        "none": {},
        "forged": {TOKEN_HEADER: "fb_0123456789abcdef_" + "A" * 43},
        "job": {TOKEN_HEADER: create_token(store, job_id="planned", has_operator=True)[1]},
    }
    schema = described(planner)
    schema.config.headers = tokens[caller]
    schema.config.phases.coverage.enabled = False
    schema.config.generation.max_examples = 1
    # The job stays for the calls that follow.
    schema = schema.exclude(method="DELETE", path="/api/v1/jobs/{job_id}")
    found = called(schema)
    assert not found.failures, "\n\n".join(found.failures)
    if caller == "job":
        assert {200, 403} <= set(found.statuses) <= {200, 201, 204, 400, 401, 403, 404, 409, 422}
    else:  # health and readiness, and nothing else
        assert set(found.statuses) == {200, 401}
        assert found.statuses[200] < 10 < found.statuses[401]


@pytest.mark.timeout(600)
def test_calls_about_any_job_are_answered_as_described(planner: LivePlanner) -> None:
    schema = described(planner)
    schema.config.phases.coverage.enabled = False
    schema.config.generation.max_examples = 3
    found = called(schema)
    assert not found.failures, "\n\n".join(found.failures)
    assert {200, 404, 422} <= set(found.statuses)
    assert max(found.statuses) < 500

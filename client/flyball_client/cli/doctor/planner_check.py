"""Whether the planner can be reached, is of our version, and takes our calls; nothing is stored."""

from __future__ import annotations

from collections.abc import Iterator

from flyball_client.api.errors import (
    PlannerCutOffError,
    PlannerDistrustedError,
    PlannerError,
    PlannerRefusedError,
)
from flyball_client.api.planner_client import PlannerClient, Retries
from flyball_client.api.trust import CA_FILE_VARIABLE, CaFileError
from flyball_client.cli.doctor.check_result import CheckResult
from flyball_wire.version import flyball_version

_TIMEOUT_S = 3.0
_NAME = "planner"
_TOKEN = "planner token"  # noqa: S105 - a check's name
# No job's name is as likely to be unknown; a known one does as well.
_PROBED_JOB = "flyball-doctor"


def check_address(url: str) -> None:
    """Check that this can be a planner's address.

    Raises:
        ValueError: it cannot.
    """
    PlannerClient(url).close()


def check_planner(url: str | None, token: str | None) -> Iterator[CheckResult]:
    """The planner at this address; None: there is none."""
    if not url:
        yield CheckResult(
            name=_NAME,
            state="warning",
            found="FLYBALL_PLANNER_URL is not set",
            advice="set it, or give attach its planner_url; without a planner ranks set no clock",
        )
        return
    try:
        check_address(url)
    except CaFileError as error:
        yield CheckResult.of_error(_NAME, error, f"correct {CA_FILE_VARIABLE}")
        return
    except ValueError as error:
        yield CheckResult.of_error(_NAME, error, "correct FLYBALL_PLANNER_URL")
        return
    try:
        planner = PlannerClient(
            url, token=token or None, timeout_s=_TIMEOUT_S, retries=Retries(num_attempts=2)
        )
    except ValueError as error:
        yield CheckResult.of_error(_TOKEN, error, "correct FLYBALL_TOKEN")
        return
    with planner:
        try:
            yield _version_result(planner.base_url, planner.health().version)
        except PlannerError as error:
            yield CheckResult.of_error(_NAME, error, _advice(planner.base_url, error))
            return
        yield _token_result(planner, has_token=bool(token))


def _advice(base_url: str, error: PlannerError) -> str:
    """Return what to do about a planner that did not answer, beside what the error says itself."""
    if isinstance(error, PlannerDistrustedError):
        return ""
    if isinstance(error, PlannerCutOffError) and base_url.startswith("http:"):
        return "it may speak TLS: try https://"
    return "start it with flyball serve on a --host that this machine reaches"


def _version_result(base_url: str, version: str) -> CheckResult:
    own = flyball_version()
    found = f"{base_url} answers, Flyball {' '.join(version.split())}"
    if version == own:
        return CheckResult(name=_NAME, state="ok", found=found)
    return CheckResult(
        name=_NAME,
        state="warning",
        found=f"{found}; here it is {own}",
        advice="install the same version on both; only equal ones are tested together",
    )


def _token_result(planner: PlannerClient, *, has_token: bool) -> CheckResult:
    try:
        planner.get_job(_PROBED_JOB)
    except PlannerRefusedError as error:
        if error.status == 401:
            return CheckResult(
                name=_TOKEN,
                state="problem",
                found="the planner does not take FLYBALL_TOKEN"
                if has_token
                else "the planner asks for a token, and FLYBALL_TOKEN is not set",
                advice="set FLYBALL_TOKEN to the planner's on every rank",
            )
        if error.status == 403:
            # Only a job's token is refused so, and it is a token that the planner knows.
            found = "the planner takes FLYBALL_TOKEN, which opens one job only"
            return CheckResult(name=_TOKEN, state="ok", found=found)
        if error.status != 404:
            return CheckResult.of_error(_TOKEN, error, state="warning")
    except PlannerError as error:
        return CheckResult.of_error(_TOKEN, error, state="warning")
    return CheckResult(name=_TOKEN, state="ok", found="the planner takes our calls")

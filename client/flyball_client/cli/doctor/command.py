"""`flyball doctor`: checks for setting clocks on this machine, with advice."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict

from flyball_client.api.errors import (
    PlannerCutOffError,
    PlannerDistrustedError,
    PlannerError,
    PlannerRefusedError,
)
from flyball_client.api.planner_client import PlannerClient, Retries
from flyball_client.api.trust import CA_FILE_VARIABLE, CaFileError
from flyball_client.cli.doctor.gpu_checks import check_gpus
from flyball_client.cli.doctor.machine_checks import (
    as_text,
    check_guard,
    check_records,
    check_state_dir,
    check_system,
    find_readable_records,
)
from flyball_client.cli.doctor.transition_checks import applied_table, check_transitions
from flyball_client.gpu.checks import CheckResult, ok, problem, warning
from flyball_client.gpu.registry import gpu_argument
from flyball_wire.command.command import Command, CommandError, flyball_version
from flyball_wire.command.python_child import python_command, python_environment

# Loading the driver takes some seconds, and each GPU one or two.
TIMEOUT_S = 60.0
_REAP_TIMEOUT_S = 1.0
_GPU_CHECKS = "GPU checks"
_PLANNER, _TOKEN = "planner", "planner token"
_PLANNER_TIMEOUT_S = 3.0
# The name of any job, existing or not.
_PROBED_JOB = "flyball-doctor"


def probe_gpus(named: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> list[CheckResult]:
    """Run `check_gpus` in a process, since a driver may hang or crash, and return its results.

    Args:
        named: Indices or UUIDs; empty: all.
        timeout_s: Timeout in s of all checks together.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(  # noqa: S603 - this Python, and indices and UUIDs
                python_command("-m", "flyball_client.cli.doctor.command", *named),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=python_environment(os.environ),
            )
        except OSError as error:
            return [CheckResult.of_error(_GPU_CHECKS, error, "they could not be started")]
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout_s)
            status = process.returncode
        finally:
            process.kill()
            # A process in a hanging driver cannot be killed.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_REAP_TIMEOUT_S)
        output.seek(0)
        results = list(_results(output.read()))
        errors.seek(0)
        lines = errors.read().decode("utf-8", "replace").splitlines()
    if status != 0:
        after = f" after {results[-1].name!r}" if results else ""
        results.append(_failure(status, after, lines, timeout_s))
    return results


def _results(output: bytes) -> Iterator[CheckResult]:
    for line in output.splitlines():
        # The driver's library may print lines of its own, and the last line may be incomplete.
        with contextlib.suppress(ValueError, TypeError):
            yield CheckResult(**json.loads(line))


def _failure(
    status: int | None, after: str, errors: Sequence[str], timeout_s: float
) -> CheckResult:
    if status is None:
        return problem(
            _GPU_CHECKS,
            f"the driver did not answer within {timeout_s:g} s{after}",
            "it hangs: see the kernel's log (dmesg, Xid); a reset or reboot may be needed",
        )
    text = next((" ".join(line.split()) for line in reversed(errors) if line.strip()), "no text")
    how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with {status}: {text}"
    return problem(
        _GPU_CHECKS,
        f"they were aborted{after} {how}",
        "see the kernel's log; if it does not mention the GPU, report this line",
    )


def main() -> int:
    """Print the results, one JSON line each."""
    for result in check_gpus(sys.argv[1:], os.environ):
        print(json.dumps(asdict(result)), flush=True)
    return 0


def check_planner(url: str | None, token: str | None) -> Iterator[CheckResult]:
    """Check the planner at this address; None: there is none."""
    if not url:
        advice = "set it, or pass planner_url to attach; without a planner ranks set no clocks"
        yield warning(_PLANNER, "FLYBALL_PLANNER_URL is not set", advice)
        return
    name, variable = _PLANNER, "FLYBALL_PLANNER_URL"
    try:
        PlannerClient(url).close()
        name, variable = _TOKEN, "FLYBALL_TOKEN"
        retries = Retries(num_attempts=2)
        planner = PlannerClient(
            url, token=token or None, timeout_s=_PLANNER_TIMEOUT_S, retries=retries
        )
    except ValueError as error:
        if isinstance(error, CaFileError):
            variable = CA_FILE_VARIABLE
        yield CheckResult.of_error(name, error, f"correct {variable}")
        return
    with planner:
        try:
            version = planner.health().version
        except PlannerError as error:
            yield CheckResult.of_error(_PLANNER, error, _advice(planner.base_url, error))
            return
        yield _version_result(planner.base_url, version)
        yield _token_result(planner, has_token=bool(token))


def _advice(base_url: str, error: PlannerError) -> str:
    """Return the advice for a planner that did not answer, besides the error's own."""
    if isinstance(error, PlannerDistrustedError):
        return ""
    if isinstance(error, PlannerCutOffError) and base_url.startswith("http:"):
        return "it may use TLS: try https://"
    return "start it with flyball serve on a --host that this machine can reach"


def _version_result(base_url: str, version: str) -> CheckResult:
    own = flyball_version()
    found = f"{base_url} answers, Flyball {' '.join(version.split())}"
    if version == own:
        return ok(_PLANNER, found)
    advice = "install the same version on both; only equal ones are tested together"
    return warning(_PLANNER, f"{found}; here it is {own}", advice)


def _token_result(planner: PlannerClient, *, has_token: bool) -> CheckResult:
    try:
        planner.get_job(_PROBED_JOB)
    except PlannerError as error:
        status = error.status if isinstance(error, PlannerRefusedError) else None
        if isinstance(error, PlannerRefusedError) and error.is_read_only:
            advice = "set it to the job's on every rank: flyball token create --job JOB"
            return problem(_TOKEN, "FLYBALL_TOKEN is read-only, so no rank registers", advice)
        if status == 401:
            found = "the planner requires a token, and FLYBALL_TOKEN is not set"
            if has_token:
                found = "the planner refuses FLYBALL_TOKEN"
            return problem(_TOKEN, found, "set FLYBALL_TOKEN to the planner's on every rank")
        if status == 403:  # the status for another job's valid token
            return ok(_TOKEN, "the planner accepts FLYBALL_TOKEN, for one job only")
        if status != 404:
            return CheckResult.of_error(_TOKEN, error, state="warning")
    return ok(_TOKEN, "the planner accepts calls")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpu",
        action="append",
        default=[],
        type=gpu_argument,
        metavar="INDEX|UUID",
        help="only this GPU; repeatable (default: all)",
    )
    parser.add_argument(
        "--planner", metavar="URL", help="the planner's address (default: FLYBALL_PLANNER_URL)"
    )
    parser.add_argument(
        "--planner-only", action="store_true", help="check the planner only, not this machine"
    )
    parser.add_argument(
        "--transitions",
        nargs="?",
        const="",
        metavar="NAME|FILE",
        help="also measure clock changes for half a minute, which sets clocks, and compare them"
        " with those of this GPU or TOML file (default: FLYBALL_TRANSITIONS, else"
        " FLYBALL_GPU_TYPE)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.planner_only and arguments.gpu:
        raise CommandError("--planner-only checks no GPU; remove --gpu")
    changes: str | None = arguments.transitions
    if changes is not None and (arguments.planner_only or arguments.gpu):
        raise CommandError(
            "--transitions measures the GPUs that CUDA sees; remove --gpu and --planner-only"
        )
    environ = os.environ
    table = None if changes is None else applied_table(changes, environ)
    planner_results = _check_planner(arguments.planner, is_needed=arguments.planner_only)
    checks: dict[str, Callable[[], Iterable[CheckResult]]] = {}
    if not arguments.planner_only:
        checks = {
            "system": check_system,
            "state folder": lambda: [check_state_dir(environ)],
            "guard": lambda: [check_guard(environ)],
            "records": lambda: check_records(find_readable_records(environ)),
            _GPU_CHECKS: lambda: probe_gpus(arguments.gpu),
        }
    if changes is not None:
        checks["clock changes"] = lambda: check_transitions(table, environ)
    results = [result for name in checks for result in _guarded(name, checks[name])]
    results += planner_results
    print(_as_json(results) if arguments.json else as_text(results))
    return 1 if any(result.state == "problem" for result in results) else 0


def _check_planner(given: str | None, *, is_needed: bool) -> list[CheckResult]:
    if given is not None:
        try:
            PlannerClient(given).close()
        except CaFileError:
            pass  # reported by the check
        except ValueError as error:
            raise CommandError(f"--planner: {error}") from None
    url = given or os.environ.get("FLYBALL_PLANNER_URL")
    if is_needed and not url:
        raise CommandError("--planner-only needs --planner URL or FLYBALL_PLANNER_URL")
    return _guarded(_PLANNER, lambda: check_planner(url, os.environ.get("FLYBALL_TOKEN")))


def _guarded(name: str, check: Callable[[], Iterable[CheckResult]]) -> list[CheckResult]:
    """Return a check's results; an unexpected error of the check is a problem."""
    results: list[CheckResult] = []
    try:
        results.extend(check())
    except Exception as error:
        results.append(CheckResult.of_error(name, RuntimeError(f"the check failed: {error!r}")))
    return results


def _as_json(results: list[CheckResult]) -> str:
    document = {
        "version": flyball_version(),
        "num_problems": sum(result.state == "problem" for result in results),
        "num_warnings": sum(result.state == "warning" for result in results),
        "checks": [asdict(result) for result in results],
    }
    return json.dumps(document, indent=2)


COMMAND = Command(configure=_configure, run=_run)


if __name__ == "__main__":
    sys.exit(main())

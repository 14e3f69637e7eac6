"""`flyball doctor`: whether clocks can be set here, and what to do where they cannot."""

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
from typing import IO

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
    CheckResult,
    as_text,
    check_records,
    check_state_dir,
    check_system,
    find_all_records,
)
from flyball_client.gpu.open_gpu import gpu_argument
from flyball_wire.command import Command, CommandError, flyball_version

# Some seconds for a driver that must be loaded first, and a second or two for each GPU.
TIMEOUT_S = 60.0
_REAP_TIMEOUT_S = 1.0
_GPU_CHECKS = "GPU checks"


def probe_gpus(named: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> list[CheckResult]:
    """Return what `check_gpus` finds in this environment, as far as it comes within the time.

    Args:
        named: indices or UUIDs; none: all.
        timeout_s: for all together, s.
    """
    try:
        with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as complaints:
            status = _run_probe(named, told, complaints, timeout_s)
            results = list(_results(told))
            failure = _failure(status, complaints, results, timeout_s)
    except OSError as error:
        return [CheckResult.of_error(_GPU_CHECKS, error, "they could not be started")]
    return results if failure is None else [*results, failure]


def _run_probe(
    named: Sequence[str], told: IO[bytes], complaints: IO[bytes], timeout_s: float
) -> int | None:
    """Its exit status; None: it did not end in time."""
    process = subprocess.Popen(  # noqa: S603 - this Python, and indices and UUIDs
        # -P: the current folder may hold a file named as a standard module.
        [sys.executable, "-P", "-m", "flyball_client.cli.doctor.command", *named],
        stdin=subprocess.DEVNULL,
        stdout=told,
        stderr=complaints,
    )
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            process.kill()
            # Inside a driver that hangs it cannot even be killed.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_REAP_TIMEOUT_S)


def _results(told: IO[bytes]) -> Iterator[CheckResult]:
    told.seek(0)
    for line in told.read().splitlines():
        # A driver's library may print something of its own, and a killed process half a line.
        with contextlib.suppress(ValueError, TypeError):
            yield CheckResult(**json.loads(line))


def _failure(
    status: int | None, complaints: IO[bytes], results: Sequence[CheckResult], timeout_s: float
) -> CheckResult | None:
    if status == 0:
        return None
    last = f" after {results[-1].name!r}" if results else ""
    if status is None:
        return CheckResult(
            name=_GPU_CHECKS,
            state="problem",
            found=f"the driver did not answer within {timeout_s:g} s{last}",
            advice="it hangs: see the kernel's log (dmesg, Xid); a reset or reboot may be needed",
        )
    complaints.seek(0)
    lines = complaints.read().decode("utf-8", "replace").split("\n")
    text = next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "no text")
    how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with {status}: {text}"
    return CheckResult(
        name=_GPU_CHECKS,
        state="problem",
        found=f"they broke off{last} {how}",
        advice="see the kernel's log; if it says nothing of the GPU, report this line",
    )


def main() -> int:
    """Print one result a line, as they come."""
    for result in check_gpus(sys.argv[1:], os.environ):
        print(json.dumps(asdict(result)), flush=True)
    return 0


_TIMEOUT_S = 3.0
_PLANNER = "planner"
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
            name=_PLANNER,
            state="warning",
            found="FLYBALL_PLANNER_URL is not set",
            advice="set it, or give attach its planner_url; without a planner ranks set no clock",
        )
        return
    try:
        check_address(url)
    except CaFileError as error:
        yield CheckResult.of_error(_PLANNER, error, f"correct {CA_FILE_VARIABLE}")
        return
    except ValueError as error:
        yield CheckResult.of_error(_PLANNER, error, "correct FLYBALL_PLANNER_URL")
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
            yield CheckResult.of_error(_PLANNER, error, _advice(planner.base_url, error))
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
        return CheckResult(name=_PLANNER, state="ok", found=found)
    return CheckResult(
        name=_PLANNER,
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


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpu",
        action="append",
        default=[],
        type=gpu_argument,
        metavar="INDEX|UUID",
        help="only this GPU; may be given again (default: all)",
    )
    parser.add_argument(
        "--planner", metavar="URL", help="the planner's address (default: FLYBALL_PLANNER_URL)"
    )
    parser.add_argument(
        "--planner-only", action="store_true", help="look at the planner only, not at this machine"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(arguments: argparse.Namespace) -> int:
    results: list[CheckResult] = []
    if arguments.planner_only and arguments.gpu:
        raise CommandError("--planner-only looks at no GPU; leave --gpu out")
    planner_results = _check_planner(arguments.planner, is_needed=arguments.planner_only)
    if not arguments.planner_only:
        results += _guarded("system", check_system)
        results += _guarded("state folder", lambda: [check_state_dir(os.environ)])
        results += _guarded("records", lambda: check_records(find_all_records(os.environ)))
        results += _guarded("GPU checks", lambda: probe_gpus(arguments.gpu))
    results += planner_results
    print(_as_json(results) if arguments.json else as_text(results))
    return 1 if any(result.state == "problem" for result in results) else 0


def _check_planner(given: str | None, *, is_needed: bool) -> list[CheckResult]:
    # Here, because it brings httpx, and `flyball --help` need not wait for that.
    from flyball_client.api.trust import CaFileError  # noqa: PLC0415

    if given is not None:
        try:
            check_address(given)
        except CaFileError:
            pass  # a problem that the check names, not one of the address
        except ValueError as error:
            raise CommandError(f"--planner: {error}") from None
    url = given or os.environ.get("FLYBALL_PLANNER_URL")
    if is_needed and not url:
        raise CommandError("--planner-only needs --planner URL or FLYBALL_PLANNER_URL")
    return _guarded("planner", lambda: check_planner(url, os.environ.get("FLYBALL_TOKEN")))


def _guarded(name: str, check: Callable[[], Iterable[CheckResult]]) -> list[CheckResult]:
    """A check's results; one that fails in a way that nobody thought of is a problem, not ours."""
    results: list[CheckResult] = []
    try:
        results.extend(check())
    except Exception as error:
        results.append(CheckResult.of_error(name, RuntimeError(f"the check broke off: {error!r}")))
    return results


def _as_json(results: list[CheckResult]) -> str:
    document = {
        "version": flyball_version(),
        "num_problems": sum(result.state == "problem" for result in results),
        "num_warnings": sum(result.state == "warning" for result in results),
        "checks": [asdict(result) for result in results],
    }
    return json.dumps(document, indent=2)


COMMAND = Command(
    summary="what is missing for setting clocks here, and what to do about it",
    configure=_configure,
    run=_run,
)


if __name__ == "__main__":
    sys.exit(main())

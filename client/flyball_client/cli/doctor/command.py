"""`flyball doctor`: whether clocks can be set here, and what to do where they cannot."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict

from flyball_client.cli.doctor.check_result import CheckResult, as_text
from flyball_client.cli.doctor.gpu_probe import probe_gpus
from flyball_client.cli.doctor.machine_checks import (
    check_records,
    check_state_dir,
    check_system,
    find_all_records,
)
from flyball_client.gpu.open_gpu import gpu_argument
from flyball_wire.command import Command, CommandError
from flyball_wire.version import flyball_version


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
    from flyball_client.cli.doctor.planner_check import (  # noqa: PLC0415
        check_address,
        check_planner,
    )

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

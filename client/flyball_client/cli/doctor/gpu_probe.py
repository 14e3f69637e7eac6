"""Runs the checks of the GPUs in a process of their own: a driver that hangs must not hang us."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import IO

from flyball_client.cli.doctor.check_result import CheckResult
from flyball_client.cli.doctor.gpu_checks import check_gpus

# Some seconds for a driver that must be loaded first, and a second or two for each GPU.
TIMEOUT_S = 60.0
_REAP_TIMEOUT_S = 1.0
_NAME = "GPU checks"


def probe_gpus(named: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> list[CheckResult]:
    """Return what `check_gpus` finds in this environment, as far as it comes within the time.

    Args:
        named: indices or UUIDs; none: all.
        timeout_s: for all together, s.
    """
    try:
        with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as complaints:
            status = _run(named, told, complaints, timeout_s)
            results = list(_results(told))
            failure = _failure(status, complaints, results, timeout_s)
    except OSError as error:
        return [CheckResult.of_error(_NAME, error, "they could not be started")]
    return results if failure is None else [*results, failure]


def _run(
    named: Sequence[str], told: IO[bytes], complaints: IO[bytes], timeout_s: float
) -> int | None:
    """Its exit status; None: it did not end in time."""
    process = subprocess.Popen(  # noqa: S603 - this Python, and indices and UUIDs
        # -P: the current folder may hold a file named as a standard module.
        [sys.executable, "-P", "-m", "flyball_client.cli.doctor.gpu_probe", *named],
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
            name=_NAME,
            state="problem",
            found=f"the driver did not answer within {timeout_s:g} s{last}",
            advice="it hangs: see the kernel's log (dmesg, Xid); a reset or reboot may be needed",
        )
    complaints.seek(0)
    lines = complaints.read().decode("utf-8", "replace").split("\n")
    text = next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "no text")
    how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with {status}: {text}"
    return CheckResult(
        name=_NAME,
        state="problem",
        found=f"they broke off{last} {how}",
        advice="see the kernel's log; if it says nothing of the GPU, report this line",
    )


def main() -> int:
    """Print one result a line, as they come."""
    for result in check_gpus(sys.argv[1:], os.environ):
        print(json.dumps(asdict(result)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

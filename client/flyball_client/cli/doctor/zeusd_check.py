"""Whether zeusd answers, where one is meant to set clocks; it is only asked what it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flyball_client.cli.doctor.check_result import CheckResult, State
from flyball_client.gpu._base import GpuError
from flyball_client.gpu.open_gpu import DEFAULT_SOCKET
from flyball_client.gpu.zeusd_connection import ZeusdConnection

_TIMEOUT_S = 2.0
_NAME = "zeusd"


def check_zeusd(environ: Mapping[str, str], default_socket: Path = DEFAULT_SOCKET) -> CheckResult:
    """Whether it is there, sets clocks and takes the token.

    Args:
        environ: with ZEUSD_SOCK_PATH, ZEUSD_HOST_PORT, ZEUSD_TOKEN, FLYBALL_CLOCK_CONTROL.
        default_socket: where it is when the environment does not say.
    """
    control = environ.get("FLYBALL_CLOCK_CONTROL") or "auto"
    named = environ.get("ZEUSD_SOCK_PATH") or environ.get("ZEUSD_HOST_PORT")
    if control == "nvml":
        return _fine("not asked: FLYBALL_CLOCK_CONTROL is nvml")
    if not named and control == "auto" and not _exists(default_socket):
        return _fine(f"none: no variable names one, and {default_socket} is not there")
    # With `auto`, NVML takes the place of a zeusd that cannot be used.
    state: State = "problem" if control == "zeusd" else "warning"
    try:
        connection = ZeusdConnection(
            named or str(default_socket),
            token=environ.get("ZEUSD_TOKEN") or None,
            timeout_s=_TIMEOUT_S,
        )
    except ValueError as error:
        return CheckResult.of_error(
            _NAME, error, "correct ZEUSD_SOCK_PATH, ZEUSD_HOST_PORT or ZEUSD_TOKEN", state=state
        )
    try:
        return _fine(_ask(connection))
    except GpuError as error:
        return CheckResult.of_error(_NAME, error, state=state)
    finally:
        connection.close()


def _ask(connection: ZeusdConnection) -> str:
    doing = "asking zeusd for its GPUs"
    answer = connection.ask(doing, "GET", "/discover")
    if answer.status != 200:
        raise connection.refusal(doing, answer)
    document: Any = answer.json()
    try:
        gpus = document.get("gpus") or document["gpu_ids"]
        first = gpus[0]["id"] if isinstance(gpus[0], dict) else gpus[0]
        query = f"gpu_ids={int(first)}"
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        raise connection.nonsense(doing) from None
    # It tells its GPUs to everybody; a reading shows whether it takes the token.
    doing = "reading a GPU's energy"
    answer = connection.ask(doing, "GET", f"/gpu/get_cumulative_energy?{query}")
    if answer.status == 401:
        raise connection.refusal(doing, answer)
    return f"answers at {connection.endpoint} and shows {len(gpus)} GPU{'s' * (len(gpus) != 1)}"


def _fine(found: str) -> CheckResult:
    return CheckResult(name=_NAME, state="ok", found=found)


def _exists(file: Path) -> bool:
    try:
        return file.exists()
    except OSError:  # in a folder that may not be entered
        return False

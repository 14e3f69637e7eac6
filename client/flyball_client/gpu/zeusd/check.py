"""The check of zeusd in `flyball doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from flyball_client.gpu._base import GpuError
from flyball_client.gpu.checks import CheckResult, State, counted, ok
from flyball_client.gpu.zeusd.connection import ZeusdConnection
from flyball_client.gpu.zeusd.device import discover, read_energy
from flyball_client.gpu.zeusd.settings import socket_exists

_TIMEOUT_S = 2.0


def check_zeusd(environ: Mapping[str, str], default_socket: Path) -> CheckResult:
    """Check that zeusd is running, sets clocks and accepts the token.

    Args:
        environ: Environment, with ZEUSD_SOCK_PATH, ZEUSD_HOST_PORT, ZEUSD_TOKEN and
            FLYBALL_CLOCK_CONTROL, if set.
        default_socket: Socket of zeusd where the environment names none.
    """
    name = "zeusd"
    control = environ.get("FLYBALL_CLOCK_CONTROL") or "auto"
    named = environ.get("ZEUSD_SOCK_PATH") or environ.get("ZEUSD_HOST_PORT")
    if control == "nvml":
        return ok(name, "not used: FLYBALL_CLOCK_CONTROL is nvml")
    if not named and control == "auto" and not socket_exists(default_socket):
        return ok(name, f"none: no variable names one, and {default_socket} does not exist")
    # With `auto`, NVML replaces a zeusd that cannot be used.
    state: State = "problem" if control == "zeusd" else "warning"
    try:
        connection = ZeusdConnection(
            named or str(default_socket),
            token=environ.get("ZEUSD_TOKEN") or None,
            timeout_s=_TIMEOUT_S,
        )
    except ValueError as error:
        return CheckResult.of_error(
            name, error, "correct ZEUSD_SOCK_PATH, ZEUSD_HOST_PORT or ZEUSD_TOKEN", state=state
        )
    try:
        with closing(connection):
            gpus = discover(connection).gpus
            if not gpus:
                raise connection.not_zeusd("listing the GPUs of zeusd")
            # The list needs no token; a reading does.
            read_energy(connection, min(gpus), "reading a GPU's energy")
    except GpuError as error:
        return CheckResult.of_error(name, error, state=state)
    return ok(name, f"answers at {connection.endpoint} and has {counted(len(gpus), 'GPU')}")

"""`flyball profile blocking-power`: what a GPU draws while it waits for another rank."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from flyball_client.gpu._base import GpuDevice, GpuError
from flyball_client.gpu.open_gpu import open_local_gpu
from flyball_client.profiling.arguments import (
    count,
    emulated_profile,
    known_blocking_power_w,
    quantity,
)
from flyball_client.profiling.blocking_power import (
    BlockingPair,
    BlockingPairError,
    WaitingPower,
    measure_waiting_power,
)
from flyball_client.profiling.emulated_stage import emulated_stage
from flyball_client.profiling.held_clock import HeldClock
from flyball_client.profiling.work_line import WorkLine
from flyball_profiles.stage_profile import ProfileError
from flyball_wire.command import CommandError

_NUM_PERIODS = 100
_SETTLE_S = 5.0
_NUM_ELEMENTS = 1 << 20


def configure_blocking_power(parser: argparse.ArgumentParser) -> None:
    """Add the action's arguments."""
    parser.add_argument(
        "--devices",
        type=count(0),
        nargs=2,
        default=(0, 1),
        metavar="N",
        help="CUDA's numbers of the GPU that holds back and of the one that waits (default: 0 1)",
    )
    parser.add_argument(
        "--mhz", type=count(1), metavar="MHZ", help="lock the waiting GPU's SM clock there"
    )
    parser.add_argument(
        "--periods",
        type=count(4),
        default=_NUM_PERIODS,
        metavar="N",
        help="movements of the energy counter to measure over (default: %(default)s)",
    )
    parser.add_argument(
        "--settle-s",
        type=quantity(),
        default=_SETTLE_S,
        metavar="S",
        help="wait for so long before measuring (default: %(default)s)",
    )
    parser.add_argument(
        "--emulated",
        type=Path,
        metavar="PROFILE.csv",
        help="let an emulated GPU wait, which draws --blocking-power: shows the mechanism only",
    )
    parser.add_argument(
        "--stage", type=count(0), default=0, metavar="S", help="emulated: of the profile"
    )
    parser.add_argument("--blocking-power", type=quantity(), metavar="W", help="emulated: its draw")
    parser.add_argument("--gpu", metavar="NAME", help="emulated: its draw, from the GPU table")
    parser.add_argument("--json", action="store_true", help="print JSON")


def blocking_power(arguments: argparse.Namespace) -> int:
    """Let one rank wait and measure; the exit status.

    Raises:
        CommandError: it cannot be done.
    """
    _check(arguments)
    try:
        with _waiting_gpu(arguments) as gpu:
            found = _measure(arguments, gpu)
            print(_as_json(gpu, found) if arguments.json else _as_text(gpu, found))
    except (GpuError, BlockingPairError, ProfileError, ValueError) as error:
        raise CommandError(str(error)) from None
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if importlib.util.find_spec("torch") is None:
        raise CommandError(
            "two ranks that wait for each other need the extra 'torch':"
            " pip install '.[torch]' in a clone of Flyball"
        )
    if arguments.emulated is not None:
        if arguments.mhz is not None:
            raise CommandError("--mhz: an emulated GPU waits at the same power at every clock")
        return
    if arguments.blocking_power is not None or arguments.gpu is not None:
        raise CommandError("--blocking-power and --gpu are an emulated GPU's; a real one's is read")
    if arguments.devices[0] == arguments.devices[1]:
        raise CommandError("--devices must be two GPUs: one holds back while the other waits")


@contextmanager
def _waiting_gpu(arguments: argparse.Namespace) -> Generator[GpuDevice, None, None]:
    if arguments.emulated is None:
        gpu = open_local_gpu(arguments.devices[1], os.environ)
        try:
            yield gpu
        finally:
            with suppress(GpuError):
                gpu.close()
        return
    power_w = known_blocking_power_w(arguments.blocking_power, arguments.gpu)
    if power_w is None:
        raise CommandError(
            "an emulated GPU needs its draw: --blocking-power W, or --gpu NAME of a table that"
            " has it"
        )
    emulated, _ = emulated_stage(
        emulated_profile(arguments.emulated, arguments.stage),
        stage=arguments.stage,
        chunk=None,
        blocking_power_w=power_w,
        time_scale=1.0,
        source=arguments.emulated,
    )
    yield emulated


def _measure(arguments: argparse.Namespace, gpu: GpuDevice) -> WaitingPower:
    pair = BlockingPair(
        backend="gloo" if gpu.is_emulated else "nccl",
        devices=(arguments.devices[0], arguments.devices[1]),
        num_elements=_NUM_ELEMENTS,
    )
    mhz: int | None = arguments.mhz
    held = nullcontext() if mhz is None else HeldClock(gpu)
    with WorkLine(sys.stderr) as line, held as clock:
        line.show("starting two ranks")
        with pair:
            if clock is not None and mhz is not None:
                clock.set_mhz(mhz)
            line.show("waiting until the waiting rank has settled")
            settled_s = time.monotonic() + arguments.settle_s
            while (left_s := settled_s - time.monotonic()) > 0:
                time.sleep(min(left_s, 0.1))
                _look(pair, clock)
            line.show(f"measuring over {arguments.periods} periods of the energy counter")
            found = measure_waiting_power(
                gpu, num_periods=arguments.periods, check=lambda: _look(pair, clock)
            )
            pair.release()
    return found


def _look(pair: BlockingPair, clock: HeldClock | None) -> None:
    pair.check_waiting()
    if clock is not None:
        clock.see_to_it()


def _as_json(gpu: GpuDevice, found: WaitingPower) -> str:
    return json.dumps(
        {
            "gpu": gpu.name,
            "emulated": gpu.is_emulated,
            "blocking_power_w": found.power_w,
            "blocking_power_error_w": found.power_error_w,
            "num_periods": found.num_periods,
            "sm_clock_mhz": found.sm_clock_mhz,
        },
        indent=2,
    )


def _as_text(gpu: GpuDevice, found: WaitingPower) -> str:
    how = "emulated" if gpu.is_emulated else "measured"
    return (
        f"blocking power {found.power_w:.2f} W +- {found.power_error_w:.2f} ({how}: {gpu.name} at"
        f" {found.sm_clock_mhz} MHz, over {found.num_periods} periods of its energy counter)"
    )

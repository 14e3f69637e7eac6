"""Blocking power: power of a GPU whose rank waits for another rank.

The ranks are processes of `flyball_integrations.shared.blocking_pair`, which use torch; this module
starts them and reads the waiting GPU's energy counter.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Self

from flyball_client.gpu._base import GpuDevice, GpuError
from flyball_client.gpu.registry import open_local_gpu
from flyball_client.profiling.arguments import (
    WorkLine,
    add_option,
    add_output,
    count,
    emulated_profile,
    known_blocking_power_w,
    quantity,
)
from flyball_client.profiling.counter_watch import CounterReader
from flyball_client.profiling.counter_window import CounterReading, power_error
from flyball_client.profiling.held_clock import HeldClock
from flyball_client.profiling.line_process import LineProcess, LineProcessError
from flyball_client.profiling.workload import emulated_stage
from flyball_profiles.gpu_windows import (
    MEASURE_BLOCKING_POWER,
    gpu_file_text,
    with_blocking_power,
)
from flyball_profiles.stage_profile import ProfileError
from flyball_wire.command.command import CommandError
from flyball_wire.command.whole_file import write_result

READY = "ready"
RECEIVED = "received"
RELEASE = "release"

_POLL_S = 0.005
_STILL_S = 5.0
# Importing torch and connecting NCCL take long on a busy machine.
_READY_WITHIN_S = 180.0
_RECEIVED_WITHIN_S = 30.0


@dataclass(frozen=True, kw_only=True)
class WaitingPower:
    """Power of a waiting GPU.

    Attributes:
        power_w: Mean power in W.
        power_error_w: Its standard error in W.
        num_periods: Number of movements of the energy counter.
        sm_clock_mhz: Mean of the clocks read back, MHz.
    """

    power_w: float
    power_error_w: float
    num_periods: int
    sm_clock_mhz: int


def measure_waiting_power(
    gpu: GpuDevice,
    *,
    num_periods: int,
    now_s: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    check: Callable[[], None] = lambda: None,
) -> WaitingPower:
    """Measure the mean power over a number of movements of the GPU's energy counter.

    Args:
        gpu: Waiting GPU.
        num_periods: Number of movements, at least 4.
        now_s: Monotonic clock in s.
        pause: Function that waits for a time in s.
        check: Function that is called with each reading, and raises if the GPU no longer waits.

    Raises:
        GpuError: The GPU cannot be read, or its energy counter does not move.
        ValueError: There are too few periods.
    """
    if num_periods < 4:
        raise ValueError(f"num_periods must be at least 4, not {num_periods}")
    movements: list[CounterReading] = []
    counter, last_moved_s = CounterReader(gpu, now_s), now_s()
    while len(movements) <= num_periods:
        check()
        pause(_POLL_S)
        if (moved := counter.read()) is not None:
            last_moved_s = moved.moment_s
            reading = CounterReading(
                num_repetitions=moved.num_readings, busy_s=moved.moment_s, **asdict(moved)
            )
            movements.append(reading)
        elif now_s() - last_moved_s > _STILL_S:
            raise GpuError(f"the energy counter of {gpu.name} does not move")
    first, last = movements[0], movements[-1]
    power_w = (last.energy_j - first.energy_j) / (last.moment_s - first.moment_s)
    return WaitingPower(
        power_w=power_w,
        power_error_w=power_w * power_error(movements),
        num_periods=num_periods,
        sm_clock_mhz=round(sum(movement.sm_clock_mhz for movement in movements) / len(movements)),
    )


class BlockingPair:
    """Two ranks in processes of their own, one of which waits for the other in a `with` block.

    Args:
        backend: Backend of torch.distributed: `nccl` on two GPUs, or `gloo`.
        devices: CUDA's numbers of the holding and of the waiting rank's GPU.
        num_elements: Number of float32 elements of the awaited message.

    Raises, from all methods:
        LineProcessError: A rank ended, or did not answer in time.
    """

    def __init__(self, *, backend: str, devices: tuple[int, int], num_elements: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="flyball-profile-")
        common = [
            *("--backend", backend, "--num-elements", str(num_elements)),
            *("--rendezvous", str(Path(self._folder.name) / "rendezvous")),
        ]
        self._ranks = [
            LineProcess(
                f"rank {rank}",
                "flyball_integrations.shared.blocking_pair",
                ["--rank", str(rank), "--device", str(device), *common],
            )
            for rank, device in enumerate(devices)
        ]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._folder)
            for rank in self._ranks:
                stack.enter_context(rank)
            self._wait_until_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def check_waiting(self) -> None:
        """Raise LineProcessError unless one rank waits for the other."""
        for rank in self._ranks:
            if rank.has_output():
                raise LineProcessError(f"a rank did not wait: {rank.line(_POLL_S)}")

    def release(self) -> None:
        """Let the holding rank send, and raise LineProcessError unless the other receives."""
        self.check_waiting()
        holding, waiting = self._ranks
        holding.write(RELEASE)
        _expect(waiting, RECEIVED, _RECEIVED_WITHIN_S)

    def _wait_until_ready(self) -> None:
        """Wait for both ranks, of which either may end before the other connects."""
        give_up_s = time.monotonic() + _READY_WITHIN_S
        missing = list(self._ranks)
        while missing:
            for rank in list(missing):
                if rank.has_output(_POLL_S) or time.monotonic() > give_up_s:
                    _expect(rank, READY, _RECEIVED_WITHIN_S)
                    missing.remove(rank)


def _expect(rank: LineProcess, expected: str, within_s: float) -> None:
    if (line := rank.line(within_s)) != expected:
        raise LineProcessError(f"a rank answered {line[:200]!r}")


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
        help="CUDA device numbers of the GPU that is waited for, and of the one that waits"
        " (default: 0 1)",
    )
    add_option(
        parser, "--mhz", count(1), "MHZ", "lock the waiting GPU's SM clock at this clock in MHz"
    )
    add_option(
        parser, "--periods", count(4), "N", "number of energy counter updates", default=_NUM_PERIODS
    )
    add_option(
        parser,
        "--settle-s",
        quantity(),
        "S",
        "time in s to wait before measuring",
        default=_SETTLE_S,
    )
    add_option(
        parser,
        *("--emulated", Path, "PROFILE.csv"),
        "use an emulated GPU of this stage profile, which waits at the power of --blocking-power",
    )
    add_option(parser, "--stage", count(0), "S", "emulated: stage of the profile", default=0)
    add_option(parser, "--blocking-power", quantity(), "W", "emulated: blocking power in W")
    add_option(
        parser,
        "--gpu",
        str,
        "NAME",
        "emulated: GPU of the table (a100) or file (./mine.toml) with the blocking power",
    )
    add_option(
        parser,
        *("--fill", str, "NAME"),
        "GPU of the table or file without a blocking power: write a copy with it to -o",
    )
    add_output(parser, required=False, metavar="OUT.toml")
    parser.add_argument("--json", action="store_true", help="print JSON")


def blocking_power(arguments: argparse.Namespace) -> int:
    """Measure the power of a waiting rank, and return the exit status.

    Raises:
        CommandError: The arguments contradict each other, or the measurement failed.
    """
    _check(arguments)
    fill: str | None = arguments.fill
    try:
        text = None if fill is None else gpu_file_text(fill, os.environ)
        if text is not None:
            with_blocking_power(text, 1.0, "checked before measuring")
        with _waiting_gpu(arguments) as gpu:
            found = _measure(arguments, gpu)
            # Printed first: a full disk loses no measurement.
            print(_as_json(gpu, found) if arguments.json else _as_text(gpu, found))
            if text is not None:
                filled = with_blocking_power(text, found.power_w, _origin(gpu, found))
                write_result(arguments.output, filled, replaces=arguments.force)
    except (GpuError, LineProcessError, ProfileError, ValueError) as error:
        raise CommandError(str(error)) from None
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if importlib.util.find_spec("torch") is None:
        raise CommandError(
            "two ranks that wait for each other need the extra 'torch':"
            " pip install '.[torch]' in a clone of Flyball"
        )
    if (arguments.fill is None) != (arguments.output is None):
        raise CommandError("--fill NAME and -o OUT.toml go together")
    if arguments.output is not None and arguments.output.exists() and not arguments.force:
        raise CommandError(f"{arguments.output}: exists already; --force overwrites it")
    if arguments.emulated is not None:
        if arguments.fill is not None:
            raise CommandError("--fill: the power of an emulated GPU is given, not measured")
        if arguments.mhz is not None:
            raise CommandError("--mhz: the power of an emulated GPU does not depend on the clock")
        return
    if arguments.blocking_power is not None or arguments.gpu is not None:
        raise CommandError(
            "--blocking-power and --gpu are for emulated GPUs; the other is measured"
        )
    if arguments.devices[0] == arguments.devices[1]:
        raise CommandError("--devices must be two GPUs: one waits for the other")


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
            "an emulated GPU needs its power: --blocking-power W, or --gpu NAME of the GPU table"
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
                _check_pair(pair, clock)
            line.show(f"measuring over {arguments.periods} periods of the energy counter")
            found = measure_waiting_power(
                gpu, num_periods=arguments.periods, check=lambda: _check_pair(pair, clock)
            )
            pair.release()
    return found


def _check_pair(pair: BlockingPair, clock: HeldClock | None) -> None:
    pair.check_waiting()
    if clock is not None:
        clock.renew()


def _origin(gpu: GpuDevice, found: WaitingPower) -> str:
    return (
        f"{MEASURE_BLOCKING_POWER} on {gpu.name} at {found.sm_clock_mhz} MHz, {date.today()}:"
        f" +- {found.power_error_w:.2f} W over {found.num_periods} periods of its energy counter"
    )


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

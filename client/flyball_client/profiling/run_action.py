"""`flyball profile run`: a stage measured at each clock of the window."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress

from flyball_client.gpu._base import GpuDevice, GpuError
from flyball_client.gpu.open_gpu import open_local_gpu
from flyball_client.profiling.arguments import (
    cannot_write,
    emulated_profile,
    known_blocking_power_w,
    labels_of,
)
from flyball_client.profiling.clock_grid import clock_grid
from flyball_client.profiling.emulated_stage import emulated_stage
from flyball_client.profiling.held_clock import HeldClock
from flyball_client.profiling.measured_point import MeasuredPoint
from flyball_client.profiling.points_file import Measured, PointsFile
from flyball_client.profiling.run_arguments import (
    DEFAULT_WARM_UP_S,
    check_run,
    rule_of,
)
from flyball_client.profiling.run_report import RunResult, as_json, as_text
from flyball_client.profiling.stage_profiler import StageProfiler
from flyball_client.profiling.sweep import Sweep
from flyball_client.profiling.work_line import WorkLine
from flyball_client.profiling.workload import Workload, WorkloadError, load_workload
from flyball_profiles.gpu_windows import GpuTableError
from flyball_profiles.stage_profile import InstructionKind, ProfileError
from flyball_wire.command import CommandError


def run(arguments: argparse.Namespace) -> int:
    """Measure, write and print; the exit status.

    Raises:
        CommandError: it cannot be done; what was measured is in the file.
    """
    check_run(arguments)
    try:
        with _opened(arguments) as (gpu, workload):
            result = _measure(arguments, gpu, workload)
    except (GpuError, WorkloadError, ProfileError, GpuTableError, ValueError) as error:
        raise CommandError(str(error)) from None
    print(as_json(result) if arguments.json else as_text(result))
    return 0


@contextmanager
def _opened(arguments: argparse.Namespace) -> Generator[tuple[GpuDevice, Workload], None, None]:
    if arguments.emulated is not None:
        power_w = known_blocking_power_w(arguments.blocking_power, arguments.gpu)
        time_scale: float | None = arguments.time_scale
        gpu, workload = emulated_stage(
            emulated_profile(arguments.emulated, arguments.stage),
            stage=arguments.stage,
            chunk=arguments.chunk,
            blocking_power_w=power_w or 0.0,
            time_scale=1.0 if time_scale is None else time_scale,
            source=arguments.emulated,
        )
        yield gpu, workload
        return
    try:
        real = open_local_gpu(arguments.device, os.environ)
    except GpuError as error:
        raise GpuError(f"{error}; --emulated PROFILE.csv profiles an emulated GPU") from None
    try:
        yield (
            real,
            load_workload(
                arguments.workload,
                stage=arguments.stage,
                chunk=arguments.chunk,
                device=arguments.device,
            ),
        )
    finally:
        # The governor gave the clock back; what fails now fails without harm.
        with suppress(GpuError):
            real.close()


def _measure(arguments: argparse.Namespace, gpu: GpuDevice, workload: Workload) -> RunResult:
    clocks_mhz = clock_grid(
        gpu.supported_sm_clocks_mhz(),
        table_name=arguments.gpu,
        every_clock=gpu.is_emulated,
        lowest_mhz=arguments.min_mhz,
        highest_mhz=arguments.max_mhz,
        step_mhz=arguments.step_mhz,
    )
    measured = Measured(
        stage=arguments.stage,
        chunk=arguments.chunk,
        rank=labels_of(arguments),
        gpu_name=gpu.name,
    )
    file = PointsFile(arguments.output, measured, keep_held=arguments.keep_held)
    known = _begin(file, resume=arguments.resume)
    sweep = Sweep(workload.kinds, clocks_mhz, num_rises=arguments.rises, known=known)
    points = list(known)
    num_at_most = len(workload.kinds) * len(clocks_mhz)
    with WorkLine(sys.stderr) as line, _saving(file):

        def show(kind: InstructionKind, clock_mhz: int) -> None:
            line.show(f"{kind} at {clock_mhz} MHz, {len(points)} of at most {num_at_most} points")

        profiler = StageProfiler(
            gpu=gpu,
            workload=workload,
            rule=rule_of(arguments),
            warm_up_s=_warm_up_s(arguments, gpu),
            on_begin=show,
        )
        with HeldClock(gpu) as clock:
            for point in profiler.measure(sweep, clock):
                try:
                    file.append(point)
                except OSError as error:
                    raise cannot_write(file.file, error) from None
                points.append(point)
    return RunResult(
        measured=measured,
        is_emulated=gpu.is_emulated,
        file=file.file,
        held_file=file.held_file,
        points=tuple(points),
        num_known=len(known),
        keeps_held=arguments.keep_held,
        wanted_error=arguments.error,
        stopped_at_mhz=sweep.stopped_at_mhz,
    )


def _begin(file: PointsFile, *, resume: bool) -> list[MeasuredPoint]:
    try:
        if resume:
            return file.resume()
        file.begin()
    except OSError as error:
        raise cannot_write(file.file, error) from None
    return []


@contextmanager
def _saving(file: PointsFile) -> Generator[None, None, None]:
    """Says where the points are when something ends the run before its end."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"flyball profile: interrupted; {_saved(file)}", file=sys.stderr)
        raise
    except (GpuError, WorkloadError, CommandError) as error:
        raise CommandError(f"{error}; {_saved(file)}") from None


def _saved(file: PointsFile) -> str:
    # Counted in the file: Ctrl-C may have come between a point's row and the next line of ours.
    num_points = file.num_points()
    if not num_points:
        return "nothing was measured"
    points = "1 point is" if num_points == 1 else f"{num_points} points are"
    return f"{points} in {file.file}, --resume goes on"


def _warm_up_s(arguments: argparse.Namespace, gpu: GpuDevice) -> float:
    given: float | None = arguments.warm_up_s
    if given is not None:
        return given
    return 0.0 if gpu.is_emulated else DEFAULT_WARM_UP_S

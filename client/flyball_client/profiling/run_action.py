"""`flyball profile run`: measures a stage at each clock of the window."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from flyball_client.gpu._base import GpuDevice, GpuError
from flyball_client.gpu.registry import open_local_gpu
from flyball_client.profiling.arguments import (
    WorkLine,
    add_gpu,
    add_labels,
    add_option,
    add_output,
    count,
    emulated_profile,
    known_blocking_power_w,
    labels_of,
    quantity,
)
from flyball_client.profiling.held_clock import HeldClock
from flyball_client.profiling.points_file import (
    Measured,
    MeasuredPoint,
    PointsFile,
    changed_work,
)
from flyball_client.profiling.repetition import (
    DEFAULT_NUM_RISES,
    MeasuringRule,
    StageProfiler,
    Sweep,
    clock_grid,
)
from flyball_client.profiling.workload import Workload, WorkloadError, emulated_stage, load_workload
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.gpu_windows import GpuTableError
from flyball_profiles.measured_row import LOST
from flyball_profiles.stage_profile import ProfileError
from flyball_wire.command.command import CommandError
from flyball_wire.command.whole_file import cannot_write

DEFAULT_WARM_UP_S = 20.0
_DEFAULTS = MeasuringRule()


def configure_run(parser: argparse.ArgumentParser) -> None:
    """Add the action's arguments."""
    parser.add_argument(
        "workload",
        nargs="?",
        metavar="MODULE:FUNCTION",
        help="function that returns the Workload; it is called with stage=, chunk= and device=",
    )
    add_option(
        parser,
        "--emulated",
        Path,
        "PROFILE.csv",
        "profile an emulated GPU that runs by this stage profile",
    )
    parser.add_argument("--stage", type=count(0), required=True, metavar="S", help="stage, from 0")
    add_option(parser, "--chunk", count(0), "C", "model chunk of the stage, from 0")
    add_output(parser, required=True)
    parser.add_argument(
        "--resume", action="store_true", help="continue the file of an interrupted run"
    )
    add_gpu(parser)
    add_option(parser, "--min-mhz", count(1), "MHZ", "lowest clock in MHz (default: the window's)")
    add_option(parser, "--max-mhz", count(1), "MHZ", "highest clock in MHz (default: the window's)")
    add_option(
        parser,
        "--step-mhz",
        count(1),
        "MHZ",
        "smallest step between clocks in MHz (default: the window's)",
    )
    add_option(
        parser,
        *("--rises", count(0), "N"),
        "stop lowering an instruction's clock after its energy rose N times in a row; 0: never",
        default=DEFAULT_NUM_RISES,
    )
    _add_measuring(parser)
    add_labels(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    positive = quantity(may_be_lowest=False)
    rule = _DEFAULTS
    add_option(
        parser,
        *("--error", positive, "SHARE"),
        "target standard error of time and energy, as a share of the value",
        default=rule.wanted_error,
    )
    add_option(
        parser,
        "--periods",
        count(4),
        "N",
        "minimum number of energy counter updates per point",
        default=rule.min_periods,
    )
    add_option(
        parser,
        "--max-point-s",
        positive,
        "S",
        "time limit per point in s",
        default=rule.max_point_s,
    )
    add_option(
        parser,
        *("--settle-s", positive, "S"),
        "length in s of the two windows that must agree before measuring",
        default=rule.settle_window_s,
    )
    add_option(
        parser,
        *("--max-settle-s", positive, "S"),
        "time in s after which a point is measured unsettled, and marked",
        default=rule.max_settle_s,
    )
    parser.add_argument(
        "--warm-up-s",
        type=quantity(),
        metavar="S",
        help="time in s to run each instruction before measuring"
        f" (default: {DEFAULT_WARM_UP_S:g}; emulated: 0)",
    )
    parser.add_argument(
        "--time-scale",
        type=quantity(),
        metavar="X",
        help="emulated: wall-clock seconds per emulated second; 0: do not wait (default: 1)",
    )
    parser.add_argument(
        "--blocking-power",
        type=quantity(),
        metavar="W",
        help="emulated: power in W between instructions (default: from --gpu, else 0)",
    )


def check_run(arguments: argparse.Namespace) -> None:
    """Check combinations of arguments.

    Raises:
        CommandError: They contradict each other.
    """
    if (arguments.workload is None) == (arguments.emulated is None):
        raise CommandError("give either MODULE:FUNCTION or --emulated PROFILE.csv")
    if arguments.emulated is None:
        for option in ("time_scale", "blocking_power"):
            if getattr(arguments, option) is not None:
                raise CommandError(f"--{option.replace('_', '-')} needs --emulated PROFILE.csv")
    if arguments.error >= 1:
        raise CommandError("--error must be a share below 1, such as 0.005 for 0.5 %")
    if arguments.resume and arguments.force:
        raise CommandError("--resume continues a file, --force overwrites it; give one of them")
    if arguments.output.exists() and not (arguments.resume or arguments.force):
        raise CommandError(
            f"{arguments.output}: exists already; --resume continues it, --force overwrites it"
        )


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Result of a run.

    Attributes:
        points: All points, those of an earlier run first.
        num_known: Number of points of an earlier run.
        wanted_error: Target relative standard error.
        stopped_at_mhz: Clocks in MHz at which sweeps ended early.
    """

    file: PointsFile
    is_emulated: bool
    points: tuple[MeasuredPoint, ...]
    num_known: int
    wanted_error: float
    stopped_at_mhz: Mapping[InstructionKind, int]


def as_json(result: RunResult) -> str:
    """Return the document of `--json`."""
    of = result.file.measured
    has_lost = any(point.held_by == LOST for point in result.points)
    document = {
        "gpu": of.gpu_name,
        "emulated": result.is_emulated,
        "stage": of.stage,
        "chunk": of.chunk,
        **({"rank": dict(of.rank)} if of.rank else {}),
        "output": str(result.file.file),
        "lost_output": str(result.file.lost_file) if has_lost else None,
        "stopped_at_mhz": {kind.value: mhz for kind, mhz in result.stopped_at_mhz.items()},
        "points": [_document(point) for point in result.points],
    }
    return json.dumps(document, indent=2)


def as_text(result: RunResult) -> str:
    """Return a table of the points, with remarks."""
    of = result.file.measured
    how = "emulated" if result.is_emulated else "measured"
    of_chunk = "" if of.chunk is None else f" chunk {of.chunk}"
    lines = [
        f"stage {of.stage}{of_chunk} on {of.gpu_name} ({how}):",
        f"{'instruction':<16} {'MHz':>5} {'time, ms':>11} {'+-%':>6} {'energy, J':>11} {'+-%':>6}"
        f" {'repeated':>9}",
    ]
    lines += [_row(point) for point in result.points]
    lines += [
        f"{kind}: stopped at {mhz} MHz, below which its energy only rises"
        for kind, mhz in result.stopped_at_mhz.items()
    ]
    if any(not point.is_settled for point in result.points):
        lines.append("* time or power were still drifting")
    num_vague = sum(point.relative_error > result.wanted_error for point in result.points)
    if num_vague:
        lines.append(
            f"error above the target of {100 * result.wanted_error:g} %: {num_vague} of"
            f" {len(result.points)} points; --max-point-s gives them more time"
        )
    lines += [
        f"{point.kind} at {point.frequency_mhz} MHz ran at {point.sm_clock_mhz} MHz, "
        + (
            f"its lock was lost; it is in {result.file.lost_file}"
            if point.held_by == LOST
            else f"limited by {point.held_by}"
        )
        for point in result.points
        if point.held_by is not None
    ]
    num_written = sum(point.held_by != LOST for point in result.points)
    earlier = f", {result.num_known} of an earlier run" if result.num_known else ""
    return "\n".join([*lines, f"{result.file.file}: {num_written} points{earlier}"])


def _row(point: MeasuredPoint) -> str:
    marks = ("" if point.is_settled else " *") + ("" if point.held_by is None else " held")
    return (
        f"{point.kind:<16} {point.frequency_mhz:>5} {1e3 * point.time_s:>11.4f}"
        f" {100 * point.time_error_s / point.time_s:>6.2f} {point.energy_j:>11.4f}"
        f" {100 * point.energy_error_j / point.energy_j:>6.2f} {point.num_repetitions:>9}{marks}"
    )


def _document(point: MeasuredPoint) -> dict[str, object]:
    fields = asdict(point)
    return {"instruction": fields.pop("kind").value, **fields}


def run(arguments: argparse.Namespace) -> int:
    """Measure, write and print, and return the exit status.

    Raises:
        CommandError: An error ended the run; the points so far are in the file.
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
        # The governor has restored the clock.
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
    conditions = gpu.conditions()
    measured = Measured(
        stage=arguments.stage,
        chunk=arguments.chunk,
        rank=labels_of(arguments),
        gpu_name=gpu.name,
        energy_scope=gpu.energy_scope(),
        conditions=None if conditions is None else conditions.at_rest,
    )
    file = PointsFile(arguments.output, measured)
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
            rule=MeasuringRule(
                wanted_error=arguments.error,
                min_periods=arguments.periods,
                max_point_s=arguments.max_point_s,
                settle_window_s=arguments.settle_s,
                max_settle_s=arguments.max_settle_s,
            ),
            warm_up_s=_warm_up_s(arguments, gpu),
            on_begin=show,
        )
        with HeldClock(gpu) as clock:
            for point in profiler.measure(sweep, clock):
                _check_conditions(file, gpu)
                try:
                    file.append(point)
                except OSError as error:
                    raise cannot_write(f"{file.file}:", error) from None
                points.append(point)
    return RunResult(
        file=file,
        is_emulated=gpu.is_emulated,
        points=tuple(points),
        num_known=len(known),
        wanted_error=arguments.error,
        stopped_at_mhz=sweep.stopped_at_mhz,
    )


def _check_conditions(file: PointsFile, gpu: GpuDevice) -> None:
    """Check that a point was measured under the same conditions as those before it."""
    before, now = file.measured.conditions, gpu.conditions()
    if changed := changed_work(before, now):
        raise CommandError(
            f"the GPU's conditions have changed while it was measured: {changed}; restore them"
        )
    if now is not None:  # read under load, and so more is known
        known = now if before is None else before.filled(now)
        file.measured = replace(file.measured, conditions=known)


def _begin(file: PointsFile, *, resume: bool) -> list[MeasuredPoint]:
    try:
        if resume:
            return file.resume()
        file.begin()
    except OSError as error:
        raise cannot_write(f"{file.file}:", error) from None
    return []


@contextmanager
def _saving(file: PointsFile) -> Generator[None, None, None]:
    """Name the file of the points when the run is interrupted or fails."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"flyball profile: interrupted; {_saved(file)}", file=sys.stderr)
        raise
    except (GpuError, WorkloadError, CommandError) as error:
        raise CommandError(f"{error}; {_saved(file)}") from None


def _saved(file: PointsFile) -> str:
    # Counted in the file, since Ctrl-C may come directly after a row is written.
    num_points = file.num_points()
    if not num_points:
        return "nothing was measured"
    points = "1 point is" if num_points == 1 else f"{num_points} points are"
    return f"{points} in {file.file}, --resume continues it"


def _warm_up_s(arguments: argparse.Namespace, gpu: GpuDevice) -> float:
    given: float | None = arguments.warm_up_s
    if given is not None:
        return given
    return 0.0 if gpu.is_emulated else DEFAULT_WARM_UP_S

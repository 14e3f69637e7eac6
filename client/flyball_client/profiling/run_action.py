"""`flyball profile run`: a stage measured at each clock of the window."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from flyball_client.gpu._base import GpuDevice, GpuError
from flyball_client.gpu.open_gpu import open_local_gpu
from flyball_client.profiling.arguments import (
    WorkLine,
    add_force,
    add_labels,
    cannot_write,
    count,
    emulated_profile,
    known_blocking_power_w,
    labels_of,
    quantity,
)
from flyball_client.profiling.held_clock import HeldClock
from flyball_client.profiling.points_file import Measured, MeasuredPoint, PointsFile
from flyball_client.profiling.repetition import (
    DEFAULT_NUM_RISES,
    MeasuringRule,
    StageProfiler,
    Sweep,
    clock_grid,
)
from flyball_client.profiling.workload import Workload, WorkloadError, emulated_stage, load_workload
from flyball_profiles.gpu_windows import GpuTableError
from flyball_profiles.stage_profile import InstructionKind, ProfileError
from flyball_wire.command import CommandError

DEFAULT_WARM_UP_S = 20.0
_DEFAULTS = MeasuringRule()


def configure_run(parser: argparse.ArgumentParser) -> None:
    """Add the action's arguments."""
    parser.add_argument(
        "workload",
        nargs="?",
        metavar="MODULE:FUNCTION",
        help="called with stage=, chunk= and device=, returns the Workload to measure",
    )
    parser.add_argument(
        "--emulated",
        type=Path,
        metavar="PROFILE.csv",
        help="profile an emulated GPU of this stage profile instead of a real one",
    )
    parser.add_argument("--stage", type=count(0), required=True, metavar="S", help="which stage")
    parser.add_argument("--chunk", type=count(0), metavar="C", help="which of its model chunks")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT.csv", required=True, help="write this file"
    )
    _add_writing(parser)
    _add_clocks(parser)
    _add_measuring(parser)
    add_labels(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_writing(parser: argparse.ArgumentParser) -> None:
    add_force(parser)
    parser.add_argument(
        "--resume", action="store_true", help="go on with the file of an interrupted run"
    )
    parser.add_argument(
        "--keep-held",
        action="store_true",
        help="keep points whose clock was held below the lock, instead of putting them aside",
    )


def _add_clocks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        type=count(0),
        default=0,
        metavar="N",
        help="the GPU that CUDA calls cuda:N (default: %(default)s)",
    )
    parser.add_argument("--gpu", metavar="NAME", help="the GPU table's window of clocks")
    parser.add_argument("--min-mhz", type=count(1), metavar="MHZ", help="lowest clock")
    parser.add_argument("--max-mhz", type=count(1), metavar="MHZ", help="highest clock")
    parser.add_argument("--step-mhz", type=count(1), metavar="MHZ", help="least step")
    parser.add_argument(
        "--rises",
        type=count(0),
        default=DEFAULT_NUM_RISES,
        metavar="N",
        help="stop an instruction after so many rises of energy in a row; 0: never"
        " (default: %(default)s)",
    )


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    positive = quantity(may_be_lowest=False)
    parser.add_argument(
        "--error",
        type=positive,
        default=_DEFAULTS.wanted_error,
        metavar="SHARE",
        help="wanted relative standard error of time and energy (default: %(default)s)",
    )
    parser.add_argument(
        "--periods",
        type=count(4),
        default=_DEFAULTS.min_periods,
        metavar="N",
        help="movements of the energy counter at least (default: %(default)s)",
    )
    parser.add_argument(
        "--max-point-s",
        type=positive,
        default=_DEFAULTS.max_point_s,
        metavar="S",
        help="measure no point longer (default: %(default)s)",
    )
    parser.add_argument(
        "--settle-s",
        type=positive,
        default=_DEFAULTS.settle_window_s,
        metavar="S",
        help="two windows of this length must agree before measuring (default: %(default)s)",
    )
    parser.add_argument(
        "--max-settle-s",
        type=positive,
        default=_DEFAULTS.max_settle_s,
        metavar="S",
        help="measure after so long in any case, and mark the point (default: %(default)s)",
    )
    parser.add_argument(
        "--warm-up-s",
        type=quantity(),
        metavar="S",
        help=f"run each instruction for so long first (default: {DEFAULT_WARM_UP_S:g}; emulated 0)",
    )
    parser.add_argument(
        "--time-scale",
        type=quantity(),
        metavar="X",
        help="emulated: wall seconds per emulated second; 0: nothing is waited for (default: 1)",
    )
    parser.add_argument(
        "--blocking-power",
        type=quantity(),
        metavar="W",
        help="emulated: what the GPU draws between instructions (default: from --gpu, else 0)",
    )


def check_run(arguments: argparse.Namespace) -> None:
    """See whether the arguments go together.

    Raises:
        CommandError: they do not.
    """
    if (arguments.workload is None) == (arguments.emulated is None):
        raise CommandError("give either MODULE:FUNCTION or --emulated PROFILE.csv")
    if arguments.emulated is None:
        for option in ("time_scale", "blocking_power"):
            if getattr(arguments, option) is not None:
                raise CommandError(f"--{option.replace('_', '-')} needs --emulated PROFILE.csv")
    if arguments.error >= 1:
        raise CommandError("--error must be a share below 1, as 0.005 for 0.5 %")
    if arguments.resume and arguments.force:
        raise CommandError("--resume goes on with a file, --force writes it anew; give one of them")
    if arguments.output.exists() and not (arguments.resume or arguments.force):
        raise CommandError(
            f"{arguments.output}: is there already; --resume goes on with it, --force writes it"
            " anew"
        )


def rule_of(arguments: argparse.Namespace) -> MeasuringRule:
    """Return how long each instruction is repeated."""
    return MeasuringRule(
        wanted_error=arguments.error,
        min_periods=arguments.periods,
        max_point_s=arguments.max_point_s,
        settle_window_s=arguments.settle_s,
        max_settle_s=arguments.max_settle_s,
    )


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Measurement of a run, and where it is stored.

    Attributes:
        measured: what the points are of.
        is_emulated: whether the GPU was.
        file: with the points.
        held_file: with those put aside, if there are any.
        points: all, those of an earlier run first.
        num_known: how many are of an earlier run.
        keeps_held: whether held points are in `file` too.
        wanted_error: relative standard error that was wanted.
        stopped_at_mhz: where an instruction's sweep ended early, MHz.
    """

    measured: Measured
    is_emulated: bool
    file: Path
    held_file: Path
    points: tuple[MeasuredPoint, ...]
    num_known: int
    keeps_held: bool
    wanted_error: float
    stopped_at_mhz: Mapping[InstructionKind, int]


def as_json(result: RunResult) -> str:
    """The document of `--json`."""
    of = result.measured
    held_aside = any(point.held_by for point in result.points) and not result.keeps_held
    document = {
        "gpu": of.gpu_name,
        "emulated": result.is_emulated,
        "stage": of.stage,
        "chunk": of.chunk,
        **({"rank": dict(of.rank)} if of.rank else {}),
        "output": str(result.file),
        "held_output": str(result.held_file) if held_aside else None,
        "stopped_at_mhz": {kind.value: mhz for kind, mhz in result.stopped_at_mhz.items()},
        "points": [_document(point) for point in result.points],
    }
    return json.dumps(document, indent=2)


def as_text(result: RunResult) -> str:
    """A table of the points, and what is to be known of them."""
    how = "emulated" if result.is_emulated else "measured"
    of_chunk = "" if result.measured.chunk is None else f" chunk {result.measured.chunk}"
    lines = [
        f"stage {result.measured.stage}{of_chunk} on {result.measured.gpu_name} ({how}):",
        f"{'instruction':<16} {'MHz':>5} {'time, ms':>11} {'+-%':>6} {'energy, J':>11} {'+-%':>6}"
        f" {'repeated':>9}",
    ]
    lines += [_row(point) for point in result.points]
    lines += [
        f"{kind}: stopped at {mhz} MHz, its energy only rose"
        for kind, mhz in result.stopped_at_mhz.items()
    ]
    if any(not point.is_settled for point in result.points):
        lines.append("* times or power still drifted when it was measured")
    num_vague = sum(point.relative_error > result.wanted_error for point in result.points)
    if num_vague:
        lines.append(
            f"less certain than the {100 * result.wanted_error:g} % wanted: {num_vague} of"
            f" {len(result.points)} points; --max-point-s gives them more time"
        )
    lines += _held_lines(result)
    num_written = sum(point.held_by is None or result.keeps_held for point in result.points)
    earlier = f", {result.num_known} of an earlier run" if result.num_known else ""
    lines.append(f"{result.file}: {num_written} points{earlier}")
    return "\n".join(lines)


def _row(point: MeasuredPoint) -> str:
    marks = ("" if point.is_settled else " *") + ("" if point.held_by is None else " held")
    return (
        f"{point.kind:<16} {point.frequency_mhz:>5} {1e3 * point.time_s:>11.4f}"
        f" {100 * point.time_error_s / point.time_s:>6.2f} {point.energy_j:>11.4f}"
        f" {100 * point.energy_error_j / point.energy_j:>6.2f} {point.num_repetitions:>9}{marks}"
    )


def _held_lines(result: RunResult) -> list[str]:
    where = result.file if result.keeps_held else result.held_file
    return [
        f"{point.kind} at {point.frequency_mhz} MHz ran at {point.sm_clock_mhz} MHz, "
        + ("its lock lost" if point.held_by == "lost" else f"held down by {point.held_by}")
        + f"; it is in {where}"
        for point in result.points
        if point.held_by is not None
    ]


def _document(point: MeasuredPoint) -> dict[str, object]:
    fields = asdict(point)
    return {"instruction": fields.pop("kind").value, **fields}


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

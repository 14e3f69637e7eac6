"""What a run says at its end, as text and as JSON; measured and emulated always told apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from flyball_client.profiling.measured_point import MeasuredPoint
from flyball_client.profiling.points_file import Measured
from flyball_profiles.stage_profile import InstructionKind


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a run measured, and where it is.

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

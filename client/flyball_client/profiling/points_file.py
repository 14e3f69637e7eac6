"""File of a measurement, to which each point is appended when it is measured.

The file is a part of a profile: readers ignore most of its additional columns, with which the
profiler resumes an interrupted run. Points whose lock was lost are stored in a separate file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from flyball_client.governor.clock_controller import TOLERANCE_MHZ
from flyball_client.gpu._base import ClockLimit
from flyball_client.profiling.counter_window import Means, WindowEstimate
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.gpu_conditions import GpuConditions, changes
from flyball_profiles.limited_file import read_bytes
from flyball_profiles.measured_row import (
    CHUNK_COLUMN,
    CONDITIONS_COLUMN,
    HELD_COLUMN,
    LOST,
    RANK_COLUMNS,
    REQUIRED_COLUMNS,
    SCOPE_COLUMN,
)
from flyball_profiles.stage_profile import EnergyScope, ProfileError
from flyball_profiles.stage_profile_csv import CsvRow, csv_text, parse_csv, profile_text


@dataclass(frozen=True, kw_only=True)
class MeasuredPoint(Means):
    """Means of one instruction at one locked clock.

    Attributes:
        frequency_mhz: Locked clock in MHz.
        held_by: Limit that kept the clock below the lock, such as `power`; `lost`: the clock was
            above the lock, which another program removed; None: the clock was the lock.
        is_settled: True: time and power had stopped drifting before.
    """

    kind: InstructionKind
    frequency_mhz: int
    held_by: str | None
    is_settled: bool


def changed_work(before: GpuConditions | None, now: GpuConditions | None) -> str:
    """Return what changed that times and energies depend on; empty: nothing that is known."""
    if before is None or now is None:
        return ""
    return ", ".join(str(change) for change in changes(before, now) if change.changes_work)


def point_of(
    kind: InstructionKind, frequency_mhz: int, found: WindowEstimate, *, is_settled: bool
) -> MeasuredPoint:
    """Return the point that a window measured."""
    means: dict[str, Any] = {each.name: getattr(found, each.name) for each in fields(Means)}
    return MeasuredPoint(
        kind=kind,
        frequency_mhz=frequency_mhz,
        held_by=_held_by(frequency_mhz, found),
        is_settled=is_settled,
        **means,
    )


def _held_by(frequency_mhz: int, found: WindowEstimate) -> str | None:
    if found.sm_clock_mhz > frequency_mhz + TOLERANCE_MHZ:
        return LOST
    floor_mhz = frequency_mhz - TOLERANCE_MHZ
    if found.sm_clock_mhz >= floor_mhz:
        return None
    limits = found.limits_below(floor_mhz)
    return " ".join(str(limit.name).lower() for limit in ClockLimit if limit & limits) or "unknown"


_EXTRA_COLUMNS = (
    "time_error",
    "energy_error",
    "num_repetitions",
    "sm_clock",
    HELD_COLUMN,
    "settled",
    "gpu",
    SCOPE_COLUMN,
    CONDITIONS_COLUMN,
)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Values that all rows of a file share.

    Attributes:
        chunk: Chunk of the stage; None: the whole stage.
        rank: Rank columns and their values; empty: a profile of one pipeline.
        energy_scope: What its energy counter counts; None: not known.
        conditions: Conditions that it is measured under; None: not known.
    """

    stage: int
    chunk: int | None = None
    rank: Mapping[str, int] = field(default_factory=dict[str, int])
    gpu_name: str
    energy_scope: EnergyScope | None = None
    conditions: GpuConditions | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the file."""
        of_rank = tuple(column for column in RANK_COLUMNS if column in self.rank)
        of_chunk = () if self.chunk is None else (CHUNK_COLUMN,)
        return (*of_rank, *REQUIRED_COLUMNS, *of_chunk, *_EXTRA_COLUMNS)


class PointsFile:
    """Points appended to `OUT.csv`, or to `OUT.lost.csv` where the lock was lost."""

    def __init__(self, file: Path, measured: Measured) -> None:
        self.file = file
        self.lost_file = file.with_name(f"{file.stem}.lost{file.suffix}")
        self.measured = measured
        self._is_new = False

    def begin(self) -> None:
        """Check that the file can be written; the first point overwrites it.

        Raises:
            OSError: It cannot be written.
        """
        self._check_writable()
        self._is_new = True

    def resume(self) -> list[MeasuredPoint]:
        """Return the points of both files, and remove an incomplete last row.

        Raises:
            ProfileError: A file was written by another measurement.
            OSError: It cannot be written.
        """
        points: list[MeasuredPoint] = []
        files = [file for file in (self.file, self.lost_file) if self._has_header(file)]
        for file in files:
            try:
                points += self._points_in(file)
            except ProfileError as error:
                raise ProfileError(error.located(str(file))) from None
        # After all files have been checked.
        for file in files:
            _drop_torn_row(file)
        if self.file not in files:
            self._check_writable()
        return points

    def append(self, point: MeasuredPoint) -> Path:
        """Write one point to the disk, and return its file.

        Raises:
            OSError: It cannot be written.
        """
        if self._is_new:
            self.file.unlink(missing_ok=True)
            self.lost_file.unlink(missing_ok=True)
            self._is_new = False
        file = self.lost_file if point.held_by == LOST else self.file
        text = csv_text(self.measured.columns, [self._cells(point)])
        if file.exists():
            text = text.partition("\n")[2]
        with file.open("a", encoding="utf-8") as appended:
            appended.write(text)
            appended.flush()
            os.fsync(appended.fileno())
        return file

    def num_points(self) -> int:
        """Return the number of this measurement's points on the disk."""
        if self._is_new:
            return 0
        files = [file for file in (self.file, self.lost_file) if file.exists()]
        return sum(read_bytes(file).count(b"\n") - 1 for file in files)

    def _check_writable(self) -> None:
        was_there = self.file.exists()
        if was_there and not self.file.is_file():
            raise OSError(errno.EINVAL, "not a regular file", str(self.file))
        with self.file.open("a", encoding="utf-8"):
            pass
        if not was_there:
            self.file.unlink()

    def _has_header(self, file: Path) -> bool:
        """Return whether the file has content; remove an incomplete header."""
        if not file.exists():
            return False
        content = read_bytes(file)
        header = ",".join(self.measured.columns).encode()
        if b"\n" in content or not header.startswith(content):
            return True
        file.unlink()
        return False

    def _cells(self, point: MeasuredPoint) -> dict[str, object]:
        return {
            **self.measured.rank,
            "stage": self.measured.stage,
            "instruction": point.kind.value,
            "frequency": point.frequency_mhz,
            "time": point.time_s,
            "energy": point.energy_j,
            **({} if self.measured.chunk is None else {CHUNK_COLUMN: self.measured.chunk}),
            "time_error": point.time_error_s,
            "energy_error": point.energy_error_j,
            "num_repetitions": point.num_repetitions,
            "sm_clock": point.sm_clock_mhz,
            HELD_COLUMN: point.held_by,
            "settled": int(point.is_settled),
            "gpu": self.measured.gpu_name,
            SCOPE_COLUMN: self.measured.energy_scope,
            CONDITIONS_COLUMN: self.measured.conditions,
        }

    def _points_in(self, file: Path) -> list[MeasuredPoint]:
        text = profile_text(file)
        columns, rows = parse_csv(text[: text.rfind("\n") + 1])
        if columns != self.measured.columns:
            raise ProfileError(
                "was not measured with these options (its columns differ);"
                " remove --resume and name another file",
                line=1,
            )
        return [self._point(row) for row in rows]

    def _point(self, row: CsvRow) -> MeasuredPoint:
        measured, cells = row.measured, row.cells
        is_ours = (
            measured.stage == self.measured.stage
            and measured.chunk == self.measured.chunk
            and dict(measured.rank) == dict(self.measured.rank)
            and cells["gpu"] == self.measured.gpu_name
            and measured.energy_scope == self.measured.energy_scope
        )
        if not is_ours:
            raise ProfileError(
                "is of another stage, chunk, rank or GPU; remove --resume and name another file",
                line=measured.line,
            )
        if changed := changed_work(measured.conditions, self.measured.conditions):
            raise ProfileError(
                f"was measured under other conditions: {changed}; restore them, or remove --resume"
                " and name another file",
                line=measured.line,
            )
        try:
            return MeasuredPoint(
                kind=measured.kind,
                frequency_mhz=measured.point.frequency_mhz,
                time_s=measured.point.time_s,
                time_error_s=float(cells["time_error"]),
                energy_j=measured.point.energy_j,
                energy_error_j=float(cells["energy_error"]),
                num_repetitions=int(cells["num_repetitions"]),
                sm_clock_mhz=int(cells["sm_clock"]),
                held_by=cells[HELD_COLUMN] or None,
                is_settled=cells["settled"] == "1",
            )
        except ValueError as error:
            raise ProfileError(str(error), line=measured.line) from None


def _drop_torn_row(file: Path) -> None:
    content = read_bytes(file)
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with file.open("r+b") as torn:
            torn.truncate(whole)

"""The file that a measurement writes: one row a point, as soon as it is measured.

It is a part of a profile: its extra columns are ignored by every reader, and let the profiler
go on where it was interrupted. Points whose clock was held below the lock have a file of their
own beside it, so that nobody takes them for points at the lock.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flyball_client.governor.clock_controller import TOLERANCE_MHZ
from flyball_client.gpu._base import ClockLimit
from flyball_client.profiling.counter_window import WindowEstimate
from flyball_client.profiling.profile_forms import ProfileRow, read_rows, rows_text
from flyball_profiles.measured_row import CHUNK_COLUMN, RANK_COLUMNS, REQUIRED_COLUMNS
from flyball_profiles.stage_profile import InstructionKind, ProfileError


@dataclass(frozen=True, kw_only=True)
class MeasuredPoint:
    """Time and energy of one instruction at one locked clock.

    Attributes:
        kind: of the instruction.
        frequency_mhz: the clock that was locked, MHz.
        time_s: mean duration, s.
        time_error_s: its standard error, s.
        energy_j: mean energy, J.
        energy_error_j: its standard error, J.
        num_repetitions: that the means are over.
        sm_clock_mhz: mean of the clocks read back meanwhile, MHz.
        held_by: what held the clock below the lock, as `power`; `lost` where it ran above the
            lock, which somebody else undid; None: it ran at the lock.
        is_settled: whether times and power had stopped drifting before.
    """

    kind: InstructionKind
    frequency_mhz: int
    time_s: float
    time_error_s: float
    energy_j: float
    energy_error_j: float
    num_repetitions: int
    sm_clock_mhz: int
    held_by: str | None
    is_settled: bool

    @property
    def relative_error(self) -> float:
        """The larger one of both relative standard errors."""
        return max(self.time_error_s / self.time_s, self.energy_error_j / self.energy_j)


def point_of(
    kind: InstructionKind, frequency_mhz: int, found: WindowEstimate, *, is_settled: bool
) -> MeasuredPoint:
    """The point that a window measured; held where its mean clock was not the lock."""
    return MeasuredPoint(
        kind=kind,
        frequency_mhz=frequency_mhz,
        time_s=found.time_s,
        time_error_s=found.time_error_s,
        energy_j=found.energy_j,
        energy_error_j=found.energy_error_j,
        num_repetitions=found.num_repetitions,
        sm_clock_mhz=found.sm_clock_mhz,
        held_by=_held_by(frequency_mhz, found),
        is_settled=is_settled,
    )


def _held_by(frequency_mhz: int, found: WindowEstimate) -> str | None:
    if found.sm_clock_mhz > frequency_mhz + TOLERANCE_MHZ:
        return "lost"
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
    "held_by",
    "settled",
    "gpu",
)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Facts that all rows of a file share.

    Attributes:
        stage: of the pipeline.
        chunk: of the stage; None: the whole stage.
        rank: the rank columns and their values; empty: a profile of one pipeline.
        gpu_name: what it was measured on.
    """

    stage: int
    chunk: int | None = None
    rank: Mapping[str, int] = field(default_factory=dict[str, int])
    gpu_name: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The file's header."""
        of_rank = tuple(column for column in RANK_COLUMNS if column in self.rank)
        of_chunk = () if self.chunk is None else (CHUNK_COLUMN,)
        return (*of_rank, *REQUIRED_COLUMNS, *of_chunk, *_EXTRA_COLUMNS)


class PointsFile:
    """Points appended to `OUT.csv`, or to `OUT.held.csv` where the clock was held.

    Args:
        file: `OUT.csv`.
        measured: what the rows are of.
        keep_held: whether points whose clock was held go to `OUT.csv` like all others.
    """

    def __init__(self, file: Path, measured: Measured, *, keep_held: bool = False) -> None:
        self.file = file
        self.held_file = file.with_name(f"{file.stem}.held{file.suffix}")
        self._measured = measured
        self._keep_held = keep_held
        self._is_new = False

    def begin(self) -> None:
        """See that the file can be written; the first point begins it anew.

        Until then a file that is there already stays: nothing may come of a measurement.

        Raises:
            OSError: it cannot be written.
        """
        self._check_writable()
        self._is_new = True

    def resume(self) -> list[MeasuredPoint]:
        """Return the rows that both files have already; drop a row that was cut off while written.

        Raises:
            ProfileError: a file is not one that this measurement wrote.
            OSError: it cannot be written.
        """
        points: list[MeasuredPoint] = []
        files = [file for file in (self.file, self.held_file) if self._has_header(file)]
        for file in files:
            try:
                points += self._points_in(file)
            except ProfileError as error:
                raise ProfileError(error.located(str(file))) from None
        # Now that they are known to be ours.
        for file in files:
            _drop_torn_row(file)
        if self.file not in files:
            self._check_writable()
        return points

    def append(self, point: MeasuredPoint) -> Path:
        """Write one point and see that it is on the disk; where it went.

        Raises:
            OSError: it cannot be written.
        """
        if self._is_new:
            self.file.unlink(missing_ok=True)
            self.held_file.unlink(missing_ok=True)
            self._is_new = False
        is_aside = point.held_by is not None and not self._keep_held
        file = self.held_file if is_aside else self.file
        text = rows_text(self._measured.columns, [self._cells(point)])
        if file.exists():
            text = text.partition("\n")[2]
        with file.open("a", encoding="utf-8") as appended:
            appended.write(text)
            appended.flush()
            os.fsync(appended.fileno())
        return file

    def num_points(self) -> int:
        """Return how many points are on the disk, of this measurement."""
        if self._is_new:
            return 0
        files = [file for file in (self.file, self.held_file) if file.exists()]
        return sum(file.read_bytes().count(b"\n") - 1 for file in files)

    def _check_writable(self) -> None:
        was_there = self.file.exists()
        with self.file.open("a", encoding="utf-8"):
            pass
        if not was_there:
            self.file.unlink()

    def _has_header(self, file: Path) -> bool:
        """Return whether there is something to read; a header that was cut off is removed."""
        if not file.exists():
            return False
        content = file.read_bytes()
        header = ",".join(self._measured.columns).encode()
        if b"\n" in content or not header.startswith(content):
            return True
        file.unlink()
        return False

    def _cells(self, point: MeasuredPoint) -> dict[str, object]:
        return {
            **self._measured.rank,
            "stage": self._measured.stage,
            "instruction": point.kind.value,
            "frequency": point.frequency_mhz,
            "time": point.time_s,
            "energy": point.energy_j,
            **({} if self._measured.chunk is None else {CHUNK_COLUMN: self._measured.chunk}),
            "time_error": point.time_error_s,
            "energy_error": point.energy_error_j,
            "num_repetitions": point.num_repetitions,
            "sm_clock": point.sm_clock_mhz,
            "held_by": point.held_by,
            "settled": int(point.is_settled),
            "gpu": self._measured.gpu_name,
        }

    def _points_in(self, file: Path) -> list[MeasuredPoint]:
        found = read_rows(file, only_whole_lines=True)
        if found.columns != self._measured.columns:
            raise ProfileError(
                "was not measured with these options (its columns differ);"
                " leave --resume out and name another file",
                line=1,
            )
        return [self._point(row) for row in found.rows]

    def _point(self, row: ProfileRow) -> MeasuredPoint:
        measured, cells = row.measured, row.cells
        is_ours = (
            measured.stage == self._measured.stage
            and measured.chunk == self._measured.chunk
            and dict(measured.rank) == dict(self._measured.rank)
            and cells["gpu"] == self._measured.gpu_name
        )
        if not is_ours:
            raise ProfileError(
                "is of another stage, chunk, rank or GPU; leave --resume out and name another file",
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
                held_by=cells["held_by"] or None,
                is_settled=cells["settled"] == "1",
            )
        except ValueError as error:
            raise ProfileError(str(error), line=measured.line) from None


def _drop_torn_row(file: Path) -> None:
    content = file.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with file.open("r+b") as torn:
            torn.truncate(whole)

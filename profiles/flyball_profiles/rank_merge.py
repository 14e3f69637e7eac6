"""Merging measured rows, of one or of many ranks, into a stage profile.

Data- and tensor-parallel ranks of a stage run the same plan, so one operating point stands for
all of them: it takes as long as the slowest and the energy of all together. The rows of each
model chunk are merged by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from flyball_profiles.measured_row import MeasuredRow, RankKey, rank_name
from flyball_profiles.stage_profile import (
    InstructionKind,
    OperatingPoint,
    ProfileError,
    StageProfile,
)

# (stage, kind, frequency in MHz): the rows that become one operating point.
_PointKey = tuple[int, InstructionKind, int]


def merge_rows(rows: Sequence[MeasuredRow], *, place: str) -> StageProfile:
    """Return the stage profile of the rows.

    Args:
        rows: in the order of the file.
        place: unit of `line` in messages: `line` or `row`.

    Raises:
        ProfileError: a key stands twice, ranks were measured at different clocks, or the
            profile as a whole cannot be used; with the first line concerned where there is one.
    """
    by_chunk: dict[int | None, list[MeasuredRow]] = {}
    for row in rows:
        by_chunk.setdefault(row.chunk, []).append(row)
    whole = by_chunk.pop(None, [])
    chunks = tuple(
        _of_chunk(by_chunk, chunk, expected, place)
        for expected, chunk in enumerate(sorted(chunk for chunk in by_chunk if chunk is not None))
    )
    if not chunks:
        return _merge(whole, place)
    if not whole:
        return whole_stages(chunks)
    return replace(_merge(whole, place), chunks=chunks)


def _of_chunk(
    by_chunk: Mapping[int | None, Sequence[MeasuredRow]], chunk: int, expected: int, place: str
) -> StageProfile:
    rows = by_chunk[chunk]
    if chunk != expected:
        raise ProfileError(
            f"chunk {expected} is missing; chunks count from 0 without gaps", line=rows[0].line
        )
    try:
        return _merge(rows, place)
    except ProfileError as error:
        message = f"chunk {chunk}: {error.message}"
        raise ProfileError(message, line=error.line, stage=error.stage) from None


def whole_stages(chunks: tuple[StageProfile, ...]) -> StageProfile:
    """Return the profile of stages that run all their chunks in turn, each at the same clock.

    Times and energies of a kind add up at each clock that all chunks were measured at.

    Raises:
        ProfileError: the chunks share no such instructions, or fewer than two clocks.
    """
    first = chunks[0]
    points: dict[tuple[int, InstructionKind], tuple[OperatingPoint, ...]] = {}
    for key in first.points:
        if all(key in chunk.points for chunk in chunks):
            points[key] = _summed([chunk.points[key] for chunk in chunks])
    try:
        return StageProfile(
            points=points, num_ranks_per_stage=first.num_ranks_per_stage, chunks=chunks
        )
    except ProfileError as error:
        raise ProfileError(
            f"the chunks together, each at the same clock: {error.message}", stage=error.stage
        ) from None


def _summed(of_chunks: Sequence[Sequence[OperatingPoint]]) -> tuple[OperatingPoint, ...]:
    by_clock = [{point.frequency_mhz: point for point in points} for points in of_chunks]
    shared_mhz = [mhz for mhz in by_clock[0] if all(mhz in points for points in by_clock)]
    return tuple(
        OperatingPoint(
            frequency_mhz=mhz,
            time_s=math.fsum(points[mhz].time_s for points in by_clock),
            energy_j=math.fsum(points[mhz].energy_j for points in by_clock),
        )
        for mhz in shared_mhz
    )


def _merge(rows: Sequence[MeasuredRow], place: str) -> StageProfile:
    groups = _grouped(rows, place)
    num_ranks = _num_ranks_per_stage(rows, groups)
    points: dict[tuple[int, InstructionKind], list[OperatingPoint]] = {}
    for (stage, kind, frequency_mhz), group in groups.items():
        points.setdefault((stage, kind), []).append(_merged(frequency_mhz, group.values()))
    try:
        return StageProfile(
            points={key: tuple(values) for key, values in points.items()},
            num_ranks_per_stage=tuple(num_ranks[stage] for stage in sorted(num_ranks)),
        )
    except ProfileError as error:
        line = next((row.line for row in rows if row.stage == error.stage), None)
        raise ProfileError(error.message, line=line, stage=error.stage) from None


def _grouped(
    rows: Sequence[MeasuredRow], place: str
) -> dict[_PointKey, dict[RankKey, MeasuredRow]]:
    groups: dict[_PointKey, dict[RankKey, MeasuredRow]] = {}
    for row in rows:
        group = groups.setdefault((row.stage, row.kind, row.point.frequency_mhz), {})
        first = group.setdefault(row.rank, row)
        if first is not row:
            of_rank = f" on {rank_name(row.rank)}" if row.rank else ""
            raise ProfileError(
                f"{row.named}{of_rank} is given twice; first in {place} {first.line}",
                line=row.line,
            )
    return groups


def _num_ranks_per_stage(
    rows: Sequence[MeasuredRow], groups: dict[_PointKey, dict[RankKey, MeasuredRow]]
) -> dict[int, int]:
    ranks: dict[int, dict[RankKey, MeasuredRow]] = {}
    for row in rows:
        first = ranks.setdefault(row.stage, {}).setdefault(row.rank, row)
        if first.num_ranks != row.num_ranks:
            raise ProfileError(
                f"num_ranks of stage {row.stage} must be the same in all its rows:"
                f" {first.num_ranks} before, {row.num_ranks} here",
                line=row.line,
            )
    for (stage, _, _), group in groups.items():
        missing = [rank for rank in ranks[stage] if rank not in group]
        if missing:
            row = next(iter(group.values()))
            raise ProfileError(
                f"{row.named} was measured on {rank_name(row.rank)}"
                f" but not on {rank_name(missing[0])}",
                line=row.line,
            )
    return {
        stage: sum(row.num_ranks for row in by_rank.values()) for stage, by_rank in ranks.items()
    }


def _merged(frequency_mhz: int, rows: Iterable[MeasuredRow]) -> OperatingPoint:
    points = [row.point for row in rows]
    return OperatingPoint(
        frequency_mhz=frequency_mhz,
        time_s=max(point.time_s for point in points),
        # fsum: the sum must not depend on the order of the ranks in the file.
        energy_j=math.fsum(point.energy_j for point in points),
    )

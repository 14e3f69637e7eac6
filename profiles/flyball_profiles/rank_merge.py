"""Merging measured rows, of one or of many ranks, into a stage profile.

Data- and tensor-parallel ranks of a stage run the same plan, so one operating point stands for
all of them: it takes as long as the slowest and the energy of all together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

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
    """The stage profile that the rows measure.

    Args:
        rows: in the order of the file.
        place: what `line` counts, for messages: `line` or `row`.

    Raises:
        ProfileError: a key stands twice, ranks were measured at different clocks, or the
            profile as a whole cannot be used; with the first line concerned where there is one.
    """
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

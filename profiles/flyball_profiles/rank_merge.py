"""Merging measured rows, of one or of many ranks, into a stage profile.

Data- and tensor-parallel ranks of a stage run the same plan, so one operating point stands for
all of them: it takes as long as the slowest and the energy of all together. How long the others
wait for the slowest is kept beside them. The rows of each model chunk are merged by themselves.

Clocks at the top that a rank's GPU did not hold, but for a limit ran below, are one point: under
each of these locks it does the same, and so it does when left alone. Their means count for all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.gpu_conditions import GpuConditions, common_conditions
from flyball_profiles.measured_row import SCOPE_COLUMN, MeasuredRow, RankKey, rank_name
from flyball_profiles.stage_profile import (
    EnergyScope,
    OperatingPoint,
    ProfileError,
    StageProfile,
)


def merge_rows(rows: Sequence[MeasuredRow], *, place: str) -> StageProfile:
    """Return the stage profile of the rows.

    Args:
        rows: in the order of the file.
        place: unit of `line` in messages: `line` or `row`.

    Raises:
        ProfileError: a key stands twice, ranks were measured at different clocks, or the
            profile as a whole cannot be used; with the first line concerned where there is one.
    """
    shared = partial(replace, energy_scope=_scope_of(rows), conditions=_conditions_of(rows))
    by_chunk: dict[int, list[MeasuredRow]] = {}
    whole: list[MeasuredRow] = []
    for row in rows:
        own = whole if row.chunk is None else by_chunk.setdefault(row.chunk, [])
        own.append(row)
    chunks = merge_each(by_chunk, "chunk", "chunks", partial(_merge, place=place))
    if chunks and not whole:
        return shared(whole_stages(chunks))
    return shared(_merge(whole, place), chunks=chunks)


def merge_each(
    by_number: Mapping[int, Sequence[MeasuredRow]],
    name: str,
    plural: str,
    merge: Callable[[Sequence[MeasuredRow]], StageProfile],
) -> tuple[StageProfile, ...]:
    """Return the profiles of chunks or pipelines, in the order of their numbers.

    Raises:
        ProfileError: a number is missing, or rows form no profile; the message has the number.
    """
    profiles: list[StageProfile] = []
    for expected, number in enumerate(sorted(by_number)):
        rows = by_number[number]
        if number != expected:
            message = f"{name} {expected} is missing; {plural} count from 0 without gaps"
            raise ProfileError(message, line=rows[0].line)
        try:
            profiles.append(merge(rows))
        except ProfileError as error:
            message = f"{name} {number}: {error.message}"
            raise ProfileError(message, line=error.line, stage=error.stage) from None
    return tuple(profiles)


def whole_stages(chunks: tuple[StageProfile, ...]) -> StageProfile:
    """Return the profile of stages that run all their chunks in turn, each at the same clock.

    Times and energies of a kind add up at each clock that all chunks were measured at.

    Raises:
        ProfileError: the chunks share no such instructions, or no clocks.
    """
    first = chunks[0]
    points = {
        key: _summed([chunk.points[key] for chunk in chunks])
        for key in first.points
        if all(key in chunk.points for chunk in chunks)
    }
    try:
        return replace(first, points=points, chunks=chunks)
    except ProfileError as error:
        raise ProfileError(
            f"the chunks together, each at the same clock: {error.message}", stage=error.stage
        ) from None


def _summed(of_chunks: Sequence[Sequence[OperatingPoint]]) -> tuple[OperatingPoint, ...]:
    by_clock = [{point.frequency_mhz: point for point in points} for points in of_chunks]
    shared_mhz = [mhz for mhz in by_clock[0] if all(mhz in points for points in by_clock)]
    return tuple(_summed_point([points[mhz] for points in by_clock]) for mhz in shared_mhz)


def _summed_point(points: Sequence[OperatingPoint]) -> OperatingPoint:
    """Return the point of instructions one after the other, all at the clock of the first."""
    time_s = math.fsum(point.time_s for point in points)
    return OperatingPoint(
        frequency_mhz=points[0].frequency_mhz,
        time_s=time_s,
        energy_j=math.fsum(point.energy_j for point in points),
        rank_waiting_s=math.fsum(point.rank_waiting_s for point in points),
        time_error_s=math.hypot(*(point.time_error_s for point in points)),
        jitter=math.hypot(*(point.jitter * point.time_s for point in points)) / time_s,
        held_by=_limit_of(points),
    )


def _mean_point(points: Sequence[OperatingPoint]) -> OperatingPoint:
    return replace(
        points[0],
        time_s=_mean([point.time_s for point in points]),
        energy_j=_mean([point.energy_j for point in points]),
        rank_waiting_s=_mean([point.rank_waiting_s for point in points]),
        time_error_s=_mean([point.time_error_s for point in points]),
        jitter=_mean([point.jitter for point in points]),
        held_by=_limit_of(points),
    )


def _mean(values: Sequence[float]) -> float:
    """Return the mean; of equal values the value, whatever a sum of them is rounded to."""
    return values[0] if len(set(values)) == 1 else math.fsum(values) / len(values)


def _limit_of(points: Iterable[OperatingPoint]) -> str:
    return max(point.held_by for point in points)


def _with_one_unheld_point(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Return the rows, those of clocks that were not held with their means."""
    merged = list(rows)
    of_key: dict[tuple[int, InstructionKind, RankKey], list[int]] = {}
    for place, row in enumerate(rows):
        of_key.setdefault((row.stage, row.kind, row.rank), []).append(place)
    for places in of_key.values():
        falling = sorted(places, key=lambda place: -rows[place].point.frequency_mhz)
        unheld = list(itertools.takewhile(lambda place: rows[place].point.held_by, falling))
        if len(unheld) < 2:
            continue
        points = [rows[place].point for place in unheld]
        mean = _mean_point(points)
        for place, point in zip(unheld, points, strict=True):
            own = replace(mean, frequency_mhz=point.frequency_mhz)
            merged[place] = replace(rows[place], point=own)
    return merged


def _scope_of(rows: Sequence[MeasuredRow]) -> EnergyScope | None:
    """Return what the energies of all rows count; None: of some it is not recorded."""
    scopes: set[EnergyScope | None] = set()
    for row in rows:
        scopes.add(row.energy_scope)
        if len(scopes - {None}) > 1:
            raise ProfileError(
                f"{SCOPE_COLUMN} must be the same in all rows: energies of GPUs and of whole"
                " modules are not comparable",
                line=row.line,
            )
    return scopes.pop() if len(scopes) == 1 else None


def _conditions_of(rows: Sequence[MeasuredRow]) -> tuple[GpuConditions | None, ...]:
    """Return what the conditions of all rows of each stage have in common."""
    by_stage: dict[int, list[GpuConditions | None]] = {}
    for row in rows:
        by_stage.setdefault(row.stage, []).append(row.conditions)
    return tuple(common_conditions(by_stage[stage]) for stage in sorted(by_stage))


def _merge(rows: Sequence[MeasuredRow], place: str) -> StageProfile:
    rows = _with_one_unheld_point(rows)
    groups: dict[tuple[int, InstructionKind, int], dict[RankKey, MeasuredRow]] = {}
    ranks: dict[int, dict[RankKey, int]] = {}
    for row in rows:
        group = groups.setdefault((row.stage, row.kind, row.point.frequency_mhz), {})
        first = group.setdefault(row.rank, row)
        if first is not row:
            of_rank = f" on {rank_name(row.rank)}" if row.rank else ""
            raise ProfileError(
                f"{row.named}{of_rank} is given twice; first in {place} {first.line}",
                line=row.line,
            )
        num_ranks = ranks.setdefault(row.stage, {}).setdefault(row.rank, row.num_ranks)
        if num_ranks != row.num_ranks:
            raise ProfileError(
                f"num_ranks of stage {row.stage} must be the same in all its rows:"
                f" {num_ranks} before, {row.num_ranks} here",
                line=row.line,
            )
    points: dict[tuple[int, InstructionKind], list[OperatingPoint]] = {}
    for (stage, kind, frequency_mhz), group in groups.items():
        for rank in ranks[stage]:
            if rank not in group:
                row = next(iter(group.values()))
                raise ProfileError(
                    f"{row.named} was measured on {rank_name(row.rank)} but not on"
                    f" {rank_name(rank)}",
                    line=row.line,
                )
        # Rounded to a picosecond: differences of decimals are rarely decimals.
        slowest = max(
            (row.point for row in group.values()),
            key=lambda point: (point.time_s, point.jitter, point.time_error_s),
        )
        slowest_s = slowest.time_s
        merged = OperatingPoint(
            frequency_mhz=frequency_mhz,
            time_s=slowest_s,
            # fsum: the sum must not depend on the order of the ranks in the file.
            energy_j=math.fsum(row.point.energy_j for row in group.values()),
            rank_waiting_s=round(
                math.fsum(
                    row.point.rank_waiting_s + row.num_ranks * (slowest_s - row.point.time_s)
                    for row in group.values()
                ),
                12,
            ),
            time_error_s=slowest.time_error_s,
            jitter=slowest.jitter,
            held_by=_limit_of(row.point for row in group.values()),
        )
        points.setdefault((stage, kind), []).append(merged)
    try:
        return StageProfile(
            points={key: tuple(values) for key, values in points.items()},
            num_ranks_per_stage=tuple(sum(ranks[stage].values()) for stage in sorted(ranks)),
        )
    except ProfileError as error:
        line = next((row.line for row in rows if row.stage == error.stage), None)
        raise ProfileError(error.message, line=line, stage=error.stage) from None

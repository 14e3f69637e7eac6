"""Splitting measured rows of several data-parallel pipelines into one stage profile each.

Every data-parallel rank runs a pipeline of its own. Kept apart, a pipeline of faster GPUs can be
planned to finish just when the slowest one does. Tensor-parallel ranks inside a pipeline are
merged.
"""

from __future__ import annotations

from collections.abc import Sequence

from flyball_profiles.measured_row import DP_RANK_COLUMN, MeasuredRow
from flyball_profiles.rank_merge import merge_rows
from flyball_profiles.stage_profile import ProfileError, StageProfile


def split_rows(rows: Sequence[MeasuredRow], *, place: str) -> tuple[StageProfile, ...]:
    """The stage profile of each data-parallel pipeline, by `dp_rank`.

    Args:
        rows: in the order of the file.
        place: what `line` counts, for messages: `line` or `row`.

    Raises:
        ProfileError: the rows have no `dp_rank`, a `dp_rank` is skipped, the rows of one are
            no usable profile, or pipelines differ in their stages and instructions; with the
            first line concerned where there is one.
    """
    by_dp_rank: dict[int, list[MeasuredRow]] = {}
    for row in rows:
        by_dp_rank.setdefault(_dp_rank(row), []).append(row)
    for expected, dp_rank in enumerate(sorted(by_dp_rank)):
        if dp_rank != expected:
            raise ProfileError(
                f"dp_rank {expected} is missing; data-parallel ranks count from 0 without gaps",
                line=by_dp_rank[dp_rank][0].line,
            )
    if not by_dp_rank:
        return (merge_rows(rows, place=place),)  # says that there are no rows
    profiles = tuple(
        _merged(dp_rank, by_dp_rank[dp_rank], place) for dp_rank in range(len(by_dp_rank))
    )
    _check_alike(profiles, rows)
    return profiles


def _dp_rank(row: MeasuredRow) -> int:
    dp_rank = dict(row.rank).get(DP_RANK_COLUMN)
    if dp_rank is None:
        raise ProfileError(
            f"the profile has no column {DP_RANK_COLUMN}, which says whose pipeline a row is of;"
            " data-parallel pipelines cannot be told apart without it"
        )
    return dp_rank


def _merged(dp_rank: int, rows: Sequence[MeasuredRow], place: str) -> StageProfile:
    try:
        return merge_rows(rows, place=place)
    except ProfileError as error:
        raise ProfileError(
            f"dp_rank {dp_rank}: {error.message}", line=error.line, stage=error.stage
        ) from None


def _check_alike(profiles: Sequence[StageProfile], rows: Sequence[MeasuredRow]) -> None:
    """All pipelines run the same program, so what one was measured at, all were."""
    if len({len(profile.chunks) for profile in profiles}) > 1:
        raise ProfileError("all pipelines must have been measured with the same number of chunks")
    for chunk, of_pipelines in enumerate(
        zip(*(profile.chunks for profile in profiles), strict=True)
    ):
        _check_same_instructions(
            of_pipelines, [row for row in rows if row.chunk == chunk], f"chunk {chunk} of "
        )
    _check_same_instructions(profiles, rows, "")


def _check_same_instructions(
    profiles: Sequence[StageProfile], rows: Sequence[MeasuredRow], of_chunk: str
) -> None:
    for stage, kind in sorted({key for profile in profiles for key in profile.points}):
        having = [(stage, kind) in profile.points for profile in profiles]
        if not all(having):
            with_it, without_it = having.index(True), having.index(False)
            raise ProfileError(
                f"{of_chunk}stage {stage} {kind} was measured on dp_rank {with_it} but not on"
                f" dp_rank {without_it}; all pipelines have the same stages and instructions",
                line=next(row.line for row in rows if (row.stage, row.kind) == (stage, kind)),
                stage=stage,
            )

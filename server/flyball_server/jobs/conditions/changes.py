"""Changes of the conditions of a job's GPUs since its profile was measured. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from flyball_profiles.gpu_conditions import (
    ENFORCED_LIMITS,
    SAME_LIMIT,
    ConditionChange,
    GpuConditions,
    changes,
    common_conditions,
    is_known,
)
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.planning_inputs import ChangedConditions
from flyball_server.jobs.records import RankRecord, ranks_text
from flyball_wire.targets import LIMIT_TARGET, parse_target

# A limit holds no work down whose mean power is at most this share of it.
_UNLIMITED = 0.9
# Lines of a job's notes about different changes.
_MOST_LINES = 3


@dataclass(frozen=True, kw_only=True)
class ProfiledConditions:
    """Conditions that a profile was measured under, or is being measured under.

    Attributes:
        of_stages: by stage; None: not recorded.
        power_w: by stage, highest mean power of an instruction on a GPU of the stage, W; infinite
            while it is not known.
    """

    of_stages: tuple[GpuConditions | None, ...]
    power_w: tuple[float, ...]

    @classmethod
    def of(cls, profile: StageProfile) -> ProfiledConditions | None:
        """Return those of a profile; None: none are recorded."""
        if not profile.conditions:
            return None
        stages = range(profile.num_stages)
        power_w = tuple(_highest_power_w(profile, stage) for stage in stages)
        return cls(of_stages=profile.conditions, power_w=power_w)

    @classmethod
    def of_probing(cls, of_stages: tuple[GpuConditions | None, ...]) -> ProfiledConditions | None:
        """Return those of a profile that is being measured; None: none are known."""
        if not is_known(of_stages):
            return None
        return cls(of_stages=of_stages, power_w=(math.inf,) * len(of_stages))

    def changes_of(self, stage: int, now: GpuConditions) -> tuple[ConditionChange, ...]:
        """Return what differs on a GPU of a stage."""
        before = self.of_stages[stage] if stage < len(self.of_stages) else None
        return () if before is None else changes(before, now)

    def is_of_work(self, stage: int, change: ConditionChange) -> bool:
        """Return whether times, energies or the clocks that are reached may be others now.

        A power limit far above what the stage draws, before and now, holds nothing down.
        """
        if change.name == "power_limit_w":
            lower_w = min(float(change.before), float(change.now))
            return self.power_w[stage] > _UNLIMITED * lower_w
        return change.changes_work


def _highest_power_w(profile: StageProfile, stage: int) -> float:
    """Return the highest mean power of one GPU in an instruction of the stage, W."""
    num_ranks = profile.num_ranks_per_stage[stage]
    return max(
        point.energy_j / max(num_ranks * point.time_s - point.rank_waiting_s, point.time_s)
        for (of_stage, _), points in profile.points.items()
        if of_stage == stage
        for point in points
    )


def stage_conditions(
    ranks: Sequence[RankRecord], num_stages: int
) -> tuple[GpuConditions | None, ...]:
    """Return what the conditions of each stage's ranks have in common; None: not known."""
    of_stages: dict[int, list[GpuConditions | None]] = {}
    for rank in ranks:
        of_stages.setdefault(rank.stage, []).append(rank.conditions)
    return tuple(common_conditions(of_stages.get(stage, ())) for stage in range(num_stages))


@dataclass(frozen=True, kw_only=True)
class ChangedRanks:
    """Change of conditions and the ranks that have it.

    Attributes:
        text: what changed, such as `power limit 500 W (profiled: 700 W)`.
        ranks: their numbers, rising.
        is_of_work: true if the plan does not hold for them.
    """

    text: str
    ranks: tuple[int, ...]
    is_of_work: bool

    def __str__(self) -> str:
        return f"{ranks_text(self.ranks)}: {self.text}"


def changed_ranks(
    profiled: ProfiledConditions | None, ranks: Sequence[RankRecord]
) -> tuple[ChangedRanks, ...]:
    """Return what has changed on the ranks in training, changes of work first.

    A limit above the profiled one counts where it is the lowest of its stage.
    """
    if profiled is None:
        return ()
    found: dict[tuple[bool, str], list[int]] = {}
    present = [rank for rank in ranks if not rank.has_left]
    lowest = stage_conditions(present, 1 + max((rank.stage for rank in present), default=0))
    for rank in present:
        if rank.conditions is None:
            continue
        for change in profiled.changes_of(rank.stage, rank.conditions):
            if _is_above_others(change, lowest[rank.stage]):
                continue
            key = (profiled.is_of_work(rank.stage, change), change.since("profiled"))
            found.setdefault(key, []).append(rank.rank)
    return tuple(
        ChangedRanks(text=text, ranks=tuple(sorted(numbers)), is_of_work=is_of_work)
        for (is_of_work, text), numbers in sorted(found.items(), key=lambda item: not item[0][0])
    )


def _is_above_others(change: ConditionChange, of_stage: GpuConditions | None) -> bool:
    """Return whether a limit is raised only on some GPUs of a stage, which wait for the others."""
    if change.name not in ENFORCED_LIMITS or float(change.now) < float(change.before):
        return False
    lowest_w = None if of_stage is None else getattr(of_stage, change.name)
    return lowest_w is None or float(change.now) > lowest_w * (1 + SAME_LIMIT)


def changed_conditions(
    profiled: ProfiledConditions | None, ranks: Sequence[RankRecord], now_unix_s: float
) -> ChangedConditions | None:
    """Return what keeps a profile from holding for these ranks; None: it holds."""
    changed = [str(change) for change in changed_ranks(profiled, ranks) if change.is_of_work]
    if not changed:
        return None
    return ChangedConditions(text="; ".join(changed), since_unix_s=now_unix_s)


def num_changed(profiled: ProfiledConditions | None, ranks: Sequence[RankRecord]) -> int:
    """Return the number of ranks whose work has changed."""
    changed = changed_ranks(profiled, ranks)
    return len({rank for change in changed if change.is_of_work for rank in change.ranks})


def condition_notes(
    profiled: ProfiledConditions | None,
    ranks: Sequence[RankRecord],
    *,
    target: str,
    is_profiled_online: bool,
) -> list[str]:
    """Return a line for each change, a few at most, with what becomes of the plan.

    `profiled` is None where the conditions of the job's profile were not recorded.
    """
    changed = changed_ranks(profiled, ranks)
    notes: list[str] = []
    for change in changed[:_MOST_LINES]:
        if change.is_of_work:
            notes.append(f"{change}; {_consequence(target, is_profiled_online=is_profiled_online)}")
        else:
            notes.append(f"{change}; noted only, the plan is kept")
    if len(changed) > _MOST_LINES:
        num_more = len(changed) - _MOST_LINES
        notes.append(f"{num_more} more conditions of GPUs differ from the profile's")
    return notes


def stage_limits_w(ranks: Sequence[RankRecord], num_stages: int) -> tuple[float, ...]:
    """Return the mean enforced power limit of the GPUs of each stage, W; empty: not all known."""
    of_stages: list[list[float]] = [[] for _ in range(num_stages)]
    for rank in ranks:
        limit_w = None if rank.conditions is None else rank.conditions.power_limit_w
        if limit_w is None or rank.stage >= num_stages:
            return ()
        of_stages[rank.stage].append(limit_w)
    return tuple(map(fmean, of_stages)) if all(of_stages) else ()


def limit_note(ranks: Sequence[RankRecord], target: str) -> list[str]:
    """Return a line where the target is the sum of limits and some are not known."""
    unknown = [
        rank.rank
        for rank in ranks
        if not rank.has_left and (rank.conditions is None or rank.conditions.power_limit_w is None)
    ]
    if target != LIMIT_TARGET or not unknown:
        return []
    return [
        f"target {LIMIT_TARGET}: the power limits of {ranks_text(unknown)} are not known; those of"
        " the profile count, or none"
    ]


def keeps_plan(target: str) -> bool:
    """Return whether the target is no time but a power or least energy.

    The highest clocks would draw more than such a plan.
    """
    return parse_target(target).kind in {"least-energy", "power"}


def _consequence(target: str, *, is_profiled_online: bool) -> str:
    if keeps_plan(target):
        kept = "the plan is kept for its power, and its time does not hold"
    else:
        kept = "the highest clocks are kept"
    if is_profiled_online:
        return f"{kept} until the job has been measured again"
    return f"{kept} until that is restored, or a profile measured under it is sent"

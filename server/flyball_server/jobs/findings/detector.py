"""Detection of stragglers from measurements, against their profile; pure.

Ratios of measured to profiled times (`step_ratios`) are judged over windows of steps. Steps of a
job may differ in their work, so a rank is slow only where its excess is beyond what its stage's
steps scatter: a t-test on logarithms of ratios, at a level that holds for all ranks and looks
together. A few slow steps have no effect however slow they are.

Ranks of one stage and pipeline wait for each other within an instruction, so their measurements are
not independent and one of them stands for all. If a stage runs in several pipelines, their common
ratio is a drift of the stage, and a straggler is the excess of one over it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from flyball_server.jobs.findings.step_ratios import RankStep, Ratio, reason_of, window_ratio
from flyball_server.jobs.planning_inputs import RankSlowdown, StageSlowdown
from flyball_server.jobs.records import RankRecord
from flyball_wire.plans.plan import MAX_SLOWDOWN, MIN_SLOWDOWN

# Of a window in which every step counts.
_FEW_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class SlowdownRules:
    """Thresholds for slow ranks and drifted stages.

    Attributes:
        slow_above: ratio above which a rank is a straggler on average over a window; a known one's
            slowdown changes by as large a factor, or not at all.
        slow_until: ratio above which it is in all of the shortest window's steps, three quarters of
            a longer one's, and below which a straggler has recovered.
        surely_above: ratio that its average is surely above.
        windows: numbers of steps of the windows, rising.
        false_alarm_z: quantile of the normal distribution that a straggler's excess is beyond:
            at 5.2, one in ten million windows of equal ranks is (64 ranks looked at in 10,000
            steps have 640,000 of each length, most of which overlap).
        drift: share beyond which the ratios of all a stage's ranks are a drift, on average over
            `num_drift_steps` steps, and over either half of them.
        num_errors: number of standard errors that a drift has to exceed in addition, and a
            recovered straggler has to be below its slowdown.
    """

    slow_above: float = 1.04
    slow_until: float = 1.025
    surely_above: float = 1.01
    windows: tuple[int, ...] = (5, 10, 20, 40)
    false_alarm_z: float = 5.2
    drift: float = 0.02
    num_drift_steps: int = 40
    num_errors: float = 3.0


RULES = SlowdownRules()


@dataclass(frozen=True, kw_only=True)
class Slowdowns:
    """Stragglers by rank, one per stage and pipeline, and drifted stages.

    A straggler's slowdown is relative to its stage's drift.
    """

    stragglers: tuple[RankSlowdown, ...] = ()
    drifts: tuple[StageSlowdown, ...] = ()


def find_slowdowns(
    observed: Iterable[RankStep],
    ranks: Sequence[RankRecord],
    known: Slowdowns,
    *,
    now_unix_s: float,
    announced: Collection[int] = (),
) -> Slowdowns:
    """Return the still valid part of `known` and new findings.

    Args:
        observed: steps, at least the newest ones of each rank.
        ranks: all ranks of the job.
        known: earlier findings.
        now_unix_s: current time for new findings, Unix time in s.
        announced: ranks with a current announcement: they do not count for drift.
    """
    steps: dict[int, list[RankStep]] = defaultdict(list)
    for step in sorted(observed, key=lambda step: step.step):
        steps[step.rank].append(step)
    by_stage: dict[int, dict[int, list[int]]] = defaultdict(dict)
    for rank in ranks:
        by_stage[rank.stage].setdefault(rank.dp_rank, []).append(rank.rank)
    stragglers: list[RankSlowdown] = []
    drifts: list[StageSlowdown] = []
    for stage, pipelines in sorted(by_stage.items()):
        observation = _StageObservation(
            pipelines=list(pipelines.values()),
            steps=steps,
            known={slowed.rank: slowed for slowed in known.stragglers},
            drifts={slowed.kind: slowed for slowed in known.drifts if slowed.stage == stage},
        )
        found = observation.stragglers(now_unix_s)
        stragglers += found
        # After a straggler has recovered the window still has slow steps.
        apart = {slowed.rank for slowed in (*known.stragglers, *found)}
        drifts += observation.drifted(stage, apart | set(announced))
    return Slowdowns(
        stragglers=tuple(sorted(stragglers, key=lambda slowed: slowed.rank)), drifts=tuple(drifts)
    )


@dataclass(frozen=True, kw_only=True)
class _Scatter:
    """Standard deviation of the logarithm of one step's ratio, by rank.

    A rank's is not below that of its stage.

    Attributes:
        false_alarm_errors: number of standard errors from it that chance does not exceed.
    """

    of_ranks: Mapping[int, float]
    false_alarm_errors: float

    def of_rank(self, rank: int) -> float:
        return self.of_ranks.get(rank, 0.0)


@dataclass(frozen=True, kw_only=True)
class _Excess:
    """Slowness of a pipeline's slowest rank in one window of steps.

    Attributes:
        rank: that rank.
        factor: mean of its ratio over the common one.
        of_steps: logarithms of the same by step.
        error: standard error of the mean of these.
        false_alarm_errors: how many of them chance does not exceed.
    """

    rank: int
    factor: float
    of_steps: tuple[float, ...]
    error: float
    false_alarm_errors: float

    def is_in_most_steps(self, limit: float, sign: int) -> bool:
        """Return whether steps are beyond the limit: all of a few, three quarters of many."""
        beyond = sum(sign * (of_step - math.log(limit)) > 0 for of_step in self.of_steps)
        num_steps = len(self.of_steps)
        return beyond >= (num_steps if num_steps <= _FEW_STEPS else num_steps - num_steps // 4)


def student_quantile(normal_quantile: float, freedom: float) -> float:
    """Return the quantile of Student's t that is as rare as the normal distribution's.

    Wallace's approximation (Annals of Mathematical Statistics 30, 1959), turned round.

    Args:
        normal_quantile: of the normal distribution.
        freedom: degrees of freedom, at least 1.
    """
    squared = (normal_quantile * (8 * freedom + 3) / (8 * freedom + 1)) ** 2
    return math.sqrt(freedom * math.expm1(min(squared / freedom, 500.0)))


@dataclass(frozen=True, kw_only=True)
class _StageObservation:
    """One stage: by pipeline its ranks, their measurements, and the known slowdowns."""

    pipelines: Sequence[Sequence[int]]
    steps: Mapping[int, Sequence[RankStep]]
    known: Mapping[int, RankSlowdown]
    drifts: dict[str, StageSlowdown]

    def stragglers(self, now_unix_s: float) -> list[RankSlowdown]:
        """Return the stragglers of the stage, beyond its drift and the pipelines' common ratio."""
        windows = list(self._windows())
        if not windows:  # a rank has not measured enough yet
            return [self.known[rank] for of in self.pipelines for rank in of if rank in self.known]
        found: list[RankSlowdown] = []
        for number, pipeline in enumerate(self.pipelines):
            excesses = [of_pipelines[number] for of_pipelines in windows]
            known = next((self.known[rank] for rank in pipeline if rank in self.known), None)
            if known is None:
                slow = next((excess for excess in excesses if self._is_slow(excess)), None)
                slowed = None if slow is None else self._slowdown(slow, now_unix_s)
            else:
                slowed = self._known_now(known, excesses, now_unix_s)
            if slowed is not None:
                found.append(slowed)
        return found

    def _windows(self) -> Iterator[list[_Excess]]:
        """Yield, window by window, each pipeline's excess; the shortest first."""
        scatter = self._scatter()
        for num_steps in RULES.windows:
            slowest: list[tuple[int, Ratio]] = []
            for pipeline in self.pipelines:
                ratios = {rank: self._ratio(rank, num_steps) for rank in pipeline}
                measured = {rank: ratio for rank, ratio in ratios.items() if ratio is not None}
                if len(measured) < len(pipeline):
                    return
                slowest.append(max(measured.items(), key=lambda of_rank: of_rank[1].mean))
            rising = sorted(math.log(ratio.mean) for _, ratio in slowest)
            yield [self._excess(rank, ratio, rising, scatter) for rank, ratio in slowest]

    def _excess(
        self, rank: int, ratio: Ratio, rising: Sequence[float], scatter: _Scatter
    ) -> _Excess:
        """Return the excess of one pipeline over the others' common ratio, and over the profile.

        Args:
            rank: slowest rank of the pipeline.
            ratio: its ratio in a window.
            rising: logarithms of all pipelines' mean ratios, its own among them, rising.
            scatter: of the stage's steps.
        """
        deviation = scatter.of_rank(rank) / math.sqrt(len(ratio.of_steps))
        num_others, common = len(rising) - 1, 0.0
        if num_others:
            own, middle = bisect_left(rising, math.log(ratio.mean)), num_others // 2
            # The least of several that scatter is below what they have in common, by about this.
            least = rising[own == 0] + math.sqrt(2 * math.log(num_others)) * deviation
            common = max(0.0, min(least, rising[middle + (own <= middle)]))
            deviation *= math.sqrt(1 + 1.6 / num_others)
        return _Excess(
            rank=rank,
            factor=ratio.mean / math.exp(common),
            of_steps=tuple(math.log(of_step) - common for of_step in ratio.of_steps),
            error=max(deviation, ratio.step_error / ratio.mean),
            false_alarm_errors=scatter.false_alarm_errors,
        )

    def _scatter(self) -> _Scatter:
        """Return the scatter of the logarithm of one step's ratio, from steps that follow.

        Differences from one step to the next hold no mean, and little of a change within the
        steps. A sum of squares of n - 1 of them has some 2 (n - 1) / 3 degrees of freedom
        (von Neumann et al., Annals of Mathematical Statistics 12, 1941).
        """
        of_ranks: dict[int, float] = {}
        squares = num_differences = 0.0
        for pipeline in self.pipelines:
            for rank in pipeline:
                steps = list(self.steps.get(rank, ()))[-RULES.num_drift_steps :]
                ratio = self._ratio(rank, len(steps)) if len(steps) > 1 else None
                if ratio is None:
                    continue
                logs = [math.log(of_step) for of_step in ratio.of_steps]
                of_rank = sum((after - before) ** 2 for before, after in pairwise(logs)) / 2
                of_ranks[rank] = of_rank / (len(logs) - 1)
                squares += of_rank / len(pipeline)
                num_differences += (len(logs) - 1) / len(pipeline)
        pooled = squares / num_differences if num_differences else 0.0
        return _Scatter(
            of_ranks={rank: math.sqrt(max(own, pooled)) for rank, own in of_ranks.items()},
            false_alarm_errors=student_quantile(
                RULES.false_alarm_z, max(1.0, 2 * num_differences / 3)
            ),
        )

    def _is_slow(self, excess: _Excess) -> bool:
        """Return whether it is that of a straggler: large enough, in most steps, and surely."""
        sure = math.log(excess.factor) - excess.false_alarm_errors * excess.error
        return (
            excess.factor > RULES.slow_above
            and excess.is_in_most_steps(RULES.slow_until, 1)
            and sure > math.log(RULES.surely_above)
        )

    def _known_now(
        self, known: RankSlowdown, excesses: Sequence[_Excess], now_unix_s: float
    ) -> RankSlowdown | None:
        """Return a known straggler as it is now; None: it has recovered."""
        for excess in excesses:
            against = math.log(excess.factor / known.slowdown)
            sign = 1 if against > 0 else -1
            if (
                abs(against) > math.log(RULES.slow_above)
                and abs(against) > excess.false_alarm_errors * excess.error
                and excess.is_in_most_steps(known.slowdown * RULES.slow_above**sign, sign)
            ):
                is_slow = excess.factor > RULES.slow_above
                return self._slowdown(excess, now_unix_s) if is_slow else None
        for excess in excesses:
            surely_less = math.log(excess.factor / known.slowdown)
            surely_less += RULES.num_errors * excess.error
            if (
                excess.factor < RULES.slow_until
                and excess.is_in_most_steps(RULES.slow_until, -1)
                and surely_less < 0
            ):
                return None
        return known

    def _slowdown(self, excess: _Excess, now_unix_s: float) -> RankSlowdown:
        return RankSlowdown(
            rank=excess.rank,
            slowdown=min(max(1.0, excess.factor), MAX_SLOWDOWN),
            reason=reason_of(self.steps[excess.rank][-RULES.windows[0] :]),
            since_unix_s=now_unix_s,
        )

    def drifted(self, stage: int, apart: Collection[int]) -> list[StageSlowdown]:
        """Return the stage's drift by kind; pipelines with a rank in `apart` do not count."""
        ranks = [
            rank
            for pipeline in self.pipelines
            if not any(rank in apart for rank in pipeline)
            for rank in pipeline
        ]
        kinds = {
            kind for rank in ranks for step in self.steps.get(rank, ()) for kind in step.by_kind
        }
        ratios = {
            kind: [self._ratio(rank, RULES.num_drift_steps, kind) for rank in ranks]
            for kind in sorted(kinds)
        }
        measured = {
            kind: [ratio for ratio in of_kind if ratio is not None]
            for kind, of_kind in ratios.items()
            if None not in of_kind
        }
        if not any(self._have_moved(of_kind) for of_kind in measured.values()):
            return list(self.drifts.values())
        # The stage is planned again in any case: each kind with its current drift.
        found = self.drifts | {
            kind: StageSlowdown(stage=stage, kind=kind, slowdown=self._drift(kind, of_kind))
            for kind, of_kind in measured.items()
        }
        # A ratio within a quarter of the drift limit counts as profiled.
        least = RULES.drift / 4
        return [found[kind] for kind in sorted(found) if abs(found[kind].slowdown - 1) > least]

    def _drift(self, kind: str, ratios: Sequence[Ratio]) -> float:
        """Return the current ratio from the slowest rank, as in profiles."""
        before = self.drifts[kind].slowdown if kind in self.drifts else 1.0
        slowest = max(ratios, key=lambda ratio: ratio.mean)
        earlier, later = slowest.halves
        # If they differ, the earlier half has steps from before the change.
        has_changed = abs(later / earlier - 1) > RULES.drift / 2
        slowdown = before * (later if has_changed else slowest.mean)
        return min(max(slowdown, MIN_SLOWDOWN), MAX_SLOWDOWN)

    def _have_moved(self, ratios: Sequence[Ratio]) -> bool:
        """Return whether all went the same way, far enough, surely, and not just for a moment."""
        return any(
            all(sign * (mean - 1) > RULES.drift for ratio in ratios for mean in ratio.halves)
            and all(sign * (ratio.mean - 1) > RULES.num_errors * ratio.error for ratio in ratios)
            for sign in (1, -1)
        )

    def _ratio(self, rank: int, num_steps: int, kind: str | None = None) -> Ratio | None:
        drifts = {name: slowed.slowdown for name, slowed in self.drifts.items()}
        return window_ratio(self.steps.get(rank, ()), num_steps, drifts=drifts, kind=kind)

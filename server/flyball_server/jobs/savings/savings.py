"""Measured effect of each plan version of a job, against measured steps of the baseline.

Pure: takes any number of steps in rising order; memory stays bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flyball_server.jobs.loop_state import GpuChange
from flyball_server.jobs.measurements.step_pairs import (
    DEFAULT_CLOCKS,
    CountingRule,
    PairGathering,
    StepKinds,
    StepSeries,
    WholeStep,
)
from flyball_server.jobs.savings.deviations import (
    DeviationTally,
    Undisturbed,
    default_clocks_deviation,
    no_clocks_deviation,
)
from flyball_server.jobs.savings.headline import caveats_of, is_across_scopes, scope_caveats
from flyball_server.jobs.savings.intervals import MeanEstimate, combined, ratio_of, scaled
from flyball_wire.closed_loop import BaselineOrigin, Deviation, Estimate, MeasuredSavings

# Fewer steps at the highest clocks are no baseline if there are others.
MIN_BASELINE_STEPS = 8
# Ranks post once a second or after each step: older steps that are still missing are lost.
ON_THEIR_WAY_S = 5.0
_FEWEST_ON_THEIR_WAY, _MOST_ON_THEIR_WAY = 2, 1024


@dataclass(frozen=True, kw_only=True)
class _Against:
    """A version's steps against steps at the highest clocks.

    Attributes:
        origin: origin of the baseline.
        baseline, undisturbed_baseline: its steps, all of them and those without a deviation.
        time_ratio, energy_ratio: ratios of the plan's to the baseline's.
        saved_j: energy saved by one step, J.
        caveats: limits of the comparison.
    """

    origin: BaselineOrigin
    baseline: StepSeries = field(default_factory=StepSeries)
    undisturbed_baseline: StepSeries = field(default_factory=StepSeries)
    time_ratio: Estimate | None = None
    energy_ratio: Estimate | None = None
    saved_j: Estimate | None = None
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobSavings:
    """Savings of all versions of a job, and their sums.

    Attributes:
        num_steps: number of steps measured by all ranks, at any clocks.
        time_s, energy_j: sums over these steps; energy None: a rank could not read it.
        saved_j: sum over all versions with a baseline and an interval; their bounds add up, since
            versions share baselines. If none has an interval: over those with a baseline.
        saved_of_j: energy of these steps at the highest clocks, J; None: `saved_j` is.
        num_unknown: number of steps in which a rank ran an unknown plan, in no other figure.
        deviations: steps without a plan.
    """

    num_steps: int
    time_s: float
    energy_j: float | None
    saved_j: Estimate | None
    versions: tuple[MeasuredSavings, ...]
    num_unknown: int = 0
    deviations: tuple[Deviation, ...] = ()
    saved_of_j: float | None = None


class _Tally:
    """Steps of one version."""

    def __init__(self, kinds: StepKinds) -> None:
        self.kinds = kinds
        self.on_plan = StepSeries()
        self.at_baseline = StepSeries()
        self.pairs = PairGathering(kinds) if kinds.is_interleaved else None
        self.num_left_out = 0
        self.deviations = DeviationTally()

    def add(self, step: WholeStep) -> None:
        is_baseline = self.kinds.is_baseline(step.step)
        (self.at_baseline if is_baseline else self.on_plan).add(step)
        self.deviations.add_counted(step, is_baseline=is_baseline)
        if self.pairs is not None:
            self.pairs.add(step)

    def leave_out(self, step: WholeStep) -> None:
        self.num_left_out += 1
        self.deviations.add_left_out(step)

    def give_up(self) -> None:
        self.num_left_out += 1
        self.deviations.add_missing()


class SavingsFold:
    """Fold over a job's steps that computes the savings of its versions.

    Args:
        kinds: by plan version, the steps that run at the highest clocks.
    """

    def __init__(self, kinds: Mapping[int, StepKinds]) -> None:
        self._kinds = kinds
        self._tallies: dict[int | None, _Tally] = {}
        # Steps before the first version, which have its number of microbatches.
        self._before = _Tally(DEFAULT_CLOCKS)
        self._first_version: int | None = None
        self._rule = CountingRule()
        self._on_their_way: deque[tuple[_Tally, float]] = deque()
        self._on_their_way_s = 0.0
        self._num_steps = 0
        self._num_unknown = 0
        self._time_s = 0.0
        self._energy_j: float | None = 0.0
        self._at_default = StepSeries()
        self._num_without_clocks = 0

    def add(self, step: WholeStep) -> None:
        """Add the next step, in rising order."""
        counts = self._rule.counts(step)
        if step.is_unknown:
            self._num_unknown += 1
            return
        tally = self._tally(step.version)
        if not step.is_complete:
            self._await(tally, step.time_s)
            return
        while self._on_their_way:
            self._give_up_oldest()
        self._num_steps += 1
        self._time_s += step.time_s
        if step.energy_j is None:
            self._energy_j = None
        elif self._energy_j is not None:
            self._energy_j += step.energy_j
        if self._first_version is None:
            self._first_version = step.version
        if counts:
            tally.add(step)
            if self._first_version is None:
                self._before.add(step)
        else:
            tally.leave_out(step)
        if step.version is None and step.num_without_clocks:
            self._num_without_clocks += 1
        elif step.version is None:
            self._at_default.add(step)

    def _await(self, tally: _Tally, time_s: float) -> None:
        """Count the newest steps that some ranks have yet to post."""
        waiting = self._on_their_way
        waiting.append((tally, time_s))
        self._on_their_way_s += time_s
        while len(waiting) > _FEWEST_ON_THEIR_WAY and (
            self._on_their_way_s - waiting[0][1] >= ON_THEIR_WAY_S
            or len(waiting) > _MOST_ON_THEIR_WAY
        ):
            self._give_up_oldest()

    def _give_up_oldest(self) -> None:
        tally, time_s = self._on_their_way.popleft()
        tally.give_up()
        self._on_their_way_s -= time_s

    def so_far(self, gpu_changes: Sequence[GpuChange] = ()) -> JobSavings:
        """Return the savings of all steps so far; more may be added afterwards.

        Args:
            gpu_changes: GPUs that were replaced during the job.
        """
        versions = tuple(
            self._version_savings(version, self._baselines(version), gpu_changes)
            for version in sorted(version for version in self._tallies if version is not None)
            if not self._tallies[version].kinds.is_probe
        )
        return JobSavings(
            num_steps=self._num_steps,
            time_s=self._time_s,
            energy_j=self._energy_j if self._num_steps else None,
            saved_j=_total(versions),
            saved_of_j=_saved_of_j(versions),
            versions=versions,
            num_unknown=self._num_unknown,
            deviations=(*self._default_clocks(), *no_clocks_deviation(self._num_without_clocks)),
        )

    def _default_clocks(self) -> tuple[Deviation, ...]:
        steps = self._at_default
        is_whole = steps.energies_j.num_values == steps.num_steps
        energy_j = steps.energies_j.total if is_whole else None
        return default_clocks_deviation(steps.num_steps, steps.times_s.total, energy_j)

    def _tally(self, version: int | None) -> _Tally:
        if version not in self._tallies:
            kinds = DEFAULT_CLOCKS if version is None else self._kinds.get(version, StepKinds())
            self._tallies[version] = _Tally(kinds)
        return self._tallies[version]

    def _version_savings(
        self, version: int, baselines: Sequence[_Tally], gpu_changes: Sequence[GpuChange]
    ) -> MeasuredSavings:
        tally = self._tallies[version]
        against = _against(tally, baselines, gpu_changes)
        steps = tally.at_baseline if against.origin == BaselineOrigin.ITSELF else tally.on_plan
        return MeasuredSavings(
            version=version,
            time_s=_interval(steps.times_s.estimate()),
            energy_j=_interval(steps.energies_j.estimate()),
            baseline=against.origin,
            baseline_time_s=_interval(against.baseline.times_s.estimate()),
            baseline_energy_j=_interval(against.baseline.energies_j.estimate()),
            slowdown_percent=_percent(against.time_ratio, sign=1),
            saving_percent=_percent(against.energy_ratio, sign=-1),
            saved_j=None if against.saved_j is None else scaled(against.saved_j, steps.num_steps),
            num_steps=steps.num_steps,
            num_left_out=tally.num_left_out,
            deviations=tally.deviations.deviations(_undisturbed(tally, against)),
            caveats=against.caveats,
        )

    def _baselines(self, version: int) -> list[_Tally]:
        """Return what has steps at the highest clocks to compare a version with.

        Where the number of microbatches has changed, it is compared with steps of its own number.
        """
        shapes = {
            each: tally.kinds.num_microbatches
            for each, tally in self._tallies.items()
            if each is not None
        }
        tallies = list(self._tallies.values())
        if len(set(shapes.values())) > 1:
            wanted = shapes[version]
            tallies = [self._tallies[each] for each, shape in shapes.items() if shape == wanted]
            if self._first_version is not None and shapes[self._first_version] == wanted:
                tallies.append(self._before)
        measured = [tally for tally in tallies if tally.at_baseline.num_steps]
        enough = [tally for tally in measured if tally.at_baseline.num_steps >= MIN_BASELINE_STEPS]
        return enough or measured


def _undisturbed(tally: _Tally, against: _Against) -> Undisturbed:
    is_itself = against.origin == BaselineOrigin.ITSELF
    own = tally.deviations
    on_plan = own.undisturbed_at_baseline if is_itself else own.undisturbed_on_plan
    times_s, energies_j = on_plan.times_s.estimate(), on_plan.energies_j.estimate()
    at_baseline = against.undisturbed_baseline
    time_ratio = _ratio(times_s, at_baseline.times_s.estimate())
    energy_ratio = _ratio(energies_j, at_baseline.energies_j.estimate())
    if against.energy_ratio is None:
        energy_ratio = None
    return Undisturbed(
        num_steps=on_plan.num_steps,
        slowdown_percent=_percent(time_ratio, sign=1),
        saving_percent=_percent(energy_ratio, sign=-1),
    )


def _against(
    tally: _Tally, baselines: Sequence[_Tally], gpu_changes: Sequence[GpuChange]
) -> _Against:
    if tally.kinds.is_all_baseline:
        return _Against(origin=BaselineOrigin.ITSELF)
    pairs = None if tally.pairs is None else tally.pairs.so_far()
    if pairs is not None and pairs.times_s.num_pairs:
        is_across = is_across_scopes(tally.on_plan, tally.at_baseline, gpu_changes)
        per_step = None if is_across else pairs.energies_j.difference()
        return _Against(
            origin=BaselineOrigin.INTERLEAVED,
            baseline=tally.at_baseline,
            undisturbed_baseline=tally.deviations.undisturbed_at_baseline,
            time_ratio=pairs.times_s.ratio(),
            energy_ratio=None if is_across else pairs.energies_j.ratio(),
            saved_j=None if per_step is None else combined([(-1, per_step)]).interval(),
            caveats=scope_caveats(tally.on_plan, tally.at_baseline, gpu_changes),
        )
    on_plan = tally.on_plan
    if not baselines or not on_plan.num_steps:
        return _Against(origin=BaselineOrigin.NONE)
    # The nearest in time: the machine was most alike then.
    nearest_tally = min(
        baselines,
        key=lambda other: (
            is_across_scopes(on_plan, other.at_baseline, gpu_changes),
            other.at_baseline.distance_to(on_plan),
            -other.at_baseline.num_steps,
        ),
    )
    nearest = nearest_tally.at_baseline
    energies_j = on_plan.energies_j.estimate(), nearest.energies_j.estimate()
    if is_across_scopes(on_plan, nearest, gpu_changes):
        energies_j = None, None
    return _Against(
        origin=BaselineOrigin.APART,
        baseline=nearest,
        undisturbed_baseline=nearest_tally.deviations.undisturbed_at_baseline,
        time_ratio=_ratio(on_plan.times_s.estimate(), nearest.times_s.estimate()),
        energy_ratio=_ratio(*energies_j),
        saved_j=_difference(*energies_j),
        caveats=caveats_of(
            on_plan,
            nearest,
            gpu_changes,
            is_at_default_clocks=nearest_tally.kinds is DEFAULT_CLOCKS,
        ),
    )


def _percent(ratio: Estimate | None, *, sign: int) -> Estimate | None:
    """Return the percentage by which the ratio is above 1 (`sign` -1: below)."""
    return None if ratio is None else scaled(ratio, sign * 100, -sign * 100)


def _interval(estimate: MeanEstimate | None) -> Estimate | None:
    return None if estimate is None else estimate.interval()


def _ratio(a: MeanEstimate | None, b: MeanEstimate | None) -> Estimate | None:
    return None if a is None or b is None else ratio_of(a, b)


def _difference(a: MeanEstimate | None, b: MeanEstimate | None) -> Estimate | None:
    """Return the difference `b - a`."""
    return None if a is None or b is None else combined([(1, b), (-1, a)]).interval()


def _total(versions: tuple[MeasuredSavings, ...]) -> Estimate | None:
    counted = _counted(versions)
    if not counted:
        return None
    saved = [estimate for estimate, _ in counted]
    is_sure = all(each.low is not None for each in saved)
    return Estimate(
        mean=sum(each.mean for each in saved),
        low=sum(each.low or 0.0 for each in saved) if is_sure else None,
        high=sum(each.high or 0.0 for each in saved) if is_sure else None,
        num_steps=sum(version.num_steps for _, version in counted),
    )


def _saved_of_j(versions: tuple[MeasuredSavings, ...]) -> float | None:
    counted = [(saved, each.energy_j, each.num_steps) for saved, each in _counted(versions)]
    if not counted:
        return None
    return sum(
        saved.mean + num_steps * energy_j.mean
        for saved, energy_j, num_steps in counted
        if energy_j is not None
    )


def _counted(
    versions: tuple[MeasuredSavings, ...],
) -> list[tuple[Estimate, MeasuredSavings]]:
    """Return the savings with an interval, or all if none has one."""
    saved = [(each.saved_j, each) for each in versions if each.saved_j is not None]
    sure = [(estimate, each) for estimate, each in saved if estimate.low is not None]
    return sure or saved

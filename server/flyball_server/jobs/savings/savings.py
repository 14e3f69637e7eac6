"""Measured effect of each plan version of a job, against measured steps of the baseline. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flyball_server.jobs.loop_state import GpuChange
from flyball_server.jobs.measurements.step_fold import StepFold, VersionFold
from flyball_server.jobs.measurements.step_pairs import StepSeries
from flyball_server.jobs.savings.deviations import Undisturbed, deviations_without_plan
from flyball_server.jobs.savings.headline import caveats_of, is_across_scopes, scope_caveats
from flyball_server.jobs.savings.intervals import MeanEstimate, combined, ratio_of, scaled
from flyball_wire.savings import BaselineOrigin, Deviation, Estimate, MeasuredSavings

# Fewer steps at the highest clocks are no baseline if there are others.
MIN_BASELINE_STEPS = 8


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


def savings_of(fold: StepFold, gpu_changes: Sequence[GpuChange] = ()) -> JobSavings:
    """Return the savings of all steps so far."""
    at_default = fold.at_default
    versions = tuple(
        _version_savings(fold, version, gpu_changes)
        for version, of_version in sorted(fold.versions.items())
        if version and not of_version.kinds.is_probe
    )
    return JobSavings(
        num_steps=fold.num_steps,
        time_s=fold.time_s,
        energy_j=fold.energy_j,
        saved_j=_total(versions),
        saved_of_j=_saved_of_j(versions),
        versions=versions,
        num_unknown=fold.num_unknown,
        deviations=deviations_without_plan(
            at_default.num_steps,
            at_default.time_s,
            at_default.whole_energy_j(),
            num_without_clocks=fold.num_without_clocks,
        ),
    )


def _version_savings(
    fold: StepFold, version: int, gpu_changes: Sequence[GpuChange]
) -> MeasuredSavings:
    of_version = fold.versions[version]
    against = _against(of_version, _baselines(fold, version), gpu_changes)
    is_itself = against.origin == BaselineOrigin.ITSELF
    steps = of_version.at_baseline if is_itself else of_version.on_plan
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
        num_left_out=of_version.num_left_out,
        deviations=of_version.deviations.deviations(_undisturbed(of_version, against)),
        caveats=against.caveats,
    )


@dataclass(frozen=True, kw_only=True)
class _Baseline:
    """Steps at the highest clocks that a version may be compared with."""

    steps: VersionFold
    is_at_default_clocks: bool


def _baselines(fold: StepFold, version: int) -> list[_Baseline]:
    """Return what has steps at the highest clocks to compare a version with.

    Where the number of microbatches has changed, it is compared with steps of its own number; and
    steps whose work is known are compared only with such steps of the same coefficients: others
    were fitted to other times, and a change of scale would be a saving.
    """
    shapes = {
        each: of_version.kinds.num_microbatches
        for each, of_version in sorted(fold.versions.items())
        if each
    }
    is_changed = len(set(shapes.values())) > 1
    baselines = [
        _Baseline(steps=fold.versions[each], is_at_default_clocks=False)
        for each, shape in shapes.items()
        if not is_changed or shape == shapes[version]
    ]
    at_default = fold.before if is_changed else fold.versions.get(0)
    is_alike = not is_changed or shapes.get(fold.first_version or 0) == shapes[version]
    if at_default is not None and is_alike:
        baselines.insert(0, _Baseline(steps=at_default, is_at_default_clocks=True))
    model = fold.versions[version].on_plan.work_model
    measured = [
        baseline
        for baseline in baselines
        if baseline.steps.at_baseline.num_steps and baseline.steps.at_baseline.work_model == model
    ]
    enough = [each for each in measured if each.steps.at_baseline.num_steps >= MIN_BASELINE_STEPS]
    return enough or measured


def _undisturbed(of_version: VersionFold, against: _Against) -> Undisturbed:
    is_itself = against.origin == BaselineOrigin.ITSELF
    on_plan = of_version.undisturbed_at_baseline if is_itself else of_version.undisturbed_on_plan
    at_baseline = against.undisturbed_baseline
    times, energies = _compared(on_plan, at_baseline)
    time_ratio, energy_ratio = _ratio(*times), _ratio(*energies)
    if against.energy_ratio is None:
        energy_ratio = None
    return Undisturbed(
        num_steps=on_plan.num_steps,
        slowdown_percent=_percent(time_ratio, sign=1),
        saving_percent=_percent(energy_ratio, sign=-1),
    )


def _against(
    of_version: VersionFold, baselines: Sequence[_Baseline], gpu_changes: Sequence[GpuChange]
) -> _Against:
    if of_version.kinds.is_all_baseline:
        return _Against(origin=BaselineOrigin.ITSELF)
    pairs = None if of_version.pairs is None else of_version.pairs.so_far()
    if pairs is not None and pairs.times_s.num_pairs:
        is_across = is_across_scopes(of_version.on_plan, of_version.at_baseline, gpu_changes)
        per_step = None if is_across else pairs.energies_j.difference()
        return _Against(
            origin=BaselineOrigin.INTERLEAVED,
            baseline=of_version.at_baseline,
            undisturbed_baseline=of_version.undisturbed_at_baseline,
            time_ratio=pairs.times_s.ratio(),
            energy_ratio=None if is_across else pairs.energies_j.ratio(),
            saved_j=None if per_step is None else combined([(-1, per_step)]).interval(),
            caveats=scope_caveats(of_version.on_plan, of_version.at_baseline, gpu_changes),
        )
    on_plan = of_version.on_plan
    if not baselines or not on_plan.num_steps:
        return _Against(origin=BaselineOrigin.NONE)
    # The nearest in time: the machine was most alike then.
    chosen = min(
        baselines,
        key=lambda other: (
            is_across_scopes(on_plan, other.steps.at_baseline, gpu_changes),
            other.steps.at_baseline.distance_to(on_plan),
            -other.steps.at_baseline.num_steps,
        ),
    )
    nearest = chosen.steps.at_baseline
    times, energies = _compared(on_plan, nearest)
    if is_across_scopes(on_plan, nearest, gpu_changes):
        energies = None, None
    return _Against(
        origin=BaselineOrigin.APART,
        baseline=nearest,
        undisturbed_baseline=chosen.steps.undisturbed_at_baseline,
        time_ratio=_ratio(*times),
        energy_ratio=_ratio(*energies),
        saved_j=_saved_j(on_plan, nearest, energies),
        caveats=caveats_of(
            on_plan,
            nearest,
            gpu_changes,
            is_at_default_clocks=chosen.is_at_default_clocks,
        ),
    )


_Compared = tuple[MeanEstimate | None, MeanEstimate | None]


def _compared(on_plan: StepSeries, baseline: StepSeries) -> tuple[_Compared, _Compared]:
    """Return times and energies of both, each over what its work takes where that is known."""
    if _is_by_work(on_plan, baseline):
        return (
            (on_plan.times_of_work.ratio(), baseline.times_of_work.ratio()),
            (on_plan.energies_of_work.ratio(), baseline.energies_of_work.ratio()),
        )
    return (
        (on_plan.times_s.estimate(), baseline.times_s.estimate()),
        (on_plan.energies_j.estimate(), baseline.energies_j.estimate()),
    )


def _is_by_work(on_plan: StepSeries, baseline: StepSeries) -> bool:
    return on_plan.work_model is not None and on_plan.work_model == baseline.work_model


def _saved_j(on_plan: StepSeries, baseline: StepSeries, energies: _Compared) -> Estimate | None:
    """Return the energy saved by a step of mean work, J."""
    saved = _difference(*energies)
    if saved is None or not _is_by_work(on_plan, baseline):
        return saved
    of_work = on_plan.energies_of_work.of_work
    return scaled(saved, of_work.total / of_work.num_values)


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
    counted = [
        (saved, version.energy_j, version.num_steps) for saved, version in _counted(versions)
    ]
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
    saved = [(version.saved_j, version) for version in versions if version.saved_j is not None]
    sure = [(estimate, version) for estimate, version in saved if estimate.low is not None]
    return sure or saved

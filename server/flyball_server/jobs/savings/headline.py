"""A job's saving in one line, with what limits it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_server.jobs.loop_state import GpuChange
from flyball_server.jobs.measurements.step_pairs import StepSeries
from flyball_server.jobs.records import ranks_text
from flyball_server.jobs.savings.intervals import scaled
from flyball_wire.read_models import PredictedIteration
from flyball_wire.savings import BaselineOrigin, Estimate, Headline, HeadlineTone, MeasuredSavings

# Change in % that is said to be none.
_SAME_PERCENT = 0.05
_SAME_TIME = "in the same time"
_NO_CHANGE_IN_TIME = "with no measurable change in time"


def headline_of(
    versions: Sequence[MeasuredSavings],
    predicted: PredictedIteration | None,
    *,
    active_version: int | None,
    slow_ranks: Sequence[int] = (),
) -> Headline | None:
    """Return the measured saving of the newest version with steps, or else the predicted one.

    Time that stragglers add, and not the plan, is said to be theirs.

    Args:
        versions: measured savings of the job's versions, rising.
        predicted: prediction for the active version; None: no plan, or one of profiling.
        active_version: newest version with a first step; None: none yet.
        slow_ranks: stragglers that the active version was planned with, rising.

    Returns:
        None: nothing is measured and nothing predicted.
    """
    with_steps = [version for version in versions if version.num_steps]
    newest = with_steps[-1] if with_steps else None
    if newest is not None and newest.saving_percent is not None:
        saving, slower = newest.saving_percent, newest.slowdown_percent
        if saving.low is not None and slower is not None and slower.low is not None:
            is_active = newest.version == active_version
            theirs = _of_stragglers(newest, predicted) if is_active and slow_ranks else None
            caveats = (*newest.caveats, *_of_another_version(newest.version, active_version))
            if theirs is None or predicted is None:
                return _headline(saving, slower, is_measured=True, caveats=caveats)
            return _headline(
                saving,
                slower,
                is_measured=True,
                caveats=(_since_slow(slow_ranks), *caveats),
                because=f", {theirs:.1f} % from {ranks_text(slow_ranks)}",
                costs_time=_predicted_slowdown(predicted) >= _SAME_PERCENT,
            )
    if predicted is None:
        return None
    return _headline(
        _exactly(predicted.saving_percent),
        _exactly(_predicted_slowdown(predicted)),
        is_measured=False,
        caveats=_why_predicted(newest),
    )


def _predicted_slowdown(predicted: PredictedIteration) -> float:
    """Return the time that a plan adds to that of the job as it is, stragglers included, %."""
    return 100 * (predicted.iteration_time_s / predicted.baseline_iteration_time_s - 1)


def _of_stragglers(newest: MeasuredSavings, predicted: PredictedIteration | None) -> float | None:
    """Return the part of a measured slowdown that is the stragglers', in points; None: none is.

    It is theirs where the baseline was measured without them: where the slowdown is nearer to that
    of plan and stragglers together than to that of the plan alone.
    """
    slower = newest.slowdown_percent
    if predicted is None or slower is None or newest.baseline != BaselineOrigin.APART:
        return None
    without_s = predicted.baseline_iteration_time_s - predicted.stragglers_s
    theirs = 100 * predicted.stragglers_s / without_s
    alone = _predicted_slowdown(predicted)
    together = 100 * (predicted.iteration_time_s / without_s - 1)
    if not _is_told(slower) or abs(slower.mean - together) >= abs(slower.mean - alone):
        return None
    return min(theirs, slower.mean)


def _since_slow(slow_ranks: Sequence[int]) -> str:
    were = "was" if len(slow_ranks) == 1 else "were"
    text = f"{ranks_text(slow_ranks)} {were} not slow yet when the baseline was measured."
    return text.capitalize()


def _exactly(percent: float) -> Estimate:
    return Estimate(mean=percent, low=percent, high=percent, num_steps=0)


def _headline(
    saving: Estimate,
    slower: Estimate,
    *,
    is_measured: bool,
    caveats: tuple[str, ...],
    because: str = "",
    costs_time: bool = True,
) -> Headline:
    no_change = "no measurable change" if is_measured else "no change"
    energy_text = (
        f"{_change(scaled(saving, -1))} energy{_bounds(saving)}"
        if _is_told(saving)
        else f"{no_change} in energy"
    )
    time_text = _time_text(slower)
    tone = HeadlineTone.NONE
    if _is_told(saving):
        is_slower = costs_time and _is_told(slower) and slower.mean > 0
        gain = HeadlineTone.TRADE if is_slower else HeadlineTone.GAIN
        tone = gain if saving.mean > 0 else HeadlineTone.LOSS
    text = f"{energy_text} {time_text}{_bounds(slower) if _is_told(slower) else ''}{because}"
    if not _is_told(saving) and time_text in (_NO_CHANGE_IN_TIME, _SAME_TIME):
        text = f"{no_change} in energy or time"
    return Headline(
        text=text,
        time_text=time_text + because,
        tone=tone,
        is_measured=is_measured,
        caveats=caveats,
    )


def _is_change(percent: Estimate) -> bool:
    """Return whether zero lies outside of the interval, which it has."""
    return (percent.low or 0.0) > 0 or (percent.high or 0.0) < 0


def _is_told(percent: Estimate) -> bool:
    return _is_change(percent) and abs(percent.mean) >= _SAME_PERCENT


def _time_text(slower: Estimate) -> str:
    if _is_told(slower):
        return f"{'at' if slower.mean > 0 else 'in'} {_change(slower)} time"
    if max(abs(slower.low or 0.0), abs(slower.high or 0.0)) < _SAME_PERCENT:
        return _SAME_TIME
    return _NO_CHANGE_IN_TIME


def _change(percent: Estimate) -> str:
    return f"{abs(percent.mean):.1f} % {'more' if percent.mean > 0 else 'less'}"


def _bounds(percent: Estimate) -> str:
    """Return the interval of a change, of the same sign throughout; empty: it is exact."""
    ends = sorted(abs(end) for end in (percent.low or 0.0, percent.high or 0.0))
    return "" if ends[0] == ends[1] else f" ({ends[0]:.1f} to {ends[1]:.1f})"


def _of_another_version(version: int, active_version: int | None) -> tuple[str, ...]:
    if active_version is None or active_version == version:
        return ()
    return (
        f"Measured on version {version}; version {active_version}, in force now, has no counted"
        " steps yet.",
    )


def _why_predicted(newest: MeasuredSavings | None) -> tuple[str, ...]:
    if newest is None:
        return ("No step on a plan has been counted yet.",)
    if newest.saving_percent is not None:
        return ("Too few steps have been measured to tell the real saving.",)
    if newest.baseline == BaselineOrigin.ITSELF:
        return ("The plan in force is the baseline: all of its clocks are the highest.",)
    if newest.baseline == BaselineOrigin.NONE:
        return ("No step at the highest clocks was measured: the real saving is not known.",)
    return ("A rank cannot read the energy of its GPU: the real saving is not known.",)


def caveats_of(
    on_plan: StepSeries,
    baseline: StepSeries,
    gpu_changes: Sequence[GpuChange],
    *,
    is_at_default_clocks: bool,
) -> tuple[str, ...]:
    """Return what limits a comparison with steps of another time, a sentence each.

    Each series has a step; `is_at_default_clocks` is true if the baseline ran without a plan.
    """
    ran = ", at default clocks" if is_at_default_clocks else ""
    caveats = [
        f"The baseline was measured at another time: steps {baseline.first_step} to"
        f" {baseline.last_step}{ran}{_distance(on_plan, baseline)}. What changed in between counts"
        " as saving."
    ]
    changed = _changes_between(on_plan, baseline, gpu_changes)
    if changed:
        ranks = ranks_text(sorted({change.rank for change in changed}))
        step = min(change.after_step for change in changed)
        caveats.append(f"The baseline ran on other GPUs: {ranks} got a new GPU after step {step}.")
    return (*caveats, *scope_caveats(on_plan, baseline, gpu_changes))


def scope_caveats(
    on_plan: StepSeries, baseline: StepSeries, gpu_changes: Sequence[GpuChange]
) -> tuple[str, ...]:
    """Return why energies of these steps are not compared; nothing where they are."""
    if not is_across_scopes(on_plan, baseline, gpu_changes):
        return ()
    return (
        "Energies are not compared: some of these GPUs count that of their whole module, others"
        " that of the GPU alone.",
    )


def is_across_scopes(
    on_plan: StepSeries, baseline: StepSeries, gpu_changes: Sequence[GpuChange]
) -> bool:
    """Return whether energies of these steps count different things: modules, and GPUs alone."""
    changed = _changes_between(on_plan, baseline, gpu_changes)
    return any(change.changes_scope for change in changed)


def _changes_between(
    on_plan: StepSeries, baseline: StepSeries, gpu_changes: Sequence[GpuChange]
) -> list[GpuChange]:
    first = min(on_plan.first_step, baseline.first_step)
    last = max(on_plan.last_step, baseline.last_step)
    return [change for change in gpu_changes if first <= change.after_step < last]


def _distance(on_plan: StepSeries, baseline: StepSeries) -> str:
    num_steps = baseline.distance_to(on_plan)
    if num_steps <= 1:
        return ""
    side = "before" if baseline.last_step < on_plan.first_step else "after"
    mean_s = on_plan.times_s.total / on_plan.num_steps
    return f", {num_steps} steps ({_duration(num_steps * mean_s)}) {side} those on the plan"


def _duration(time_s: float) -> str:
    for limit_s, unit_s, unit in ((172_800, 86_400, "days"), (7_200, 3_600, "h"), (120, 60, "min")):
        if time_s >= limit_s:
            return f"{time_s / unit_s:.0f} {unit}"
    return f"{time_s:.0f} s"

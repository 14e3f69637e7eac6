"""Pages of `flyball top`: all jobs, a row each, or one job by its stages.

Measured stands beside predicted, and emulated GPUs stand apart from others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from flyball_client.api.errors import PlannerRefusedError
from flyball_client.cli.figures import (
    UNKNOWN,
    energy_text,
    interval_text,
    number_text,
    power_text,
    state_text,
    to_do,
)
from flyball_client.cli.top.blocks import LEVELS, Block, Page, Paragraph, Row, Span, Table, Tone
from flyball_client.cli.top.reading import FollowedJob, Seen
from flyball_wire.closed_loop import Straggler
from flyball_wire.messages import JobState
from flyball_wire.read_models import (
    JobOverview,
    PlanKind,
    PlanSummary,
    PredictedIteration,
    StageOfStep,
    StagesOfStep,
    StepClocks,
)
from flyball_wire.savings import Estimate

# How figures are written; "z": never -0.00.
_TIME_S, _ENERGY_J, _POWER_W, _CLOCK_MHZ = ".4f", ".1f", ".1f", ".0f"
_PERCENT, _SIGNED_PERCENT = "z.2f", "+z.2f"
# Part of the mean: smaller variations look flat.
_SMALLEST_SPREAD = 0.01
_LONG_FRACTION = re.compile(r"\d+\.\d{6,}")
_CLOCKS = {StepClocks.HIGHEST: "highest clocks", StepClocks.DEFAULT: "default clocks"}
_SHOWN_VERSIONS, _SHOWN_POWERS, _FEWEST_SHOWN, _WINDOW_STEPS = 8, 24, 10, 20
# Columns beside the pictures of the newest steps.
_BESIDE_PICTURES = 48


_STATE_TONES = {
    JobState.PLANNED: Tone.GOOD,
    JobState.PROFILING: Tone.ACCENT,
    JobState.AWAITING_PROFILE: Tone.WARN,
    JobState.PLANNING_FAILED: Tone.BAD,
}


def page_of(seen: Seen, address: str, now: datetime, width: int) -> Page:
    """Return the page of the newest reading; an error of the calls since then stands on top."""
    read_at, head = moment_text(seen.read_at, now), list[Paragraph]()
    if seen.trouble is not None and seen.trouble_since is not None:
        what = "refused" if isinstance(seen.trouble, PlannerRefusedError) else "planner away"
        since = f"{moment_text(seen.trouble_since, now)} ({_age_text(seen.trouble_since, now)})"
        text = f"{what} since {since}; all figures are of {read_at}. {seen.trouble}"
        head.append((Span(text, Tone.ALARM),))
    if isinstance(seen.reading, FollowedJob):
        head.append((*_title(seen.reading, now), _muted(f"read {read_at}")))
        if (action := to_do(seen.reading.overview)) is not None:
            head.append((Span(action, Tone.BAD),))
        return Page(head=tuple(head), body=tuple(_job(seen.reading, now, width)))
    head.append((Span("all jobs", Tone.TITLE), _muted(address), _muted(f"read {read_at}")))
    return Page(head=tuple(head), body=tuple(_jobs(seen.reading.jobs, now)))


def _jobs(jobs: Sequence[JobOverview], now: datetime) -> list[Block]:
    if not jobs:
        text = "No jobs yet. A job appears when its ranks register: call flyball.attach in a"
        return [(), (_muted(f"{text} training script."),)]
    body: list[Block] = []
    # Living jobs first, each at the same place in every frame.
    in_order = sorted(jobs, key=lambda job: (job.state.is_over, job.job_id))
    for is_emulated in (False, True):
        if alike := [job for job in in_order if job.emulated is is_emulated]:
            body += [(), _totals(alike), Table.of([_job_row(job, now) for job in alike])]
    return body


def _totals(jobs: Sequence[JobOverview]) -> Paragraph:
    living = [job for job in jobs if not job.state.is_over]
    num_over, gpus, how = len(jobs) - len(living), _gpus(jobs[0]), _how(jobs[0])
    present, ranks = sum(job.num_present for job in living), sum(job.num_ranks for job in living)
    parts = [
        Span(f"{gpus}: no figure here is a real GPU's" if jobs[0].emulated else gpus, Tone.TITLE),
        Span(_counted(len(jobs), "job") + (f", {num_over} over" if num_over else "")),
        Span(f"{present} of {ranks} {gpus} present"),
    ]
    measured = [job.measured for job in living if job.num_present > 0 and job.measured is not None]
    powers_w = [_power_w(newest.energy_j, newest.iteration_time_s) for newest in measured]
    if known_w := [power for power in powers_w if power is not None]:
        parts.append(Span(f"{power_text(sum(known_w))} {how}"))
    if saved_j := [job.saved_j.mean for job in jobs if job.saved_j is not None]:
        parts.append(Span(f"{energy_text(sum(saved_j))} saved, {how}"))
    return tuple(parts)


def _job_row(job: JobOverview, now: datetime) -> Row:
    how = _heading(job)
    return {
        "<job": Span(job.job_id, Tone.MUTED if job.state.is_over else Tone.TITLE),
        "<state": _state(job),
        ">GPUs": _present(job, f"{job.num_present}/{job.num_ranks}"),
        **_measured(job, f"{how}\n"),
        f">{how}\nsaved": UNKNOWN
        if job.saved_j is None or job.saved_j.includes_zero
        else energy_text(job.saved_j.mean),
        **_predicted(job.predicted),
        ">predicted\ngap, %": _gap(job.predicted),
        "<version": _version(job, "{}", "{} waits"),
        f"<{how}\non clocks": job.measured.clocks if job.measured else UNKNOWN,
        f"<{how}\n95 % of saving": interval_text(job.saving_percent, _PERCENT),
        ">heartbeat": _muted(f"{_age_text(job.last_seen_at, now)} ago"),
    }


def _measured(job: JobOverview, origin: str = "") -> Row:
    newest, saving = job.measured, job.saving_percent
    return {
        f">{origin}saving, %": Span(_sure_text(saving, _PERCENT), _saving_tone(saving)),
        f">{origin}slower, %": _sure_text(job.slowdown_percent, _SIGNED_PERCENT),
        f">{origin}time, s": number_text(newest.iteration_time_s if newest else None, _TIME_S),
        f">{origin}energy, J": number_text(newest.energy_j if newest else None, _ENERGY_J),
    }


def _sure_text(change: Estimate | None, form: str) -> str:
    """Return the mean of a change; UNKNOWN: not measured, or its interval includes zero."""
    return UNKNOWN if change is None or change.includes_zero else number_text(change, form)


def _predicted(plan: PredictedIteration | None, origin: str = "predicted\n") -> Row:
    if plan is None:
        return {f">{origin}saving, %": UNKNOWN}
    slower_percent = 100 * (plan.iteration_time_s / plan.baseline_iteration_time_s - 1)
    return {
        f">{origin}saving, %": f"{plan.saving_percent:{_PERCENT}}",
        f">{origin}slower, %": f"{slower_percent:{_SIGNED_PERCENT}}",
        f">{origin}time, s": f"{plan.iteration_time_s:{_TIME_S}}",
        f">{origin}energy, J": f"{plan.energy_j:{_ENERGY_J}}",
    }


def _gap(plan: PredictedIteration | None) -> str:
    return number_text(plan.gap_percent if plan else None, _PERCENT)


def _title(reading: FollowedJob, now: datetime) -> list[Span]:
    job, num_stragglers = reading.overview, len(reading.stragglers)
    registered = f", {job.num_registered} registered" if job.num_registered < job.num_ranks else ""
    parts = (
        Span(job.job_id, Tone.TITLE),
        _state(job),
        Span(_counted(num_stragglers, "straggler") if num_stragglers else "", Tone.WARN),
        _present(job, f"{job.num_present} of {job.num_ranks} {_gpus(job)} present{registered}"),
        Span(f"{job.num_stages} stages, {job.num_microbatches} microbatches"),
        Span(job.schedule),
        Span(f"{job.policy}, target {target_text(job.target)}"),
        Span(f"misses {target_text(job.missed.target)}" if job.missed else "", Tone.WARN),
        Span(_version(job, "version {} active", "version {} waits for its ranks") or "no plan yet"),
        Span(f"{job.num_steps} steps"),
        _muted(f"last heartbeat {_age_text(job.last_seen_at, now)} ago"),
    )
    return [part for part in parts if part.text]


def _job(reading: FollowedJob, now: datetime, width: int) -> list[Block]:
    whole = [step for step in reading.steps if step.num_ranks >= reading.overview.num_ranks]
    return [
        *_figures(reading.overview),
        *_newest_steps(reading.overview, whole[-max(_FEWEST_SHOWN, width - _BESIDE_PICTURES) :]),
        *_stages(reading, whole),
        *([(), (_muted("stragglers"),)] if reading.stragglers else ()),
        *(_straggler(straggler, now) for straggler in reading.stragglers),
        *_versions(reading, now),
    ]


def _figures(job: JobOverview) -> list[Block]:
    rows = _figure_rows(job)
    if not rows:
        return [(), (_muted("no step measured by all ranks yet, and no plan"),)]
    blocks: list[Block] = [(), Table.of(rows)]
    if (saved_j := job.saved_j) is not None:
        mean = "no measurable amount" if saved_j.includes_zero else energy_text(saved_j.mean)
        text = f"saved so far, {_how(job)}: {mean}"
        if saved_j.low is not None and saved_j.high is not None:
            text += f" [{energy_text(saved_j.low)}, {energy_text(saved_j.high)}]"
        blocks.append((Span(text, _saving_tone(saved_j)),))
    if not job.is_caught_up:
        note = "the planner has not read all steps yet: measured means are not final"
        blocks.append((_muted(note),))
    return blocks


def _figure_rows(job: JobOverview) -> list[Row]:
    rows: list[Row] = []
    newest, plan = job.measured, job.predicted
    highest_s, highest_j = ">highest\nclocks, s", ">highest\nclocks, J"
    if newest is not None:
        is_planned = newest.clocks == StepClocks.PLAN and newest.version is not None
        clocks = _CLOCKS.get(newest.clocks, str(newest.clocks))
        rows.append(
            {
                "<": _heading(job),
                "<clocks": f"plan, version {newest.version}" if is_planned else clocks,
                **_measured(job),
                highest_s: number_text(job.measured_baseline_time_s, _TIME_S),
                highest_j: number_text(job.measured_baseline_energy_j, _ENERGY_J),
                "<95 %\nof saving": interval_text(job.saving_percent, _PERCENT),
                "<95 %\nof slower": interval_text(job.slowdown_percent, _SIGNED_PERCENT),
            }
        )
    if plan is not None:
        version = job.newest_version if job.active_version is None else job.active_version
        rows.append(
            {
                "<": "predicted",
                "<clocks": f"plan, version {version}",
                **_predicted(plan, ""),
                highest_s: f"{plan.baseline_iteration_time_s:{_TIME_S}}",
                highest_j: f"{plan.baseline_energy_j:{_ENERGY_J}}",
            }
        )
    return rows


def _newest_steps(job: JobOverview, steps: Sequence[StagesOfStep]) -> list[Block]:
    if not steps:
        return []
    times_s = [step.time_s for step in steps]
    powers_w = [_power_w(step.energy_j, step.time_s) for step in steps]
    rows: list[Row] = [
        {"<": "iteration time, s", "< ": _range(times_s, _TIME_S), "<  ": _drawn(times_s)},
        {"<": "power, W", "< ": _range(powers_w, _POWER_W), "<  ": _drawn(powers_w)},
    ]
    if held_down := "".join(map(_held_down, steps)).rstrip():
        letters = Span(held_down, Tone.WARN)
        rows.append({"<": "clocks held down", "< ": "P power, H heat, M other", "<  ": letters})
    title = f"steps {steps[0].step} to {steps[-1].step}, {_how(job)}"
    return [(), (_muted(title),), Table.of(rows)]


def _range(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    low, high = (
        number_text(min(known, default=None), form),
        number_text(max(known, default=None), form),
    )
    return low if low == high else f"{low} to {high}"


def _held_down(step: StagesOfStep) -> str:
    """Return a letter for the reason of low clocks, the rarest reason first."""
    if any(stage.num_thermally_capped for stage in step.stages):
        return "H"
    if any(stage.num_power_capped for stage in step.stages):
        return "P"
    return "M" if any(stage.num_clock_misses for stage in step.stages) else " "


def _stages(reading: FollowedJob, whole: Sequence[StagesOfStep]) -> list[Block]:
    """Return the stages' means over the planner's window, or the newest steps of one version."""
    same = [step for step in whole if len(step.plan_versions) == 1 and not step.unknown_versions]
    window = [
        step for step in same[-_WINDOW_STEPS:] if step.plan_versions == same[-1].plan_versions
    ]
    if (mean := reading.overview.measured) is not None:
        span = range(mean.first_step, mean.last_step + 1)
        of_mean = [step for step in same if step.plan_versions == (mean.version,)]
        window = [step for step in of_mean if step.step in span] or window
    if not window:
        return []
    (version,) = window[-1].plan_versions
    plan = next((summary for summary in reading.history if summary.version == version), None)
    title = f"stages in steps {window[0].step} to {window[-1].step}, "
    title += "without a plan" if version is None else f"on version {version}"
    if plan is not None and plan.kind == PlanKind.COMPARISON:
        title += ", some at the highest clocks to compare"
    planned_mhz = dict(enumerate(plan.stage_clock_mhz if plan else ()))
    rows = [
        {
            ">stage": str(stage),
            ">planned\nMHz": number_text(planned_mhz.get(stage), _CLOCK_MHZ),
            **_stage_row(_heading(reading.overview), _of(stage, window), _of(stage, whole)),
        }
        for stage in sorted({stage_step.stage for step in window for stage_step in step.stages})
    ]
    return [(), (_muted(title),), Table.of(rows)]


def _of(stage: int, steps: Sequence[StagesOfStep]) -> list[StageOfStep]:
    return [stage_step for step in steps for stage_step in step.stages if stage_step.stage == stage]


def _stage_row(how: str, window: Sequence[StageOfStep], whole: Sequence[StageOfStep]) -> Row:
    """Return a stage's means, its numbers of low clocks, and the newest powers."""
    time_s = sum(stage_step.time_s for stage_step in window)
    energies_j = [stage_step.energy_j for stage_step in window if stage_step.energy_j is not None]
    energy_j = sum(energies_j) if len(energies_j) == len(window) else None
    clocks_mhz = [
        stage_step.sm_clock_mhz for stage_step in window if stage_step.sm_clock_mhz is not None
    ]
    clock_mhz = sum(clocks_mhz) / len(clocks_mhz) if clocks_mhz else None
    return {
        f">{how}\nMHz": number_text(clock_mhz, _CLOCK_MHZ),
        f">{how}\ntime, s": f"{time_s / len(window):{_TIME_S}}",
        f">{how}\npower, W": number_text(_power_w(energy_j, time_s), _POWER_W),
        f">{how}\nlow clocks": _warned(sum(stage_step.num_clock_misses for stage_step in window)),
        ">by power": _warned(sum(stage_step.num_power_capped for stage_step in window)),
        ">by heat": _warned(sum(stage_step.num_thermally_capped for stage_step in window)),
        f"<{how}\npower, newest steps": _drawn(
            [
                _power_w(stage_step.energy_j, stage_step.time_s)
                for stage_step in whole[-_SHOWN_POWERS:]
            ]
        ),
    }


def _warned(number: int) -> Span:
    return Span(str(number), Tone.WARN if number else Tone.PLAIN)


def _straggler(straggler: Straggler, now: datetime) -> Paragraph:
    times = (("from", straggler.from_time), ("to", straggler.until_time))
    between = [f" {word} {moment_text(time, now)}" for word, time in times if time is not None]
    return (
        Span(f"rank {straggler.rank}", Tone.WARN),
        Span(f"{straggler.slowdown:.3g} times as long ({straggler.reason})"),
        Span("".join([straggler.source, *between])),
        Span("in the plan" if straggler.is_planned else "not in the plan yet"),
    )


def _versions(reading: FollowedJob, now: datetime) -> list[Block]:
    shown = reading.history[-_SHOWN_VERSIONS:]
    older = len(reading.history) - len(shown)
    note = "newest versions of the plan, * the active one" + (f"; {older} older" if older else "")
    rows = [
        _version_row(version, reading.overview.active_version, now) for version in reversed(shown)
    ]
    return [(), (_muted(note),), Table.of(rows)] if rows else []


def _version_row(version: PlanSummary, active: int | None, now: datetime) -> Row:
    is_active = version.version == active
    return {
        ">version": Span(f"*{version.version}", Tone.GOOD) if is_active else str(version.version),
        "<kind": version.kind,
        ">from step": UNKNOWN if version.first_step is None else str(version.first_step),
        **_predicted(version.predicted),
        ">predicted\ngap, %": _gap(version.predicted),
        "<policy": version.policy,
        "<target": target_text(version.target),
        "<made": moment_text(version.created_at, now),
    }


def _muted(text: str) -> Span:
    return Span(text, Tone.MUTED)


def _heading(job: JobOverview) -> str:
    """Return the heading of figures that the job's ranks posted."""
    return "emulated" if job.emulated else "measured"


def _how(job: JobOverview) -> str:
    return "measured (emulated)" if job.emulated else "measured"


def _gpus(job: JobOverview) -> str:
    return "emulated GPUs" if job.emulated else "GPUs"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _power_w(energy_j: float | None, time_s: float) -> float | None:
    """Return the mean power; None: the energy is not known."""
    return None if energy_j is None or time_s <= 0 else energy_j / time_s


def _state(job: JobOverview) -> Span:
    if job.condition is None:
        return Span(job.state, _STATE_TONES.get(job.state, Tone.MUTED))
    return Span(state_text(job), Tone.WARN if to_do(job) is None else Tone.BAD)


def _present(job: JobOverview, text: str) -> Span:
    is_short = not job.state.is_over and job.num_present < job.num_ranks
    return Span(text, Tone.WARN if is_short else Tone.PLAIN)


def _version(job: JobOverview, active: str, waiting: str) -> str:
    """Return the active version, and the newest where that still waits for its ranks."""
    texts = [] if job.active_version is None else [active.format(job.active_version)]
    if job.newest_version not in {None, job.active_version}:
        texts.append(waiting.format(job.newest_version))
    return ", ".join(texts)


def _saving_tone(saving: Estimate | None) -> Tone:
    """Return good or bad where the whole interval is on one side of zero."""
    if saving is None or saving.low is None or saving.high is None:
        return Tone.PLAIN
    return Tone.GOOD if saving.low > 0 else Tone.BAD if saving.high < 0 else Tone.PLAIN


def _drawn(values: Sequence[float | None]) -> Span:
    """Draw a character for each value; a space for None."""
    known = [value for value in values if value is not None]
    if not known:
        return Span("")
    middle, half = (min(known) + max(known)) / 2, (max(known) - min(known)) / 2
    half = max(half, abs(sum(known) / len(known)) * _SMALLEST_SPREAD / 2) or 1.0
    scale = (len(LEVELS) - 1) / (2 * half)
    levels = [None if v is None else round((v - middle + half) * scale) for v in values]
    return Span("".join(" " if n is None else LEVELS[n] for n in levels), Tone.ACCENT)


def target_text(target: str) -> str:
    """Return a target with the digits that count: `deadline:2.88373`."""
    return _LONG_FRACTION.sub(lambda found: f"{float(found[0]):.6g}", target)


def moment_text(moment: datetime | str, now: datetime) -> str:
    """Return the time of day in the zone of `now`, with the date where that is not today's."""
    then = _moment(moment)
    if then is None:
        return UNKNOWN
    here = then.astimezone(now.tzinfo)
    return f"{here:%H:%M:%S}" if here.date() == now.date() else f"{here:%Y-%m-%d %H:%M}"


def _age_text(moment: datetime | str, now: datetime) -> str:
    """Return the time since then: `12 s`, `5 min`, `3 h`, `2 d`."""
    then = _moment(moment)
    if then is None:
        return UNKNOWN
    age_s = max(0.0, (now - then).total_seconds())
    for unit_s, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if age_s >= 2 * unit_s:
            return f"{age_s / unit_s:.0f} {unit}"
    return f"{age_s:.0f} s"


def _moment(moment: datetime | str) -> datetime | None:
    """Parse a moment from the planner; None: not a moment with a time zone."""
    try:
        parsed = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        return None
    return None if parsed.tzinfo is None else parsed

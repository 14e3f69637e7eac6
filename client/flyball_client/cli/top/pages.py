"""Pages of `flyball top`: all jobs, a row each, or one job by its stages.

Measured stands beside predicted, and emulated GPUs stand apart from others.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from flyball_client.api.errors import PlannerRefusedError
from flyball_client.cli.report_text import energy_text
from flyball_client.cli.top.columns import MEASURED, Column, laid_out
from flyball_client.cli.top.lines import (
    ENERGY_J,
    PERCENT,
    SIGNED_PERCENT,
    TIME_S,
    UNKNOWN,
    Line,
    Page,
    Paper,
    Span,
    Tone,
    age_text,
    drawable,
    flowed,
    interval_text,
    moment_text,
    number_text,
    power_text,
    target_text,
    texts,
    wrapped,
)
from flyball_client.cli.top.reading import JobReading, Seen
from flyball_client.cli.top.stages import how, power_w, stage_lines, step_lines
from flyball_wire.closed_loop import Estimate, Straggler, StragglerSource
from flyball_wire.messages import JobState
from flyball_wire.read_models import (
    JobOverview,
    Overview,
    PlanSummary,
    PredictedIteration,
    StepClocks,
)

_OVER = frozenset({JobState.ENDED, JobState.EXPIRED})
_STATE_TONES = {
    JobState.PLANNED: Tone.GOOD,
    JobState.PROFILING: Tone.ACCENT,
    JobState.AWAITING_PROFILE: Tone.WARN,
    JobState.PLANNING_FAILED: Tone.BAD,
    JobState.ENDED: Tone.MUTED,
    JobState.EXPIRED: Tone.MUTED,
}

_JOBS = (
    Column(heading="job", is_text=True),
    Column(heading="state", is_text=True, rank=1),
    Column(heading="GPUs", rank=2),
    Column(heading="version", rank=7),
    Column(heading="clocks", group=MEASURED, is_text=True, rank=6),
    Column(heading="time, s", group=MEASURED, rank=3),
    Column(heading="energy, J", group=MEASURED, rank=5),
    Column(heading="slower, %", group=MEASURED, rank=8),
    Column(heading="saving, %", group=MEASURED),
    Column(heading="95 % interval", group=MEASURED, rank=9),
    Column(heading="saved", group=MEASURED, rank=4),
    Column(heading="time, s", group="predicted", rank=11),
    Column(heading="saving, %", group="predicted", rank=3),
    Column(heading="gap, %", group="predicted", rank=10),
    Column(heading="heartbeat", rank=12),
)
_NO_JOBS = (
    "No jobs yet. A job appears when its ranks register:",
    "  make demo                    one on emulated GPUs, in a clone of Flyball",
    "  flyball.attach(engine, ...)  yours, in its training script",
)
_SHOWN_VERSIONS = 8
_RAN_AT = {
    StepClocks.HIGHEST: "highest clocks",
    StepClocks.DEFAULT: "default clocks",
}
_FIGURES = (
    Column(heading="", is_text=True),
    Column(heading="", is_text=True),
    Column(heading="time, s", is_text=True),
    Column(heading="", is_text=True, rank=1),
    Column(heading="energy, J", is_text=True),
    Column(heading="", is_text=True, rank=1),
    Column(heading="", is_text=True, rank=2),
)
_VERSIONS = (
    Column(heading="version"),
    Column(heading="kind", is_text=True),
    Column(heading="policy", is_text=True, rank=2),
    Column(heading="target", is_text=True, rank=3),
    Column(heading="from step"),
    Column(heading="made", is_text=True, rank=4),
    Column(heading="time, s", group="predicted", rank=1),
    Column(heading="saving, %", group="predicted"),
    Column(heading="gap, %", group="predicted", rank=5),
)


def page_of(seen: Seen, address: str, paper: Paper) -> Page:
    """Draw the newest reading; without an answer of the planner since then, that stands on top."""
    read_at = moment_text(seen.read_at, paper.now)
    if isinstance(seen.reading, JobReading):
        page = job_page(seen.reading, f"read {read_at}", paper)
    else:
        page = jobs_page(seen.reading, f"{address}   read {read_at}", paper)
    if seen.trouble is None or seen.trouble_since is None:
        return page
    what = "refused" if isinstance(seen.trouble, PlannerRefusedError) else "planner away"
    since = moment_text(seen.trouble_since, paper.now)
    age = age_text(seen.trouble_since, paper.now)
    text = f"{what} since {since} ({age}); all figures are of {read_at}. {seen.trouble}"
    banner = wrapped(drawable(text), paper.width, Tone.ALARM, most_lines=3)
    return Page(head=(*banner, *page.head), body=page.body)


def jobs_page(overview: Overview, origin: str, paper: Paper) -> Page:
    """Draw the page; `origin` names the planner and the time of reading."""
    body: list[Line] = []
    all_rows = [_job_row(job, paper.now) for job in overview.jobs]
    # Living jobs first, each at the same place in every frame.
    in_order = sorted(overview.jobs, key=lambda job: (job.state in _OVER, job.job_id))
    for emulated in (False, True):
        if jobs := [job for job in in_order if job.emulated is emulated]:
            rows = [_job_row(job, paper.now) for job in jobs]
            table = laid_out(_JOBS, rows, paper.width, measured=how(jobs[0]), beside=all_rows)
            body += [(), *flowed(_totals(jobs), paper.width), *table]
    if not overview.jobs:
        body = [(), *((Span(line, Tone.MUTED),) for line in _NO_JOBS)]
    title = [Span("all jobs", Tone.TITLE), Span(drawable(origin), Tone.MUTED)]
    return Page(head=tuple(flowed(title, paper.width)), body=tuple(body))


def _totals(jobs: list[JobOverview]) -> list[Span]:
    living = [job for job in jobs if job.state not in _OVER]
    num_over = len(jobs) - len(living)
    gpus, number = _gpus(jobs[0]), _counted(len(jobs), "job")
    present, ranks = sum(job.num_present for job in living), sum(job.num_ranks for job in living)
    parts = [
        Span(f"{gpus}: no figure here is a real GPU's" if jobs[0].emulated else gpus, Tone.TITLE),
        Span(number + (f", {num_over} over" if num_over else "")),
        Span(f"{present} of {ranks} {gpus} present"),
    ]
    measured = [job.measured for job in living if job.num_present > 0 and job.measured is not None]
    powers_w = [power_w(newest.energy_j, newest.iteration_time_s) for newest in measured]
    if known_w := [power for power in powers_w if power is not None]:
        parts.append(Span(f"{power_text(sum(known_w))} {how(jobs[0])}"))
    if saved_j := [job.saved_j.mean for job in jobs if job.saved_j is not None]:
        parts.append(Span(f"{energy_text(sum(saved_j))} saved, {how(jobs[0])}"))
    return parts


def _gpus(job: JobOverview) -> str:
    return "emulated GPUs" if job.emulated else "GPUs"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _state(job: JobOverview) -> Span:
    return Span(job.state, _STATE_TONES[job.state])


def _present(job: JobOverview, text: str) -> Span:
    is_short = job.state not in _OVER and job.num_present < job.num_ranks
    return Span(text, Tone.WARN if is_short else Tone.PLAIN)


def _job_row(job: JobOverview, now: datetime) -> Line:
    newest, saving = job.measured, job.saving_percent
    time_s, energy_j = (newest.iteration_time_s, newest.energy_j) if newest else (None, None)
    return (
        Span(drawable(job.job_id), Tone.MUTED if job.state in _OVER else Tone.TITLE),
        _state(job),
        _present(job, f"{job.num_present}/{job.num_ranks}"),
        *texts(
            _version(job, "{}", "{} waits") or UNKNOWN,
            drawable(newest.clocks) if newest else UNKNOWN,
            number_text(time_s, TIME_S),
            number_text(energy_j, ENERGY_J),
            number_text(job.slowdown_percent, SIGNED_PERCENT),
        ),
        Span(number_text(saving, PERCENT), _saving_tone(saving)),
        Span(interval_text(saving, PERCENT)),
        Span(UNKNOWN if job.saved_j is None else energy_text(job.saved_j.mean)),
        *_predicted_cells(job.predicted),
        Span(f"{age_text(job.last_seen_at, now)} ago", Tone.MUTED),
    )


def _version(job: JobOverview, active: str, waiting: str) -> str:
    """Return the active version, and the newest where that still waits for its ranks."""
    parts: list[str] = []
    if job.active_version is not None:
        parts.append(active.format(job.active_version))
    if job.newest_version not in {None, job.active_version}:
        parts.append(waiting.format(job.newest_version))
    return ", ".join(parts)


def _predicted_cells(predicted: PredictedIteration | None) -> Line:
    """Return time, saving and gap."""
    if predicted is None:
        return texts(UNKNOWN, UNKNOWN, UNKNOWN)
    return texts(
        number_text(predicted.iteration_time_s, TIME_S),
        number_text(predicted.saving_percent, PERCENT),
        number_text(predicted.gap_percent, PERCENT),
    )


def _saving_tone(saving: Estimate | None) -> Tone:
    """Return good or bad where the whole interval is on one side of zero."""
    if saving is None or saving.low is None or saving.high is None:
        return Tone.PLAIN
    if saving.low > 0:
        return Tone.GOOD
    return Tone.BAD if saving.high < 0 else Tone.PLAIN


def job_page(reading: JobReading, origin: str, paper: Paper) -> Page:
    """Draw the page; `origin` names the time of reading."""
    overview = reading.overview
    body = [
        *_figures(overview, paper),
        *step_lines(overview, reading.steps, paper),
        *stage_lines(reading, paper),
        *_stragglers(reading.stragglers, paper),
        *_versions(reading, paper),
    ]
    head = flowed([*_title(reading, paper.now), Span(drawable(origin), Tone.MUTED)], paper.width)
    if overview.problem is not None:
        problem = f"problem: {drawable(overview.problem)}"
        head += wrapped(problem, paper.width, Tone.BAD, most_lines=3)
    return Page(head=tuple(head), body=tuple(body))


def _title(reading: JobReading, now: datetime) -> list[Span]:
    job = reading.overview
    registered = f", {job.num_registered} registered" if job.num_registered < job.num_ranks else ""
    stragglers = _counted(len(reading.stragglers), "straggler")
    version = _version(job, "version {} active", "version {} waits for its ranks")
    return [
        Span(drawable(job.job_id), Tone.TITLE),
        _state(job),
        *([Span(stragglers, Tone.WARN)] if reading.stragglers else []),
        _present(job, f"{job.num_present} of {job.num_ranks} {_gpus(job)} present{registered}"),
        Span(f"{job.num_stages} stages, {job.num_microbatches} microbatches"),
        Span(drawable(job.schedule)),
        Span(f"{drawable(job.policy)}, target {target_text(job.target)}"),
        *(
            []
            if job.missed is None
            else [Span(f"misses {target_text(job.missed.target)}", Tone.WARN)]
        ),
        Span(version or "no plan yet"),
        Span(f"{job.num_steps} steps"),
        Span(f"last heartbeat {age_text(job.last_seen_at, now)} ago", Tone.MUTED),
    ]


def _figures(job: JobOverview, paper: Paper) -> list[Line]:
    rows = [*_measured_rows(job), *_predicted_rows(job)]
    if not rows:
        return [(), (Span("no step measured by all ranks yet, and no plan", Tone.MUTED),)]
    lines = [(), *laid_out(_FIGURES, rows, paper.width)]
    if job.saved_j is not None:
        saved = energy_text(job.saved_j.mean)
        if job.saved_j.low is not None and job.saved_j.high is not None:
            saved += f" [{energy_text(job.saved_j.low)}, {energy_text(job.saved_j.high)}]"
        lines.append((Span(f"saved so far, {how(job)}: {saved}", _saving_tone(job.saved_j)),))
    if not job.is_caught_up:
        note = "the planner has not read all steps yet: measured means are not final"
        lines.append((Span(note, Tone.MUTED),))
    return lines


def _measured_rows(job: JobOverview) -> list[Line]:
    rows: list[Line] = []
    newest = job.measured
    if newest is not None:
        steps = f"steps {newest.first_step} to {newest.last_step}"
        if newest.num_steps != newest.last_step - newest.first_step + 1:
            steps = f"{newest.num_steps} of {steps}"
        time = number_text(newest.iteration_time_s, TIME_S)
        energy = number_text(newest.energy_j, ENERGY_J)
        ran_at = _RAN_AT.get(newest.clocks, newest.clocks)
        if newest.clocks == StepClocks.PLAN and newest.version is not None:
            ran_at = f"plan, version {newest.version}"
        rows.append(texts(ran_at, how(job), time, "", energy, "", steps))
    time_s, energy_j = job.measured_baseline_time_s, job.measured_baseline_energy_j
    if time_s is not None:
        time, energy = number_text(time_s, TIME_S), number_text(energy_j, ENERGY_J)
        within = interval_text(time_s, TIME_S), interval_text(energy_j, ENERGY_J)
        steps = f"{time_s.num_steps} steps"
        rows.append(texts("highest clocks", how(job), time, within[0], energy, within[1], steps))
    slower, saving = job.slowdown_percent, job.saving_percent
    if slower is not None or saving is not None:
        longer = number_text(slower, SIGNED_PERCENT, " %")
        within = interval_text(slower, SIGNED_PERCENT), interval_text(saving, PERCENT)
        saves = Span(f"saves {number_text(saving, PERCENT, ' %')}", _saving_tone(saving))
        row = texts("difference", how(job), longer, within[0])
        rows.append((*row, saves, *texts(within[1], "")))
    return rows


def _predicted_rows(job: JobOverview) -> list[Line]:
    plan = job.predicted
    if plan is None:
        return []
    version = job.newest_version if job.active_version is None else job.active_version
    slower = 100 * (plan.iteration_time_s / plan.baseline_iteration_time_s - 1)
    longer, saves = f"{slower:{SIGNED_PERCENT}} %", f"saves {plan.saving_percent:{PERCENT}} %"
    gap = "" if plan.gap_percent is None else f"gap {plan.gap_percent:{PERCENT}} %"
    time, energy = f"{plan.iteration_time_s:{TIME_S}}", f"{plan.energy_j:{ENERGY_J}}"
    most = f"{plan.baseline_iteration_time_s:{TIME_S}}", f"{plan.baseline_energy_j:{ENERGY_J}}"
    return [
        texts(f"plan, version {version}", "predicted", time, "", energy, "", gap),
        texts("highest clocks", "predicted", most[0], "", most[1], "", ""),
        texts("difference", "predicted", longer, "", saves, "", ""),
    ]


def _stragglers(stragglers: Sequence[Straggler], paper: Paper) -> list[Line]:
    lines: list[Line] = [(), (Span("stragglers", Tone.HEADING),)] if stragglers else []
    for straggler in stragglers:
        is_detected = straggler.source == StragglerSource.DETECTED
        reason = f" ({straggler.reason})" if is_detected else ""
        source = str(straggler.source)
        for word, moment in (("from", straggler.from_time), ("to", straggler.until_time)):
            source += "" if moment is None else f" {word} {moment_text(moment, paper.now)}"
        parts = [
            Span(f"rank {straggler.rank}", Tone.WARN),
            Span(f"{straggler.slowdown:.3g} times as long{reason}"),
            Span(source),
            Span("in the plan" if straggler.is_planned else "not in the plan yet"),
        ]
        lines += flowed(parts, paper.width)
    return lines


def _versions(reading: JobReading, paper: Paper) -> list[Line]:
    shown = reading.history[-_SHOWN_VERSIONS:]
    if not shown:
        return []
    rows = [_version_row(each, reading, paper.now) for each in reversed(shown)]
    note = "newest versions of the plan, * the active one"
    if older := len(reading.history) - len(shown):
        note += f"; {older} older"
    return [(), (Span(note, Tone.MUTED),), *laid_out(_VERSIONS, rows, paper.width)]


def _version_row(version: PlanSummary, reading: JobReading, now: datetime) -> Line:
    is_active = version.version == reading.overview.active_version
    return (
        Span(f"*{version.version}", Tone.GOOD) if is_active else Span(str(version.version)),
        *texts(
            drawable(version.kind),
            drawable(version.policy),
            target_text(version.target),
            "-" if version.first_step is None else str(version.first_step),
            moment_text(version.created_at, now),
        ),
        *_predicted_cells(version.predicted),
    )

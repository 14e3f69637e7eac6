"""Pages of `flyball top`: all jobs, a row each, or one job by its stages.

Measured stands beside predicted, and emulated GPUs stand apart from others.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from flyball_client.api.errors import PlannerRefusedError
from flyball_client.cli.report_text import energy_text
from flyball_client.cli.top.columns import MEASURED, Column, Rows, laid_out
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
from flyball_wire.closed_loop import Estimate, Straggler
from flyball_wire.read_models import (
    JobOverview,
    MeasuredIteration,
    Overview,
    PlanSummary,
    PredictedIteration,
)

_OVER = frozenset({"ended", "expired"})
_STATE_TONES = {
    "planned": Tone.GOOD,
    "profiling": Tone.ACCENT,
    "awaiting-profile": Tone.WARN,
    "planning-failed": Tone.BAD,
    "ended": Tone.MUTED,
    "expired": Tone.MUTED,
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
    Column(heading="heard of", rank=12),
)
_NO_JOBS = (
    "No jobs yet. A job appears when its ranks register:",
    "  make demo                    one on emulated GPUs, in a clone of Flyball",
    "  flyball.attach(engine, ...)  yours, in its training script",
)
_SHOWN_VERSIONS = 8
_RAN_AT = {
    "highest": "highest clocks",
    "default": "default clocks",
    "profiling": "profiling",
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
    for emulated in (False, True):
        jobs = [job for job in overview.jobs if job.emulated is emulated]
        if jobs:
            body += [(), *_section(jobs, all_rows, paper)]
    if not overview.jobs:
        body = [(), *((Span(line, Tone.MUTED),) for line in _NO_JOBS)]
    title = [Span("all jobs", Tone.TITLE), Span(drawable(origin), Tone.MUTED)]
    return Page(head=tuple(flowed(title, paper.width)), body=tuple(body))


def _section(jobs: list[JobOverview], all_rows: Rows, paper: Paper) -> list[Line]:
    rows = [_job_row(job, paper.now) for job in sorted(jobs, key=_place)]
    table = laid_out(_JOBS, rows, paper.width, measured=how(jobs[0]), beside=all_rows)
    return [*flowed(_totals(jobs), paper.width), *table]


def _place(job: JobOverview) -> tuple[bool, str]:
    """Sort living jobs first, each at the same place in every frame."""
    return job.state in _OVER, job.job_id


def _totals(jobs: list[JobOverview]) -> list[Span]:
    living = [job for job in jobs if job.state not in _OVER]
    num_over = len(jobs) - len(living)
    gpus = "emulated GPUs" if jobs[0].emulated else "GPUs"
    number = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
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


def _job_row(job: JobOverview, now: datetime) -> Line:
    is_over = job.state in _OVER
    is_short = not is_over and job.num_present < job.num_ranks
    newest, saving, slower = job.measured, job.saving_percent, job.slowdown_percent
    return (
        Span(drawable(job.job_id), Tone.MUTED if is_over else Tone.TITLE),
        Span(drawable(job.state), _STATE_TONES.get(job.state, Tone.PLAIN)),
        Span(f"{job.num_present}/{job.num_ranks}", Tone.WARN if is_short else Tone.PLAIN),
        *texts(
            _versions_cell(job),
            UNKNOWN if newest is None else drawable(newest.clocks),
            UNKNOWN if newest is None else number_text(newest.iteration_time_s, TIME_S),
            UNKNOWN if newest is None else number_text(newest.energy_j, ENERGY_J),
            number_text(slower, SIGNED_PERCENT),
        ),
        Span(number_text(saving, PERCENT), _saving_tone(saving)),
        Span(interval_text(saving, PERCENT)),
        Span(UNKNOWN if job.saved_j is None else energy_text(job.saved_j.mean)),
        *_predicted_cells(job.predicted),
        Span(f"{age_text(job.heard_at, now)} ago", Tone.MUTED),
    )


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


def _versions_cell(job: JobOverview) -> str:
    """Return the active version, and the newest where that still waits for its ranks."""
    if job.newest_version is None:
        return UNKNOWN
    if job.active_version == job.newest_version:
        return str(job.active_version)
    waiting = f"{job.newest_version} waits"
    return waiting if job.active_version is None else f"{job.active_version}, {waiting}"


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
    title = [*_title(reading, paper.now), Span(drawable(origin), Tone.MUTED)]
    head = flowed(title, paper.width)
    if overview.problem is not None:
        problem = f"problem: {drawable(overview.problem)}"
        head += wrapped(problem, paper.width, Tone.BAD, most_lines=3)
    return Page(head=tuple(head), body=tuple(body))


def _title(reading: JobReading, now: datetime) -> list[Span]:
    job = reading.overview
    gpus = "emulated GPUs" if job.emulated else "GPUs"
    is_short = job.state not in _OVER and job.num_present < job.num_ranks
    registered = f", {job.num_registered} registered" if job.num_registered < job.num_ranks else ""
    parts = [
        Span(drawable(job.job_id), Tone.TITLE),
        Span(drawable(job.state), _STATE_TONES.get(job.state, Tone.PLAIN)),
        Span(
            f"{job.num_present} of {job.num_ranks} {gpus} present{registered}",
            Tone.WARN if is_short else Tone.PLAIN,
        ),
        Span(f"{job.num_stages} stages, {job.num_microbatches} microbatches"),
        Span(drawable(job.schedule)),
        Span(f"{drawable(job.policy)}, target {target_text(job.target)}"),
        Span(_version(job)),
        Span(f"{job.num_steps} steps"),
        Span(f"heard of {age_text(job.heard_at, now)} ago", Tone.MUTED),
    ]
    if reading.stragglers:
        number = len(reading.stragglers)
        parts.insert(2, Span("1 straggler" if number == 1 else f"{number} stragglers", Tone.WARN))
    return parts


def _version(job: JobOverview) -> str:
    if job.newest_version is None:
        return "no plan yet"
    if job.active_version == job.newest_version:
        return f"version {job.active_version} active"
    waiting = f"version {job.newest_version} waits for its ranks"
    if job.active_version is None:
        return waiting
    return f"version {job.active_version} active, {waiting}"


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
    if (newest := job.measured) is not None:
        steps = f"steps {newest.first_step} to {newest.last_step}"
        if newest.num_steps != newest.last_step - newest.first_step + 1:
            steps = f"{newest.num_steps} of {steps}"
        time = number_text(newest.iteration_time_s, TIME_S)
        energy = number_text(newest.energy_j, ENERGY_J)
        rows.append(texts(_ran_at(newest), how(job), time, "", energy, "", steps))
    how_long, energy_j = job.measured_baseline_time_s, job.measured_baseline_energy_j
    if how_long is not None:
        time, energy = number_text(how_long, TIME_S), number_text(energy_j, ENERGY_J)
        within = interval_text(how_long, TIME_S), interval_text(energy_j, ENERGY_J)
        steps = f"{how_long.num_steps} steps"
        row = texts("highest clocks", how(job), time, within[0], energy, within[1], steps)
        rows.append(row)
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


def _ran_at(measured: MeasuredIteration) -> str:
    if measured.clocks == "plan" and measured.version is not None:
        return f"plan, version {measured.version}"
    return _RAN_AT.get(measured.clocks, drawable(measured.clocks))


def _stragglers(stragglers: Sequence[Straggler], paper: Paper) -> list[Line]:
    if not stragglers:
        return []
    lines: list[Line] = [(), (Span("stragglers", Tone.HEADING),)]
    for straggler in stragglers:
        reason = f" ({drawable(straggler.reason)})" if straggler.source == "detected" else ""
        parts = [
            Span(f"rank {straggler.rank}", Tone.WARN),
            Span(f"{straggler.slowdown:.3g} times as long{reason}"),
            Span(f"{drawable(straggler.source)}{_when(straggler, paper.now)}"),
            Span("in the plan" if straggler.is_planned else "not in the plan yet"),
        ]
        lines += flowed(parts, paper.width)
    return lines


def _when(straggler: Straggler, now: datetime) -> str:
    since = "" if straggler.from_time is None else f" from {moment_text(straggler.from_time, now)}"
    until = "" if straggler.until_time is None else f" to {moment_text(straggler.until_time, now)}"
    return since + until


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

"""All jobs as a page: a row each; measured beside predicted, emulated GPUs apart from others."""

from __future__ import annotations

from datetime import datetime

from flyball_client.cli.report_text import energy_text
from flyball_client.cli.top.columns import MEASURED, Column, Rows, Table, emulated_columns, laid_out
from flyball_client.cli.top.figure_text import (
    UNKNOWN,
    age_text,
    interval_text,
    joules_text,
    percent_text,
    power_text,
    time_text,
)
from flyball_client.cli.top.lines import Line, Page, Span, Tone, clipped, drawable, flowed
from flyball_client.cli.top.marks import Paper
from flyball_wire.closed_loop import Estimate
from flyball_wire.read_models import JobOverview, MeasuredIteration, Overview, PredictedIteration

OVER = frozenset({"ended", "expired"})
STATE_TONES = {
    "planned": Tone.GOOD,
    "profiling": Tone.ACCENT,
    "awaiting-profile": Tone.WARN,
    "planning-failed": Tone.BAD,
    "ended": Tone.MUTED,
    "expired": Tone.MUTED,
}

_PREDICTED = "predicted"
_COLUMNS = (
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
    Column(heading="time, s", group=_PREDICTED, rank=11),
    Column(heading="saving, %", group=_PREDICTED, rank=3),
    Column(heading="gap, %", group=_PREDICTED, rank=10),
    Column(heading="heard of", rank=12),
)


def jobs_page(overview: Overview, origin: str, paper: Paper) -> Page:
    """The page; `origin` says who was asked, and when."""
    body: list[Line] = []
    all_rows = tuple(_row(job, paper.now) for job in overview.jobs)
    for emulated in (False, True):
        jobs = [job for job in overview.jobs if job.emulated is emulated]
        if jobs:
            body += [(), *_section(jobs, emulated, all_rows, paper)]
    if not overview.jobs:
        body += [(), *_nobody(paper.width)]
    title = [Span("all jobs", Tone.TITLE), Span(drawable(origin), Tone.MUTED)]
    head = flowed(title, paper.width)
    return Page(head=tuple(head), body=tuple(body))


def _section(jobs: list[JobOverview], emulated: bool, all_rows: Rows, paper: Paper) -> list[Line]:
    columns = emulated_columns(_COLUMNS) if emulated else _COLUMNS
    rows = tuple(_row(job, paper.now) for job in sorted(jobs, key=_place))
    table, beside = (Table(columns=columns, rows=each) for each in (rows, all_rows))
    headings, lines = laid_out(table, paper.width, paper.marks, beside=beside)
    return [*flowed(_totals(jobs, emulated), paper.width), *headings, *lines]


def _place(job: JobOverview) -> tuple[bool, str]:
    """Living jobs first, each at a place of its own from frame to frame."""
    return job.state in OVER, job.job_id


def _totals(jobs: list[JobOverview], emulated: bool) -> list[Span]:
    living = [job for job in jobs if job.state not in OVER]
    num_over = len(jobs) - len(living)
    present = sum(job.num_present for job in living)
    gpus = "emulated GPUs" if emulated else "GPUs"
    how = "measured (emulated)" if emulated else "measured"
    heading = "emulated GPUs: no figure here is a real GPU's" if emulated else "GPUs"
    parts = [
        Span(heading, Tone.TITLE),
        Span(_counted(len(jobs), "job") + (f", {num_over} over" if num_over else "")),
        Span(f"{present} of {sum(job.num_ranks for job in living)} {gpus} present"),
    ]
    running = [job for job in living if job.num_present > 0]
    powers_w = [power for job in running if (power := _power_w(job)) is not None]
    if powers_w:
        parts.append(Span(f"{power_text(sum(powers_w))} {how}"))
    saved_j = [job.saved_j.mean for job in jobs if job.saved_j is not None]
    if saved_j:
        parts.append(Span(f"{energy_text(sum(saved_j))} saved, {how}"))
    return parts


def _power_w(job: JobOverview) -> float | None:
    measured = job.measured
    if measured is None or measured.energy_j is None or measured.iteration_time_s <= 0:
        return None
    return measured.energy_j / measured.iteration_time_s


def _row(job: JobOverview, now: datetime) -> tuple[Span, ...]:
    is_over = job.state in OVER
    is_short = not is_over and job.num_present < job.num_ranks
    saving, slower = job.saving_percent, job.slowdown_percent
    return (
        Span(drawable(job.job_id), Tone.MUTED if is_over else Tone.TITLE),
        Span(drawable(job.state), STATE_TONES.get(job.state, Tone.PLAIN)),
        Span(f"{job.num_present}/{job.num_ranks}", Tone.WARN if is_short else Tone.PLAIN),
        Span(_version(job)),
        *_measured_cells(job.measured),
        Span(percent_text(None if slower is None else slower.mean, "+.2f")),
        Span(percent_text(None if saving is None else saving.mean), _saving_tone(saving)),
        Span(interval_text(saving, ".2f")),
        Span(UNKNOWN if job.saved_j is None else energy_text(job.saved_j.mean)),
        *predicted_cells(job.predicted),
        Span(f"{age_text(job.heard_at, now)} ago", Tone.MUTED),
    )


def _measured_cells(measured: MeasuredIteration | None) -> tuple[Span, Span, Span]:
    """At what clocks, time and energy."""
    if measured is None:
        return Span(UNKNOWN), Span(UNKNOWN), Span(UNKNOWN)
    return (
        Span(drawable(measured.clocks)),
        Span(time_text(measured.iteration_time_s)),
        Span(joules_text(measured.energy_j)),
    )


def predicted_cells(predicted: PredictedIteration | None) -> tuple[Span, Span, Span]:
    """Time, saving and gap."""
    if predicted is None:
        return Span(UNKNOWN), Span(UNKNOWN), Span(UNKNOWN)
    return (
        Span(time_text(predicted.iteration_time_s)),
        Span(percent_text(predicted.saving_percent)),
        Span(percent_text(predicted.gap_percent)),
    )


def _saving_tone(saving: Estimate | None) -> Tone:
    if saving is None or saving.low is None or saving.high is None:
        return Tone.PLAIN
    if saving.low > 0:
        return Tone.GOOD
    return Tone.BAD if saving.high < 0 else Tone.PLAIN


def _version(job: JobOverview) -> str:
    """The active one, and the newest where that still waits for its ranks."""
    if job.newest_version is None:
        return UNKNOWN
    if job.active_version == job.newest_version:
        return str(job.active_version)
    waiting = f"{job.newest_version} waits"
    return waiting if job.active_version is None else f"{job.active_version}, {waiting}"


def _nobody(width: int) -> list[Line]:
    lines = (
        "No jobs yet. A job appears when its ranks register:",
        "  make demo                    one on emulated GPUs, in a clone of Flyball",
        "  flyball.attach(engine, ...)  yours, in its training script",
    )
    return [clipped((Span(line, Tone.MUTED),), width, "") for line in lines]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

"""One job as a page: measured against baseline and prediction, stages, stragglers, versions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from flyball_client.cli.report_text import energy_text
from flyball_client.cli.top.columns import Column, Table, laid_out, narrowest_width
from flyball_client.cli.top.figure_text import (
    age_text,
    estimate_text,
    joules_text,
    moment_text,
    percent_text,
    target_text,
    time_text,
)
from flyball_client.cli.top.jobs_page import OVER, STATE_TONES, predicted_cells
from flyball_client.cli.top.lines import Line, Page, Span, Tone, drawable, flowed, wrapped
from flyball_client.cli.top.marks import Paper
from flyball_client.cli.top.reading import JobReading
from flyball_client.cli.top.stage_lines import stage_lines
from flyball_client.cli.top.step_lines import step_lines
from flyball_wire.closed_loop import Estimate, StragglerView
from flyball_wire.read_models import JobOverview, MeasuredIteration, PlanSummary

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
    Column(heading="energy, J", is_text=True),
    Column(heading="", is_text=True, rank=1),
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


def job_page(reading: JobReading, origin: str, paper: Paper) -> Page:
    """The page; `origin` says when it was read."""
    overview, width = reading.overview, paper.width
    body = [
        *_figures(overview, paper),
        *step_lines(overview, reading.steps, paper),
        *stage_lines(reading, paper),
        *_stragglers(reading.stragglers, paper),
        *_versions(reading, paper),
    ]
    title = [*_title(reading, paper.now), Span(drawable(origin), Tone.MUTED)]
    first = flowed(title, width)
    return Page(head=(*first, *_problem(overview.problem, width)), body=tuple(body))


def _title(reading: JobReading, now: datetime) -> list[Span]:
    job = reading.overview
    gpus = "emulated GPUs" if job.emulated else "GPUs"
    is_short = job.state not in OVER and job.num_present < job.num_ranks
    registered = f", {job.num_registered} registered" if job.num_registered < job.num_ranks else ""
    parts = [
        Span(drawable(job.job_id), Tone.TITLE),
        Span(drawable(job.state), STATE_TONES.get(job.state, Tone.PLAIN)),
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
        parts.insert(2, Span(_counted_stragglers(len(reading.stragglers)), Tone.WARN))
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


def _counted_stragglers(number: int) -> str:
    return "1 straggler" if number == 1 else f"{number} stragglers"


def _problem(problem: str | None, width: int) -> list[Line]:
    if problem is None:
        return []
    return wrapped(f"problem: {drawable(problem)}", width, Tone.BAD, most_lines=3)


# ------------------------------------------------------------------ measured and predicted


def _figures(job: JobOverview, paper: Paper) -> list[Line]:
    tables = [_figures_table(job, is_short=is_short) for is_short in (False, True)]
    table = next((each for each in tables if narrowest_width(each) <= paper.width), tables[-1])
    if not table.rows:
        return [(), (Span("no step measured by all ranks yet, and no plan", Tone.MUTED),)]
    headings, rows = laid_out(table, paper.width, paper.marks)
    lines = [(), *headings, *rows]
    if job.saved_j is not None:
        saved = energy_text(job.saved_j.mean)
        if job.saved_j.low is not None and job.saved_j.high is not None:
            saved += f" [{energy_text(job.saved_j.low)}, {energy_text(job.saved_j.high)}]"
        lines.append((Span(f"saved so far, {how(job)}: {saved}", _tone_of(job.saved_j)),))
    if not job.is_caught_up:
        note = "the planner has not read all steps yet: measured means are not final"
        lines.append((Span(note, Tone.MUTED),))
    return lines


def _figures_table(job: JobOverview, *, is_short: bool) -> Table:
    """Rows of what was measured, then of what is predicted; short: without intervals."""
    rows = [*_measured_rows(job, is_short=is_short), *_predicted_rows(job)]
    return Table(columns=_FIGURES, rows=tuple(rows))


def _measured_rows(job: JobOverview, *, is_short: bool) -> list[tuple[Span, ...]]:
    origin = ("emulated" if job.emulated else "measured") if is_short else how(job)
    rows: list[tuple[Span, ...]] = []
    if (newest := job.measured) is not None:
        steps = f"steps {newest.first_step} to {newest.last_step}"
        if newest.num_steps != newest.last_step - newest.first_step + 1:
            steps = f"{newest.num_steps} of {steps}"
        rows.append(
            _texts(
                _ran_at(newest),
                origin,
                time_text(newest.iteration_time_s),
                joules_text(newest.energy_j),
                steps,
            )
        )
    if job.measured_baseline_time_s is not None:
        rows.append(
            _texts(
                "highest clocks",
                origin,
                _estimate(job.measured_baseline_time_s, ".4f", is_short=is_short),
                _estimate(job.measured_baseline_energy_j, ".1f", is_short=is_short),
                f"{job.measured_baseline_time_s.num_steps} steps",
            )
        )
    if job.slowdown_percent is not None or job.saving_percent is not None:
        slower = _estimate(job.slowdown_percent, "+.2f", " %", is_short=is_short)
        saving = _estimate(job.saving_percent, ".2f", " %", is_short=is_short)
        tone = Tone.PLAIN if job.saving_percent is None else _tone_of(job.saving_percent)
        row = _texts("difference", origin, slower, f"saves {saving}", "")
        rows.append((*row[:3], Span(row[3].text, tone), row[4]))
    return rows


def _predicted_rows(job: JobOverview) -> list[tuple[Span, ...]]:
    predicted = job.predicted
    if predicted is None:
        return []
    version = job.newest_version if job.active_version is None else job.active_version
    gap = "" if predicted.gap_percent is None else f"gap {percent_text(predicted.gap_percent)} %"
    slower = 100 * (predicted.iteration_time_s / predicted.baseline_iteration_time_s - 1)
    plan = (time_text(predicted.iteration_time_s), joules_text(predicted.energy_j))
    baseline = (
        time_text(predicted.baseline_iteration_time_s),
        joules_text(predicted.baseline_energy_j),
    )
    saving = f"saves {percent_text(predicted.saving_percent)} %"
    return [
        _texts(f"plan, version {version}", "predicted", *plan, gap),
        _texts("highest clocks", "predicted", *baseline, ""),
        _texts("difference", "predicted", f"{percent_text(slower, '+.2f')} %", saving, ""),
    ]


def _ran_at(measured: MeasuredIteration) -> str:
    if measured.clocks == "plan" and measured.version is not None:
        return f"plan, version {measured.version}"
    return _RAN_AT.get(measured.clocks, drawable(measured.clocks))


def how(job: JobOverview) -> str:
    """Return what figures of its ranks are called."""
    return "measured (emulated)" if job.emulated else "measured"


def _estimate(estimate: Estimate | None, form: str, unit: str = "", *, is_short: bool) -> str:
    if estimate is not None and is_short:
        return f"{estimate.mean:{form}}{unit}"
    return estimate_text(estimate, form, unit)


def _tone_of(saved: Estimate) -> Tone:
    """Good or bad where the interval says which."""
    if saved.low is None or saved.high is None or saved.low <= 0 <= saved.high:
        return Tone.PLAIN
    return Tone.GOOD if saved.low > 0 else Tone.BAD


def _texts(*texts: str) -> tuple[Span, ...]:
    return tuple(Span(text) for text in texts)


# ------------------------------------------------------------------ stragglers and versions


def _stragglers(stragglers: Sequence[StragglerView], paper: Paper) -> list[Line]:
    if not stragglers:
        return []
    lines: list[Line] = [(), (Span("stragglers", Tone.HEADING),)]
    for straggler in stragglers:
        reason = f" ({drawable(straggler.reason)})" if straggler.source == "detected" else ""
        parts = [
            Span(f"rank {straggler.rank}", Tone.WARN),
            Span(f"{straggler.slowdown:.3g} times as long{reason}"),
            Span(f"{drawable(straggler.source)}{_when(straggler, paper.now)}"),
            Span("in the plan" if straggler.is_in_force else "not in the plan yet"),
        ]
        lines += flowed(parts, paper.width)
    return lines


def _when(straggler: StragglerView, now: datetime) -> str:
    since = "" if straggler.from_time is None else f" from {moment_text(straggler.from_time, now)}"
    until = "" if straggler.until_time is None else f" to {moment_text(straggler.until_time, now)}"
    return since + until


def _versions(reading: JobReading, paper: Paper) -> list[Line]:
    shown = reading.history[-_SHOWN_VERSIONS:]
    if not shown:
        return []
    active = reading.overview.active_version
    rows = tuple(_version_row(version, active, paper) for version in reversed(shown))
    headings, lines = laid_out(Table(columns=_VERSIONS, rows=rows), paper.width, paper.marks)
    older = len(reading.history) - len(shown)
    note = f"newest versions of the plan, {paper.marks.star} the active one"
    if older:
        note += f"; {older} older"
    return [(), (Span(note, Tone.MUTED),), *headings, *lines]


def _version_row(version: PlanSummary, active: int | None, paper: Paper) -> tuple[Span, ...]:
    is_active = version.version == active
    number = f"{paper.marks.star if is_active else ''}{version.version}"
    return (
        Span(number, Tone.GOOD if is_active else Tone.PLAIN),
        *_texts(
            drawable(version.kind),
            drawable(version.policy),
            target_text(version.target),
            "-" if version.first_step is None else str(version.first_step),
            moment_text(version.created_at, paper.now),
        ),
        *predicted_cells(version.predicted),
    )

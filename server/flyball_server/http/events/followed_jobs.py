"""How a job that is followed is looked at: its events as they are sent, rendered once for all."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from flyball_server.http.events.event_sources import (
    COMPARISON,
    HISTORY,
    OVERVIEW,
    PROFILING,
    STRAGGLERS,
    JobNews,
)
from flyball_server.http.events.event_stream import event
from flyball_server.http.mapping.closed_loop import profiling_view, straggler_view
from flyball_server.http.mapping.plan_views import rendered_history
from flyball_server.http.mapping.reports import comparison_view
from flyball_server.http.mapping.views import job_overview, stages_of_step
from flyball_server.http.rendering import rendered
from flyball_server.jobs.control import Comparison
from flyball_server.jobs.measurements.step_reading import PairedSteps
from flyball_server.jobs.records import ActivationRecord, JobRecord
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.savings.comparisons import ComparisonProgress, progress_of
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.contract import JobReader
from flyball_server.jobs.stragglers.reports import list_stragglers
from flyball_server.views.history import HistoryMemory, plan_summaries
from flyball_server.views.profiling import get_profiling
from flyball_server.views.shared_reading import SharedReading
from flyball_server.views.stage_steps import StagesSummary
from flyball_server.views.step_window import StepWindow
from flyball_wire.closed_loop import ComparisonView, ProfilingView, StragglerView
from flyball_wire.read_models import JobOverview, StagesOfStep


class JobLook:
    """Looks at what is quickly seen of a job; one call at a time.

    Raises:
        UnknownJobError: there is none of this name.
        StoreError: it cannot be read.
    """

    def __init__(self, services: JobServices, reading: SharedReading, job_id: str) -> None:
        self._services = services
        self._reading = reading
        self._job_id = job_id
        self._window = StepWindow(_rendered_step)
        self._is_profiled = False

    def __call__(self) -> JobNews:
        """The job as it stands."""
        overview = job_overview(self._reading.figures_of(self._job_id))
        stragglers = list_stragglers(self._services, self._job_id)
        views = tuple(straggler_view(summary) for summary in stragglers)
        events = {
            OVERVIEW: event(OVERVIEW, rendered(JobOverview, overview)),
            STRAGGLERS: event(STRAGGLERS, rendered(tuple[StragglerView, ...], views)),
        }
        profiling = get_profiling(self._services, self._job_id)
        # That it is off is told only of a job whose profiling was followed.
        self._is_profiled = self._is_profiled or profiling.state != "off"
        if self._is_profiled:
            view = replace(profiling_view(profiling), points=())
            events[PROFILING] = event(PROFILING, rendered(ProfilingView, view))
        return JobNews(events, self._window.look(self._services, self._job_id))


class HistoryLook:
    """Looks at the versions of a job's plan; they are rendered again when there is a change."""

    def __init__(self, services: JobServices, memory: HistoryMemory, job_id: str) -> None:
        self._services = services
        self._memory = memory
        self._job_id = job_id
        self._seen: tuple[datetime, tuple[ActivationRecord, ...]] | None = None
        self._event = b""

    def __call__(self) -> bytes:
        """The history as an event."""
        with self._services.store.reading() as reader:
            job = require_job(reader, self._job_id)
            seen = (job.created_at, reader.list_activations(self._job_id))
        if seen != self._seen:
            found = plan_summaries(self._services, self._job_id, self._memory)
            self._event = event(HISTORY, rendered_history(found))
            self._seen = seen
        return self._event


class ComparisonLook:
    """Looks at the newest comparison of a job; while it runs, each of its steps is read once."""

    def __init__(self, services: JobServices, job_id: str) -> None:
        self._services = services
        self._job_id = job_id
        self._seen: tuple[datetime, Comparison] | None = None
        self._counted: PairedSteps | None = None
        self._event = b""

    def __call__(self) -> bytes:
        """The comparison as an event."""
        with self._services.store.reading() as reader:
            job = require_job(reader, self._job_id)
            comparison = reader.find_control(self._job_id).comparison
            if comparison is None:
                return _comparison_event(ComparisonProgress(state="none"))
            seen = (job.created_at, comparison)
            if seen != self._seen:
                self._counted = None
            elif comparison.is_done:
                return self._event
            if self._counted is None:
                self._counted = _paired_steps(reader, job, comparison)
            num_measured = 0 if self._counted is None else self._counted.read(reader)
        self._event = _comparison_event(progress_of(comparison, num_measured))
        self._seen = seen
        return self._event


def _paired_steps(reader: JobReader, job: JobRecord, comparison: Comparison) -> PairedSteps | None:
    """What counts them; None: no step is named yet from which the comparison's version holds."""
    activations = reader.list_activations(job.job_id)
    named = {each.version for each in activations if each.first_step is not None}
    if comparison.version is None or comparison.version not in named:
        return None
    record = reader.find_plan(job.job_id, comparison.version)
    return None if record is None else PairedSteps(record, job.in_force.num_ranks)


def _rendered_step(summary: StagesSummary) -> bytes:
    return rendered(StagesOfStep, stages_of_step(summary))


def _comparison_event(progress: ComparisonProgress) -> bytes:
    return event(COMPARISON, rendered(ComparisonView, comparison_view(progress)))

"""What `flyball top` can show, all jobs or one: how it is read, drawn and printed as JSON."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from flyball_client.api.planner_client import PlannerClient
from flyball_client.cli.top.figure_text import age_text, moment_text
from flyball_client.cli.top.job_page import job_page
from flyball_client.cli.top.jobs_page import jobs_page
from flyball_client.cli.top.lines import Page, Tone, drawable, wrapped
from flyball_client.cli.top.marks import Paper
from flyball_client.cli.top.polling import Seen
from flyball_client.cli.top.reading import JobReader, JobReading
from flyball_wire.codec import encode
from flyball_wire.read_models import Overview

T = TypeVar("T")


class View(Protocol[T]):
    """One thing to look at."""

    def read(self) -> T:
        """Return what there is now; raises PlannerError."""
        ...

    def page(self, reading: T, address: str, read_at: str, paper: Paper) -> Page:
        """As a page; `address` is the planner's, `read_at` a time of day."""
        ...

    def document(self, reading: T) -> Any:  # noqa: ANN401 - JSON has no narrower type
        """As the planner sent it, for JSON."""
        ...


class AllJobs:
    """All jobs that are open to the caller."""

    def __init__(self, planner: PlannerClient) -> None:
        self._planner = planner

    def read(self) -> Overview:
        """Return what there is now; raises PlannerError."""
        return self._planner.get_overview()

    def page(self, reading: Overview, address: str, read_at: str, paper: Paper) -> Page:
        """A row a job."""
        return jobs_page(reading, f"{address}   read {read_at}", paper)

    def document(self, reading: Overview) -> Any:  # noqa: ANN401 - JSON has no narrower type
        """An Overview."""
        return encode(reading)


class OneJob:
    """One job, by its stages."""

    def __init__(self, planner: PlannerClient, job_id: str) -> None:
        self._reader = JobReader(planner, job_id)

    def read(self) -> JobReading:
        """Return what there is now; raises PlannerError."""
        return self._reader.read()

    def page(self, reading: JobReading, address: str, read_at: str, paper: Paper) -> Page:
        """Its figures, newest steps, stages, stragglers and versions."""
        return job_page(reading, f"read {read_at}", paper)

    def document(self, reading: JobReading) -> Any:  # noqa: ANN401 - JSON has no narrower type
        """Under `overview`, `steps`, `history` and `stragglers` what the planner answered."""
        return encode(reading)


def page_of(view: View[T], seen: Seen[T], address: str, paper: Paper) -> Page:
    """The page, and above it why there is nothing newer, where there is nothing."""
    read_at = moment_text(seen.read_at, paper.now)
    page = view.page(seen.reading, address, read_at, paper)
    if seen.trouble is None:
        return page
    trouble = seen.trouble
    since = f"since {moment_text(trouble.since, paper.now)} ({age_text(trouble.since, paper.now)})"
    what = f"refused {since}" if trouble.is_refused else f"planner away {since}"
    text = f"{what}; all figures are of {read_at}. {trouble.text}"
    banner = wrapped(drawable(text), paper.width, Tone.ALARM, most_lines=3)
    return Page(head=(*banner, *page.head), body=page.body)

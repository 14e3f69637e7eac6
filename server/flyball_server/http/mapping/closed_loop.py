"""Stragglers and online profiling as they cross the wire; the rest of `mapping`."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime

from flyball_server.jobs.control import ProfilingResult
from flyball_server.jobs.stragglers.reports import StragglerSummary
from flyball_server.views.profiling import ProfilingSummary
from flyball_wire.closed_loop import ProfilingView, StragglerView


def straggler_view(summary: StragglerSummary) -> StragglerView:
    """A straggler."""
    return StragglerView(
        rank=summary.rank,
        source=summary.source,
        reason=summary.reason,
        slowdown=summary.slowdown,
        from_time=_text(summary.from_unix_s),
        until_time=_text(summary.until_unix_s),
        is_in_force=summary.is_in_force,
    )


def profiling_view(summary: ProfilingSummary) -> ProfilingView:
    """How far online profiling is."""
    result = summary.result or ProfilingResult(state="probing")
    known = {
        field.name: getattr(result, field.name) for field in fields(result) if field.name != "state"
    }
    return ProfilingView(
        job_id=summary.job_id,
        state=summary.state,
        slowdown_limit=summary.spec.profiling_slowdown,
        emulated=summary.spec.emulated,
        **known,
    )


def _text(unix_s: float | None) -> str | None:
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC).isoformat()

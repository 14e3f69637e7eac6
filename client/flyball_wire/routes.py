"""Every endpoint of the planner, once: path templates that both sides use.

The planner declares its routes with the templates; the client fills them with `fill`.
"""

from __future__ import annotations

from urllib.parse import quote

HEALTH = "/healthz"
READY = "/readyz"
METRICS = "/metrics"
OVERVIEW = "/api/v1/overview"
EVENTS = "/api/v1/events"
TOKENS = "/api/v1/tokens"
TOKEN = "/api/v1/tokens/{token_id}"  # noqa: S105 - a path
JOBS = "/api/v1/jobs"
JOB = "/api/v1/jobs/{job_id}"
PROFILE = "/api/v1/jobs/{job_id}/profile"
TARGET = "/api/v1/jobs/{job_id}/target"
RANK = "/api/v1/jobs/{job_id}/ranks/{rank}"
RANK_PLAN = "/api/v1/jobs/{job_id}/ranks/{rank}/plan"
RANK_ACKNOWLEDGEMENT = "/api/v1/jobs/{job_id}/ranks/{rank}/acknowledgement"
RANK_MEASUREMENTS = "/api/v1/jobs/{job_id}/ranks/{rank}/measurements"
RANK_DEPARTURE = "/api/v1/jobs/{job_id}/ranks/{rank}/departure"
PLANS = "/api/v1/jobs/{job_id}/plans"
PLAN = "/api/v1/jobs/{job_id}/plans/{version}"
FIRST_STEP = "/api/v1/jobs/{job_id}/plans/{version}/first-step"
POWER = "/api/v1/jobs/{job_id}/power"
FRONTIER = "/api/v1/jobs/{job_id}/frontier"
STRAGGLERS = "/api/v1/jobs/{job_id}/stragglers"
STRAGGLER = "/api/v1/jobs/{job_id}/stragglers/{rank}"
TIMETABLE = "/api/v1/jobs/{job_id}/timetable"
PROFILING = "/api/v1/jobs/{job_id}/profiling"
COMPARISON = "/api/v1/jobs/{job_id}/comparison"
REPORT = "/api/v1/jobs/{job_id}/report"
RECORDED_RUNS = "/api/v1/jobs/{job_id}/recorded-runs"
STEPS = "/api/v1/jobs/{job_id}/steps"
STAGES_OF_STEPS = "/api/v1/jobs/{job_id}/steps/stages"
JOB_OVERVIEW = "/api/v1/jobs/{job_id}/overview"
JOB_EVENTS = "/api/v1/jobs/{job_id}/events"
HISTORY = "/api/v1/jobs/{job_id}/history"
TIMELINE = "/api/v1/jobs/{job_id}/timeline"


def fill(template: str, **parts: str | int) -> str:
    """A path with its parts put in, each quoted: `fill(JOB, job_id="a/b")`."""
    return template.format(**{name: quote(str(part), safe="") for name, part in parts.items()})

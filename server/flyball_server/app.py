"""The planner as an ASGI app; resources are opened at startup."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from anyio import CapacityLimiter
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.routing import BaseRoute

from flyball_profiles.gpu_windows import load_gpu_window
from flyball_server.http.dependencies import PlannerState, RankCalls
from flyball_server.http.events.live_events import LiveEvents
from flyball_server.http.middleware.body_limit import BodyLimit, HeaderCheck
from flyball_server.http.middleware.call_log import CallLog, CallMetrics
from flyball_server.http.middleware.host_check import AllowedHosts
from flyball_server.http.middleware.token_access import OPEN_PATHS, OPENAPI, AccessCheck
from flyball_server.http.overviews import Overviews
from flyball_server.http.problem_handlers import ResponseHeaders, add_problem_handlers
from flyball_server.http.readiness import Readiness, SolvingCheck, WritingCheck
from flyball_server.http.routes import (
    conditions,
    dashboard,
    docs_page,
    events,
    health,
    jobs,
    measurements,
    plans,
    profiles,
    ranks,
    tokens,
)
from flyball_server.http.routes.dashboard import dashboard_files
from flyball_server.http.timeline_answers import TimelineAnswers
from flyball_server.http.zeus import routes as zeus_routes
from flyball_server.jobs.auth.access import TokenGate
from flyball_server.jobs.lifecycle.heartbeats import Heartbeats
from flyball_server.jobs.reconcile import all_reconcilers
from flyball_server.jobs.reconcile.loop import ReconcileLoop, Reconciler
from flyball_server.jobs.services import JobServices, Planner
from flyball_server.jobs.store.contract import JobStore
from flyball_server.jobs.store.databases import make_job_store
from flyball_server.jobs.waiters import JobWaiters
from flyball_server.planning.planner import make_plan_only
from flyball_server.prometheus.host_metrics import HostMetrics
from flyball_server.prometheus.job_families import JobsCollector
from flyball_server.prometheus.process_metrics import MeasuredStore, ProcessMetrics
from flyball_server.settings import DASK_PREFIX, Settings, load_settings
from flyball_server.solving.in_thread import PlannerThreads
from flyball_server.solving.on_dask import DaskWorkers
from flyball_server.solving.processes import PlanningProcesses
from flyball_server.views.frontier import FrontierMemory
from flyball_server.views.history import HISTORIES_AT_ONCE, HistoryMemory
from flyball_server.views.job_figures import SharedReading
from flyball_server.views.job_reading import JobReading
from flyball_wire import routes

if TYPE_CHECKING:
    from flyball_server.tracing import Traces

# Threads that wait for frontiers; Dask limits the concurrent solves itself.
_DASK_FRONTIERS = 16


def make_executor(num_processes: int, address: str | None) -> Executor:
    """Return the executor of solves, not started yet.

    Args:
        num_processes: number of processes; 0: threads of this process.
        address: `dask://HOST:PORT` of a Dask scheduler; None: processes of the planner.
    """
    if address is not None:
        return DaskWorkers(f"tcp://{address.removeprefix(DASK_PREFIX)}")
    return PlanningProcesses(num_processes) if num_processes else PlannerThreads()


def num_frontiers_at_once(num_processes: int, address: str | None) -> int:
    """Return the number of concurrent frontiers, one less than would delay plans."""
    return _DASK_FRONTIERS if address is not None else max(1, num_processes - 1)


_ROUTERS = (
    docs_page.ROUTER,
    dashboard.ROUTER,
    health.ROUTER,
    jobs.OVERVIEW_ROUTER,
    events.ROUTER,
    jobs.ROUTER,
    profiles.ROUTER,
    ranks.ROUTER,
    plans.ROUTER,
    conditions.STRAGGLERS_ROUTER,
    conditions.TIMETABLES_ROUTER,
    measurements.STEPS_ROUTER,
    measurements.REPORTS_ROUTER,
    tokens.ROUTER,
    health.METRICS_ROUTER,
)


def api_routes() -> list[BaseRoute]:
    """Return the routes of all routers.

    `include_router` would build each route again, which takes half a second of each start.
    """
    return [route for router in _ROUTERS for route in router.routes]


_DESCRIPTION = """\
Plans SM clocks for pipeline-parallel training jobs: a stage profile in, a clock for every forward
and backward of every rank out. Every call can be retried safely. Every error is a `Problem`: one
line, and the invalid fields.
"""


def create_app(
    settings: Settings | None = None,
    store: JobStore | None = None,
    *,
    planner: Planner = make_plan_only,
    reconcilers: Sequence[Reconciler] | None = None,
    traces: Traces | None = None,
) -> FastAPI:
    """Create the planner's app.

    Args:
        settings: None: read from the environment.
        store: job store, opened at startup and closed at shutdown; None: the settings'
            database.
        planner: function that makes plans.
        reconcilers: reconcilers of the loop; None: all.
        traces: traces of calls and solves, stopped at shutdown; None: as the settings say.

    Raises:
        SettingsError: an environment variable is invalid.
    """
    chosen = load_settings() if settings is None else settings
    if traces is None and chosen.traces:
        traces = _traces()
    state = _planner_state(
        chosen,
        make_job_store(chosen.database, for_planner=True) if store is None else store,
        planner,
        all_reconcilers() if reconcilers is None else reconcilers,
        traces,
    )
    state.services.store.listen(partial(_notify, state.waiters, state.reconcile_loop))
    app = _bare_app(traces)
    app.state.planner = state
    app.router.routes.extend(api_routes())
    if chosen.zeus_clients:
        app.router.routes.extend(zeus_routes.ROUTER.routes)
    add_problem_handlers(app)
    _add_middleware(app, state, traces)
    return app


def _traces() -> Traces:
    # Imported here, since it needs an extra.
    from flyball_server.tracing import Traces  # noqa: PLC0415

    return Traces.over_otlp()


def release_long_polls(app: FastAPI) -> None:
    """Answer all long polls and stop all solves, for the planner's shutdown.

    Stopped solves are repeated after the next start.
    """
    state: PlannerState = app.state.planner
    state.waiters.close()
    state.services.executor.shutdown(wait=False)


@asynccontextmanager
async def _lifespan(app: FastAPI, *, traces: Traces | None) -> AsyncGenerator[None]:
    state: PlannerState = app.state.planner
    await run_in_threadpool(state.services.store.open)
    state.waiters.open()
    if isinstance(state.services.executor, PlanningProcesses | PlannerThreads):
        state.services.executor.start()
    await run_in_threadpool(state.reconcile_loop.start, state.services)
    state.heartbeats.start(state.services)
    try:
        yield
    finally:
        release_long_polls(app)
        await state.live_events.stop()
        await run_in_threadpool(state.reconcile_loop.stop)
        await run_in_threadpool(state.heartbeats.stop)
        await run_in_threadpool(state.services.store.close)
        if traces is not None:
            await run_in_threadpool(traces.stop)


def _notify(waiters: JobWaiters, reconcile_loop: ReconcileLoop, job_id: str | None) -> None:
    """Notify of a change of a job (None: of any) in the store, by this planner or another."""
    if job_id is None:
        waiters.notify_all()
        reconcile_loop.enqueue_all()
    else:
        waiters.notify(job_id)
        reconcile_loop.enqueue_reconcile(job_id)


def _planner_state(
    settings: Settings,
    store: JobStore,
    planner: Planner,
    reconcilers: Sequence[Reconciler],
    traces: Traces | None,
) -> PlannerState:
    waiters, heartbeats, reconcile_loop = JobWaiters(), Heartbeats(), ReconcileLoop(reconcilers)
    metrics = ProcessMetrics(num_waiting=lambda: waiters.num_waiting)
    measured = MeasuredStore(store, metrics)
    services = replace(
        _services(settings, measured, metrics, traces),
        planner=planner,
        enqueue_reconcile=reconcile_loop.enqueue_reconcile,
        is_reconciled_after_posts=reconcile_loop.runs_after_posts,
        record_heartbeat=heartbeats.note,
    )
    # Not through the measured store: a scrape would count itself.
    reading = SharedReading(
        JobReading(replace(services, store=store), max_labelled=settings.metrics_jobs)
    )
    metrics.registry.register(JobsCollector(reading))
    certificate = None if settings.tls_certificate is None else Path(settings.tls_certificate)
    metrics.registry.register(HostMetrics(store, certificate))
    histories, overviews = HistoryMemory(), Overviews(reading)
    return PlannerState(
        settings=settings,
        services=services,
        waiters=waiters,
        heartbeats=heartbeats,
        reconcile_loop=reconcile_loop,
        frontiers=FrontierMemory(),
        histories=histories,
        timelines=TimelineAnswers(),
        frontier_threads=_frontier_threads(settings),
        history_threads=CapacityLimiter(HISTORIES_AT_ONCE),
        gate=TokenGate(measured, operator_token=settings.token),
        rank_calls=RankCalls(services),
        metrics=metrics,
        readiness=_readiness(services, measured),
        reading=reading,
        overviews=overviews,
        live_events=LiveEvents(
            services, reading=reading, overviews=overviews, histories=histories, waiters=waiters
        ),
    )


def _frontier_threads(settings: Settings) -> CapacityLimiter:
    return CapacityLimiter(
        num_frontiers_at_once(settings.planning_processes, settings.planning_executor)
    )


def _services(
    settings: Settings, store: JobStore, metrics: ProcessMetrics, traces: Traces | None
) -> JobServices:
    services = JobServices(
        store=store,
        notify_pollers=store.signal,
        life=settings.life,
        max_jobs=settings.max_jobs,
        factors=settings.factors,
        executor=make_executor(settings.planning_processes, settings.planning_executor),
        planning_timeout_s=settings.planning_timeout_s,
        gpu_window=cache(
            partial(
                load_gpu_window, folder=Path(settings.gpu_folder) if settings.gpu_folder else None
            )
        ),
        observe_solve=metrics.observe_solve,
    )
    return services if traces is None else replace(services, trace_solve=traces.solve)


def _bare_app(traces: Traces | None) -> FastAPI:
    return FastAPI(
        title="Flyball planner",
        version="v1",
        description=_DESCRIPTION,
        docs_url=None,  # FastAPI's own page loads scripts from a CDN
        openapi_url=OPENAPI,
        redoc_url=None,
        redirect_slashes=False,
        swagger_ui_oauth2_redirect_url=None,
        lifespan=partial(_lifespan, traces=traces),
    )


def _add_middleware(app: FastAPI, state: PlannerState, traces: Traces | None) -> None:
    """Add the middleware; the one added last runs first."""
    settings = state.settings
    app.add_middleware(
        BodyLimit,
        max_body_bytes=settings.max_body_bytes,
        body_timeout_s=settings.body_timeout_s,
    )
    # Runs before BodyLimit: the body of an unauthorized call is not read.
    app.add_middleware(
        AccessCheck,
        gate=state.gate,
        hosts=AllowedHosts((settings.host, *settings.allowed_hosts)),
        open_paths=OPEN_PATHS.union(dashboard_files()),
        tokenless_paths=frozenset({routes.METRICS} if settings.metrics_open else ()),
    )
    app.add_middleware(HeaderCheck, max_header_bytes=settings.max_header_bytes)
    app.add_middleware(ResponseHeaders)
    app.add_middleware(CallMetrics, metrics=state.metrics)
    if traces is not None:
        app.add_middleware(traces.middleware)
    app.add_middleware(CallLog)


def _readiness(services: JobServices, store: MeasuredStore) -> Readiness:
    return Readiness(
        {
            "the job store": partial(_check_store, services.store),
            "writing to the job store": WritingCheck(store),
            "the solver": SolvingCheck(services.executor),
        }
    )


def _check_store(store: JobStore) -> None:
    with store.reading() as reader:
        reader.find_job("/readyz")  # no job has this name; the query uses the primary key

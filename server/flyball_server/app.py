"""The planner as an ASGI app; nothing is opened before it starts up."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from flyball_server.jobs.frontier import FrontierMemory
from flyball_server.jobs.reactions import all_reactions
from flyball_server.jobs.reactions._base import Reaction
from flyball_server.jobs.reactor import Reactor
from flyball_server.jobs.services import JobServices, Planner
from flyball_server.jobs.store import JobStore
from flyball_server.jobs.stores.sql_store import SqlJobStore
from flyball_server.jobs.waiters import JobWaiters
from flyball_server.planning.planner import make_plan
from flyball_server.rest.body_limit import BodyLimit
from flyball_server.rest.dependencies import PlannerState
from flyball_server.rest.problem_handlers import add_problem_handlers
from flyball_server.rest.routers import api_router
from flyball_server.rest.token import OPENAPI, TokenCheck
from flyball_server.settings import Settings, load_settings

_DESCRIPTION = """\
Takes stage profiles of pipeline-parallel training jobs and serves frequency plans: an SM clock
for every forward and backward of every rank. Retrying any call is safe. Every error is a
`Problem`: one line, and the fields that are wrong.
"""


def create_app(
    settings: Settings | None = None,
    store: JobStore | None = None,
    *,
    planner: Planner = make_plan,
    reactions: Sequence[Reaction] | None = None,
) -> FastAPI:
    """The planner.

    Args:
        settings: None: from the environment.
        store: where jobs are kept, opened at startup and closed at shutdown; None: the
            settings' database.
        planner: makes the plans.
        reactions: what it does by itself; None: everything.

    Raises:
        SettingsError: an environment variable cannot be used.
    """
    chosen = load_settings() if settings is None else settings
    kept = SqlJobStore(chosen.database_file) if store is None else store
    waiters = JobWaiters()
    reactor = Reactor(all_reactions() if reactions is None else reactions)
    app = FastAPI(
        title="Flyball planner",
        version="v1",
        description=_DESCRIPTION,
        docs_url=None,  # FastAPI's own page loads from a CDN; api_router has ours
        openapi_url=OPENAPI,
        redoc_url=None,
        redirect_slashes=False,
        swagger_ui_oauth2_redirect_url=None,
        generate_unique_id_function=_operation_id,
        lifespan=_lifespan,
    )
    app.state.planner = PlannerState(
        settings=chosen,
        services=JobServices(store=kept, wake=waiters.wake, planner=planner, notice=reactor.notice),
        waiters=waiters,
        reactor=reactor,
        frontiers=FrontierMemory(),
    )
    app.include_router(api_router())
    add_problem_handlers(app)
    app.add_middleware(BodyLimit, max_body_bytes=chosen.max_body_bytes)
    if chosen.token is not None:
        # Added last, so it comes first: no byte of a stranger's body is read.
        app.add_middleware(TokenCheck, token=chosen.token)
    return app


def release_long_polls(app: FastAPI) -> None:
    """Answer all waiting long polls now, and let none wait any more: the planner shuts down."""
    state: PlannerState = app.state.planner
    state.waiters.close()


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    state: PlannerState = app.state.planner
    await run_in_threadpool(state.services.store.open)
    state.waiters.open()
    await run_in_threadpool(state.reactor.start, state.services)
    try:
        yield
    finally:
        release_long_polls(app)
        await run_in_threadpool(state.reactor.stop)
        await run_in_threadpool(state.services.store.close)


def _operation_id(route: APIRoute) -> str:
    return route.name

"""What a planner does once it is up."""

from __future__ import annotations

import asyncio
import gc

import pytest
import uvicorn
from fastapi import FastAPI

from flyball_server.serving.planner_server import _PlannerServer

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("is_up", [True, False])
def test_what_is_there_once_it_is_up_is_not_looked_through_for_garbage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_up: bool
) -> None:
    """Else a full collection comes with the first large plan."""

    async def startup(server: uvicorn.Server, sockets: object = None) -> None:
        del sockets
        server.started = is_up

    monkeypatch.setattr(uvicorn.Server, "startup", startup)
    app = FastAPI()
    server = _PlannerServer(uvicorn.Config(app, log_config=None), app, "http://127.0.0.1:7787")
    gc.unfreeze()
    try:
        asyncio.run(server.startup())
        assert (gc.get_freeze_count() > 0) == is_up
    finally:
        gc.unfreeze()
    assert ("listening" in capsys.readouterr().out) == is_up

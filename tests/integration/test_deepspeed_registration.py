"""What `attach` registers of a DeepSpeed pipeline, at a planner that is really there."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.planner.live import live_planner
from tests.planner.patience import wait_until
from tests.unit.client.recording_gpu import RecordingGpu

from flyball_wire import routes

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

import torch.distributed

from flyball_integrations.deepspeed.pipeline import attach, detach

JOB = routes.fill(routes.JOB, job_id="job")


@pytest.fixture
def make_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Makes what attach looks at of rank 0's engine: two stages of six ranks each."""
    from deepspeed.runtime.pipe.engine import PipelineEngine  # noqa: PLC0415 - skipped without it

    monkeypatch.delenv("FLYBALL_TOKEN", raising=False)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 12)
    instructions = dict.fromkeys(PipelineEngine._INSTRUCTION_MAP, print)
    # Second of two pipelines, third of its tensor-parallel group.
    grid = SimpleNamespace(get_data_parallel_rank=lambda: 1, get_slice_parallel_rank=lambda: 2)
    return lambda: SimpleNamespace(
        grid=grid,
        device=torch.device("cpu"),
        global_rank=0,
        stage_id=0,
        global_steps=0,
        num_stages=2,
        micro_batches=4,
        train_batch=lambda: None,
        _INSTRUCTION_MAP=instructions,
    )


@pytest.mark.parametrize(
    ("arguments", "effort"),
    [({}, "normal"), ({"effort": "low"}, "low"), ({"effort": "high"}, "high")],
)
def test_the_job_is_registered_as_attach_was_told(
    make_engine: Callable[[], Any], arguments: dict[str, Any], effort: str
) -> None:
    with live_planner() as planner:
        engine = make_engine()
        attach(
            engine,
            job_id="job",
            planner_url=str(planner.http.base_url),
            gpu=RecordingGpu(),
            blocking_power_w=[70, 84],
            policy="frontier",
            reconfigure="greedy",
            target="slowdown:0.1",
            **arguments,
        )
        try:
            wait_until(lambda: planner.http.get(JOB).status_code == 200)
            registered = planner.http.get(JOB).json()["registration"]
        finally:
            detach(engine)
    assert registered["effort"] == effort
    assert (registered["num_stages"], registered["num_microbatches"]) == (2, 4)
    assert registered["num_ranks"] == 12
    assert registered["blocking_power_w"] == [70, 84]
    assert (registered["policy"], registered["reconfigure"]) == ("frontier", "greedy")
    assert registered["target"] == "slowdown:0.1"


def test_a_job_without_a_profile_and_blocking_power_is_taken_where_it_is_profiled_online(
    make_engine: Callable[[], Any],
) -> None:
    with live_planner() as planner:
        engine = make_engine()
        attach(
            engine,
            job_id="job",
            planner_url=str(planner.http.base_url),
            gpu=RecordingGpu(),
            profiling="online",
            profiling_slowdown=0.05,
            adaptation="frontier",
        )
        try:
            wait_until(lambda: planner.http.get(JOB).status_code == 200)
            job = planner.http.get(JOB).json()
            profiling = planner.http.get(routes.fill(routes.PROFILING, job_id="job")).json()
        finally:
            detach(engine)
    registered = job["registration"]
    assert job["state"] == "awaiting-profile"
    assert (registered["profiling"], registered["profiling_slowdown"]) == ("online", 0.05)
    assert registered["adaptation"] == "frontier"
    assert (registered["blocking_power_w"], registered["gpu"]) == (None, None)
    assert (profiling["state"], profiling["slowdown_limit"]) == ("waiting", 0.05)


def test_a_rank_is_registered_where_the_frameworks_grid_has_it(
    make_engine: Callable[[], Any],
) -> None:
    with live_planner() as planner:
        engine = make_engine()
        attach(
            engine,
            job_id="job",
            planner_url=str(planner.http.base_url),
            gpu=RecordingGpu(),
            blocking_power_w=[70],
        )
        try:
            wait_until(lambda: bool(planner.http.get(JOB).json().get("ranks")))
            (rank,) = planner.http.get(JOB).json()["ranks"]
        finally:
            detach(engine)
    assert (rank["rank"], rank["stage"]) == (0, 0)
    assert (rank["dp_rank"], rank["tp_rank"], rank["cp_rank"]) == (1, 2, 0)

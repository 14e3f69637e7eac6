"""Jobs of two ranks for tests of the dashboard's pages."""

from __future__ import annotations

from tests.planner.live import LivePlanner

from flyball_wire import routes

RANKS = (0, 1)


def acknowledge(planner: LivePlanner, version: int, step: int = 0) -> None:
    """Both ranks of `job` have a version."""
    for rank in RANKS:
        planner.acknowledge(rank, version, step).raise_for_status()


def put_running_job(planner: LivePlanner) -> None:
    """`job` runs version 1 from step 2."""
    planner.put_planned_job()
    acknowledge(planner, 1)


def put_steps(planner: LivePlanner, first: int, end: int, **changes: object) -> None:
    """Both ranks of `job` post these steps, rank 1 with the changes: 0.9 s, 100 J and 200 J."""
    for rank in RANKS:
        measured = {"plan_version": 1, "time_s": 0.9, "energy_j": 100.0 * (rank + 1)}
        changed = changes if rank == 1 else {}
        steps = [{"step": step, **measured, **changed} for step in range(first, end)]
        path = routes.fill(routes.RANK_MEASUREMENTS, job_id="job", rank=rank)
        planner.http.post(path, json={"steps": steps}).raise_for_status()


def depart(planner: LivePlanner) -> None:
    """Both ranks of `job` leave it: the job is over."""
    for rank in RANKS:
        path = routes.fill(routes.RANK_DEPARTURE, job_id="job", rank=rank)
        planner.http.post(path, json={}).raise_for_status()

"""Jobs with an explicit order over HTTP: planned as it stands, and 422 with the field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.planner.live import LivePlanner, live_planner
from tests.unit.planning.tiny_pipelines import B, F, timed_profile

from flyball_profiles.stage_profile_csv import write_stage_profile
from flyball_server.jobs.store.sqlite.sqlite_store import SqliteJobStore
from flyball_wire import routes

ONE = [["forward", 0], ["backward", 0]]
V = [["forward", 0], ["forward", 0, 1], ["backward", 0, 1], ["backward", 0]]
PLACES = [[0, 3], [1, 2]]
EXPLICIT: dict[str, Any] = {"schedule": "explicit", "num_microbatches": 1, "policy": "envelope"}


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePlanner]:
    """One planner on SQLite for all of this file."""
    file: Path = tmp_path_factory.mktemp("planner") / "planner.sqlite"
    with live_planner(store=SqliteJobStore(file)) as live:
        yield live


def test_a_registered_order_is_planned_and_served_to_its_ranks(planner: LivePlanner) -> None:
    changes = {**EXPLICIT, "order": [V, V], "virtual_stages": PLACES}
    planner.put_job("ordered", **changes).raise_for_status()
    planner.put_job("ordered", **changes).raise_for_status()  # a retry is safe
    chunked = timed_profile(2, {F: 0.1, B: 0.2}, num_chunks=2)
    planner.put_profile(write_stage_profile(chunked), "ordered").raise_for_status()
    planner.put_ranks(2, "ordered")
    answer = planner.http.get(routes.fill(routes.RANK_PLAN, job_id="ordered", rank=1))
    assert answer.status_code == 200, answer.text
    instructions = answer.json()["instructions"]
    assert [entry[:2] + entry[3:] for entry in instructions] == V


def test_chunks_of_a_profile_may_come_as_json_rows(planner: LivePlanner) -> None:
    """Each chunk 0.1 s forward and 0.2 s backward; the four follow each other."""
    planner.put_job("json", **EXPLICIT, order=[V, V], virtual_stages=PLACES).raise_for_status()
    rows = [
        {
            "stage": stage, "instruction": kind, "frequency": mhz, "time": 0.1 * times,
            "energy": 1.0, "chunk": chunk,
        }
        for stage in (0, 1)
        for chunk in (0, 1)
        for kind, times in (("forward", 1), ("backward", 2))
        for mhz in (1410, 1000)
    ]  # fmt: skip
    path = routes.fill(routes.PROFILE, job_id="json")
    answer = planner.http.put(path, json={"rows": rows})
    assert answer.status_code == 200, answer.text
    plan = planner.http.get(routes.fill(routes.PLAN, job_id="json", version=1)).json()
    assert plan["plan"]["iteration_time_s"] == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"order": [V, V]}, "order"),
        ({"order": [V, V], "virtual_stages": [[0, 1], [3, 4]]}, "virtual_stages"),
        ({"order": [ONE, [["sideways", 0]]]}, "order[1][0]"),
        ({"schedule": "torchgpipe", "checkpoint": "often"}, "checkpoint"),
    ],
    ids=["chunk out of range", "no such model", "unknown kind", "unknown checkpoint"],
)
def test_an_order_that_cannot_run_is_answered_with_422_and_its_field(
    planner: LivePlanner, changes: dict[str, object], field: str
) -> None:
    answer = planner.put_job("refused", **{**EXPLICIT, **changes})
    assert answer.status_code == 422, answer.text
    detail: str = answer.json()["detail"]
    assert detail.startswith(field), detail
    assert "\n" not in detail
    path = routes.fill(routes.JOB, job_id="refused")
    assert planner.http.get(path).status_code == 404

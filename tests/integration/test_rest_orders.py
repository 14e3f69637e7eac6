"""Orders of jobs over HTTP: planned as they stand, refused with the field, and advice on others."""

from __future__ import annotations

from typing import Any

import pytest
from tests.planner.live import LivePlanner
from tests.planner.patience import wait_until
from tests.planner.samples import planned_instructions

from flyball_wire import routes

V = [["forward", 0], ["forward", 0, 1], ["backward", 0, 1], ["backward", 0]]
PLACES = [[0, 3], [1, 2]]
EXPLICIT: dict[str, Any] = {"schedule": "explicit", "num_microbatches": 1, "policy": "envelope"}


def test_a_registered_order_is_planned_and_served_to_its_ranks(planner: LivePlanner) -> None:
    """Each chunk 0.1 s forward and 0.2 s backward; the four follow each other."""
    changes = {**EXPLICIT, "order": [V, V], "virtual_stages": PLACES}
    planner.put_job("ordered", **changes).raise_for_status()
    planner.put_job("ordered", **changes).raise_for_status()  # a retry is safe
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
    path = routes.fill(routes.PROFILE, job_id="ordered")
    planner.http.put(path, json={"rows": rows}).raise_for_status()
    planner.put_ranks(2, "ordered")
    answer = planner.http.get(routes.fill(routes.RANK_PLAN, job_id="ordered", rank=1))
    assert answer.status_code == 200, answer.text
    planned = planned_instructions(answer.json())
    order = [[kind, microbatch, chunk] for kind, microbatch, _, chunk in planned]
    assert order == [[*entry, 0][:3] for entry in V]
    assert answer.json()["predicted_iteration_time_s"] == pytest.approx(1.2)


def test_a_job_says_with_which_order_it_would_save_more_and_changes_nothing(
    planner: LivePlanner,
) -> None:
    other = {"schedule": "envpipe", "line": "attach(..., extra_forwards=[{extra_forwards}])"}
    planner.put_job("advised", num_microbatches=8, other_orders=[other]).raise_for_status()
    planner.put_profile(job_id="advised").raise_for_status()
    path = routes.fill(routes.JOB, job_id="advised")
    wait_until(lambda: planner.http.get(path).json()["order_advice"] is not None)
    job = planner.http.get(path).json()
    advice = job["order_advice"]
    assert 2 <= advice.pop("saving_percent") < 20
    assert advice == {
        "schedule": "envpipe",
        "instead_of": "1f1b",
        "most_held": 3,
        "most_held_now": 2,
        "line": "attach(..., extra_forwards=[1,0])",
    }
    assert any("attach(..., extra_forwards=[1,0])" in note for note in job["notes"])
    report = planner.http.get(routes.fill(routes.REPORT, job_id="advised")).json()
    assert report["order_advice"] == planner.http.get(path).json()["order_advice"]
    assert (job["newest_version"], job["registration"]["schedule"]) == (1, "1f1b")


def test_envpipes_order_is_planned_with_the_forwards_that_its_ranks_run(
    planner: LivePlanner,
) -> None:
    changes = {"schedule": "envpipe", "extra_forwards": [2, 0], "num_microbatches": 4}
    planner.put_job("envpipe", **changes).raise_for_status()
    planner.put_profile(job_id="envpipe").raise_for_status()
    planner.put_ranks(2, "envpipe")
    answer = planner.http.get(routes.fill(routes.RANK_PLAN, job_id="envpipe", rank=0)).json()
    kinds = "".join(kind[0] for kind, *_ in planned_instructions(answer))
    assert kinds == "ffffbbbb"

"""Zeus's calls over HTTP: one plan for a start, and where the planner finds what they lack."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.planner.live import LivePlanner, live_planner
from tests.planner.patience import wait_until
from tests.planner.samples import profile_csv

from flyball_server.http.zeus import routes
from flyball_server.jobs.auth.access import create_token

INFO = {"job_id": "", "pp_degree": 2, "dp_degree": 1, "tp_degree": 1, "world_size": 2}
POWER = "blocking_power_w=70"
# What the planner of most tests adds to a job of no name.
DEFAULTS = "num_microbatches=2+" + POWER


@pytest.fixture(scope="module")
def zeus() -> Iterator[LivePlanner]:
    with live_planner(zeus_clients=True, zeus_defaults=DEFAULTS) as live:
        yield live


def register(http: httpx.Client, metadata: str | None, **changes: int) -> httpx.Response:
    return http.post("/register_job", json={**INFO, **changes, "job_metadata": metadata})


def start(zeus: LivePlanner, metadata: str | None) -> str:
    """Register a job and its two ranks; its ID."""
    answer = register(zeus.http, metadata)
    answer.raise_for_status()
    job_id = answer.json()
    for rank in range(2):
        info = {"rank": rank, "dp_rank": 0, "pp_rank": rank, "tp_rank": 0}
        path = f"/register_rank/{job_id}"
        sent = zeus.http.post(path, json={**info, "available_frequencies": [1410, 1200]})
        assert (sent.status_code, sent.json()) == (200, None)
    return str(job_id)


def clocks(zeus: LivePlanner, job_id: str, rank: int) -> list[int]:
    answer = zeus.http.get(f"/schedule/{job_id}", params={"rank": rank})
    answer.raise_for_status()
    schedule = answer.json()
    assert schedule["rank"] == rank
    assert [name for name, _ in schedule["frequencies"]].count("backward") == 2
    return [mhz for _, mhz in schedule["frequencies"]]


def job(zeus: LivePlanner, job_id: str) -> dict[str, Any]:
    answer = zeus.http.get(f"/api/v1/jobs/{job_id}")
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def set_target(zeus: LivePlanner, job_id: str, target: str) -> httpx.Response:
    return zeus.http.put(f"/api/v1/jobs/{job_id}/target", json={"target": target})


def test_all_ranks_of_a_start_get_one_version_and_the_next_start_gets_the_newest(
    zeus: LivePlanner,
) -> None:
    assert start(zeus, "one") == "one"
    zeus.put_profile(job_id="one").raise_for_status()
    fastest = clocks(zeus, "one", 0)
    assert max(fastest) == 1410
    set_target(zeus, "one", "least-energy").raise_for_status()
    plans = [zeus.http.get(f"/api/v1/jobs/one/plans/{number}").json() for number in (1, 2)]
    planned = [[mhz for _, _, mhz in plan["plan"]["stages"][1]] for plan in plans]
    assert planned[0] != planned[1]
    assert clocks(zeus, "one", 1) == planned[0]
    assert clocks(zeus, "one", 0) == fastest
    held = zeus.http.get("/api/v1/jobs/one/plans/1/first-step").json()
    assert held["first_step"] == 0
    # The same training, started again: its profile is there, and so is the target.
    start(zeus, "one")
    assert clocks(zeus, "one", 1) == planned[1]
    assert [rank["acknowledged_version"] for rank in job(zeus, "one")["ranks"]] == [None, 2]


def test_a_registered_job_brings_its_options_and_one_that_flyballs_ranks_train_is_left_alone(
    zeus: LivePlanner,
) -> None:
    zeus.put_job("gpt", num_microbatches=2, target="least-energy").raise_for_status()
    zeus.put_profile(job_id="gpt").raise_for_status()
    start(zeus, "gpt")
    assert set(clocks(zeus, "gpt", 0)) == {1200}
    zeus.put_planned_job("trains")
    answer = register(zeus.http, "trains")
    assert answer.status_code == 409
    assert "has ranks that called recently" in answer.json()["detail"]
    assert not any(rank["has_left"] for rank in job(zeus, "trains")["ranks"])


def test_a_job_without_a_name_gets_one_of_zeuss_form(zeus: LivePlanner) -> None:
    job_id = start(zeus, None)
    assert re.fullmatch(r"[\d-]{26}\+dp1\+pp2\+tp1\+flyball", job_id)
    zeus.put_profile(job_id=job_id).raise_for_status()
    assert clocks(zeus, job_id, 0)
    assert job(zeus, job_id)["state"] == "planned"
    assert start(zeus, None) != job_id


def test_what_the_calls_lack_comes_from_the_metadata_and_any_text_is_a_name(
    zeus: LivePlanner,
) -> None:
    for metadata, expected in (
        ("gpu=a100+x", {"gpu": "a100", "num_microbatches": 2}),
        ("x1+num_microbatches=9+blocking_power_w=70,80", {"blocking_power_w": [70, 80]}),
        ("x2+schedule=gpipe+reserve=0.1+policy=frontier", {"schedule": "gpipe", "reserve": 0.1}),
    ):
        registered = job(zeus, register(zeus.http, metadata).json())["registration"]
        assert expected.items() <= registered.items()
    for text, name in (
        ("GPT-3 175B, lr=1e-4", "GPT-3-175B-lr-1e-4"),
        ("..a+b", "a+b"),
        ("\u00e9" * 200, "-"),
    ):
        assert register(zeus.http, text).json() == name


def test_what_is_missing_is_named_where_it_can_be_added() -> None:
    with live_planner(zeus_clients=True) as planner:
        for metadata, words in (
            (POWER, "job_metadata, as in NAME+num_microbatches=8"),
            ("num_microbatches=2", "blocking_power_w: give it in W, or name a gpu of the table"),
            (
                "num_microbatches=two",
                "job_metadata: num_microbatches must be a whole number from 1 to 65536",
            ),
        ):
            answer = register(planner.http, metadata)
            assert answer.status_code == 422
            assert words in answer.json()["detail"]
        assert register(planner.http, DEFAULTS, world_size=3).status_code == 422
        assert planner.http.get("/api/v1/jobs").json() == []


def test_a_plan_that_fails_is_an_answer_and_no_wait(zeus: LivePlanner) -> None:
    start(zeus, "fails+target=deadline:0.01")
    assert zeus.put_profile(job_id="fails").status_code == 422
    answer = zeus.http.get("/schedule/fails", params={"rank": 0})
    assert answer.status_code == 409
    assert "Job fails cannot be planned: target" in answer.json()["detail"]


def test_posted_iterations_are_the_ranks_steps(zeus: LivePlanner) -> None:
    start(zeus, "measured")
    zeus.put_profile(job_id="measured").raise_for_status()
    for rank in range(2):
        clocks(zeus, "measured", rank)
        for energy_j in (100.0, 200.0):
            result = {"rank": rank, "iter_time": [1.0, 2.0], "iter_energy": [energy_j] * 2}
            breakdown = {"time_breakdown": {"forward": [[0.1, 0.1]]}, "energy_breakdown": {}}
            sent = zeus.http.post("/result/measured", json={**result, **breakdown})
            assert (sent.status_code, sent.json()) == (200, None)
    steps = zeus.http.get("/api/v1/jobs/measured/steps").json()
    rows = [(step["step"], step["time_s"], step["energy_j"]) for step in steps]
    assert rows == [(0, 1.0, 200.0), (1, 2.0, 200.0), (2, 1.0, 400.0), (3, 2.0, 400.0)]
    assert {tuple(step["plan_versions"]) for step in steps} == {(1,)}
    short = {"rank": 0, "iter_time": [1.0], "iter_energy": []}
    assert zeus.http.post("/result/measured", json=short).status_code == 422


def test_the_servers_address_carries_a_token() -> None:
    with live_planner(
        token="operators",  # noqa: S106 - a test's
        zeus_clients=True,
        zeus_defaults=DEFAULTS,
    ) as planner:
        token = create_token(planner.state.services.store, job_id="mine", has_operator=True)[1]
        with httpx.Client(
            base_url=planner.http.base_url.copy_with(username="zeus", password=token), timeout=30
        ) as http:
            assert register(planner.http, "mine").status_code == 401
            assert register(http, "mine").json() == "mine"
            assert register(http, "other").status_code == 403
            assert http.get("/schedule/other", params={"rank": 0}).status_code == 403
            assert http.get("/schedule/mine", params={"rank": 0}).status_code == 404
            # Browsers repeat such credentials by themselves: no call that a page makes takes them.
            assert http.get("/api/v1/jobs/mine").status_code == 401


def test_the_calls_are_off_unless_asked_for(planner: LivePlanner) -> None:
    assert register(planner.http, DEFAULTS).status_code == 404


def test_a_rank_that_waits_is_woken_by_the_profile(
    zeus: LivePlanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_PERIOD_S", 600.0)  # no look in between finds the plan
    start(zeus, "waits")
    waiting = zeus.state.waiters
    before = waiting.num_waiting
    with ThreadPoolExecutor(2) as pool:
        given = [pool.submit(clocks, zeus, "waits", rank) for rank in range(2)]
        wait_until(lambda: waiting.num_waiting == before + 2)
        zeus.put_profile(profile_csv(), "waits").raise_for_status()
        assert [len(found.result()) for found in given] == [4, 4]

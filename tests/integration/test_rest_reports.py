"""Reports and comparisons over HTTP, from a planner to which two ranks post their steps."""

from __future__ import annotations

from typing import Any

import pytest
from tests.planner.live import LivePlanner
from tests.planner.measuring import COMPARISON, REPORT, MeasuringRanks, put_enveloped_job
from tests.planner.samples import profile_csv, rank_registration

from flyball_client.api.planner_client import PlannerClient
from flyball_wire import routes
from flyball_wire.closed_loop import ComparisonRequest

TARGET = routes.fill(routes.TARGET, job_id="job")
TRUE_SAVING_PERCENT = 10.0


@pytest.fixture
def ranks(planner: LivePlanner) -> MeasuringRanks:
    put_enveloped_job(planner)
    return MeasuringRanks(planner)


def report(planner: LivePlanner) -> Any:  # noqa: ANN401 - JSON
    answer = planner.http.get(REPORT)
    assert answer.status_code == 200
    return answer.json()


def test_who_sets_no_clocks_is_in_the_notes_and_the_report_until_the_next_step_that_has_them(
    planner: LivePlanner,
) -> None:
    planner.put_planned_job()
    for rank in (0, 1):
        planner.acknowledge(rank, 1, 0)
    why = "another program holds the SM clock at 600 MHz; it stays until the next plan"
    planner.post_steps(0, 3, plan_version=1)
    planner.post_steps(1, 3, no_clocks=why)

    def said() -> tuple[list[str], list[str], list[str | None]]:
        job = planner.http.get(routes.fill(routes.JOB, job_id="job")).json()
        whys = [rank["no_clocks"] for rank in job["ranks"]]
        return job["notes"], report(planner)["notes"], whys

    line = f"rank 1 sets no clocks: {why}"
    assert said() == ([line], [line], [None, why])
    planner.post_steps(0, 4, no_clocks=why)
    assert said()[0] == [f"ranks 0 and 1 set no clocks: {why}"]
    deviations = report(planner)["versions"][0]["deviations"]
    assert [each["text"] for each in deviations] == ["1 step left out: a rank set no clocks."]
    planner.post_steps(0, 5, plan_version=1)
    planner.post_steps(1, 5, plan_version=1)
    assert said() == ([], [], [None, None])
    planner.post_steps(1, 6, no_clocks=why)
    planner.put_ranks()  # restarted
    assert said()[2] == [None, None]
    path = routes.fill(routes.RANK_MEASUREMENTS, job_id="job", rank=1)
    for bad in ("two\nlines", "x" * 257):
        step = {"step": 7, "plan_version": None, "time_s": 1.0, "energy_j": None, "no_clocks": bad}
        answer = planner.http.post(path, json={"steps": [step]})
        assert answer.status_code == 422
        assert "no_clocks" in answer.json()["detail"]


def test_energies_of_modules_are_named_where_the_profile_has_those_of_gpus(
    planner: LivePlanner,
) -> None:
    planner.put_job().raise_for_status()
    lines = profile_csv().splitlines()
    scoped = "\n".join([f"{lines[0]},energy_scope", *(f"{line},gpu" for line in lines[1:]), ""])
    planner.put_profile(scoped).raise_for_status()
    job_path, profile_path = (
        routes.fill(route, job_id="job") for route in (routes.JOB, routes.PROFILE)
    )
    assert planner.http.get(profile_path).text.splitlines()[1].endswith(",gpu")

    def notes_with(*scopes: str | None) -> list[str]:
        for rank, scope in enumerate(scopes):
            path = routes.fill(routes.RANK, job_id="job", rank=rank)
            body = rank_registration(rank, energy_scope=scope)
            planner.http.put(path, json=body).raise_for_status()
        job = planner.http.get(job_path).json()
        assert [rank["energy_scope"] for rank in job["ranks"]] == list(scopes)
        return [note for note in job["notes"] if "energ" in note]

    assert notes_with("gpu", "gpu") == notes_with("gpu", None) == []
    not_comparable = "predicted and measured energies are not comparable"
    assert notes_with("gpu", "module") == [
        "energy counters differ, and their sum mixes both: GPUs alone on rank 0, whole modules on"
        " rank 1",
        "the profile's energies are of GPUs alone, and rank 1 measures whole modules:"
        f" {not_comparable}",
    ]
    assert report(planner)["energy_scope"] is None
    (note,) = notes_with("module", "module")
    assert note.endswith(f"and ranks 0 and 1 measure whole modules: {not_comparable}")
    assert report(planner)["energy_scope"] == "module"
    assert report(planner)["notes"] == [note]
    planner.put_profile(scoped.replace(",gpu", ",module")).raise_for_status()
    assert notes_with("module", "module") == []


def holds(estimate: dict[str, float], truth: float) -> bool:
    return estimate["low"] < truth < estimate["high"]


def test_a_comparison_runs_is_measured_and_gives_the_plain_plan_back(
    ranks: MeasuringRanks, planner: LivePlanner
) -> None:
    ranks.take_newest_plan()
    ranks.measure(10)
    assert planner.http.get(COMPARISON).json()["state"] == "none"
    started = planner.http.put(COMPARISON, json={"num_pairs": 24})
    assert (started.status_code, started.json()["state"]) == (200, "running")
    ranks.wait_for_version(2)
    assert planner.http.put(COMPARISON, json={"num_pairs": 24}).json()["version"] == 2
    assert ranks.take_newest_plan() == 2
    ranks.measure(60)
    done = ranks.wait_for_comparison("done")
    assert (done.version, done.num_pairs) == (2, 24)
    assert done.num_measured_pairs >= 24
    ranks.wait_for_version(3)
    assert ranks.take_newest_plan() == 3
    assert not ranks.is_baseline(ranks.next_step)
    ranks.measure(10)
    versions = report(planner)["versions"]
    compared = versions[1]
    assert compared["baseline"] == "interleaved"
    saving = compared["saving_percent"]
    assert holds(saving, TRUE_SAVING_PERCENT)
    assert saving["high"] - saving["low"] < 1
    assert saving["num_steps"] == done.num_measured_pairs
    # The others have the comparison's steps at the highest clocks near them.
    assert {version["baseline"] for version in versions} == {"interleaved", "apart"}
    # Withdrawn any number of times.
    with PlannerClient(str(planner.http.base_url)) as client:
        client.put_comparison("job", ComparisonRequest(num_pairs=24))
        ranks.wait_for_version(4)
        for _ in range(2):
            client.delete_comparison("job")
        assert client.get_comparison("job").state == "ended"
    ranks.wait_for_version(5)


def test_a_comparison_that_cannot_be_is_refused(planner: LivePlanner) -> None:
    planner.put_job(policy="envelope").raise_for_status()
    early = planner.http.put(COMPARISON, json={"num_pairs": 4})
    assert (early.status_code, "no plan yet" in early.json()["detail"]) == (409, True)
    planner.put_profile().raise_for_status()
    for num_pairs in (1, 10_001):
        answer = planner.http.put(COMPARISON, json={"num_pairs": num_pairs})
        assert answer.status_code == 422
        assert "num_pairs" in answer.json()["detail"]
    planner.http.put(TARGET, json={"policy": "baseline"}).raise_for_status()
    useless = planner.http.put(COMPARISON, json={"num_pairs": 4})
    assert (useless.status_code, "highest clocks" in useless.json()["detail"]) == (409, True)
    planner.http.put(TARGET, json={"policy": "envelope"}).raise_for_status()
    endless = planner.http.put(COMPARISON, json={"num_pairs": 4})
    assert (endless.status_code, endless.json()["detail"]) == (
        409,
        "No rank of job job is in training; start it again first",
    )

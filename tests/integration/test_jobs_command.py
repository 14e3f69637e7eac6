"""`flyball jobs` against a planner: what it shows and changes, and what it refuses in one line."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from tests.integration.command_in_process import flyball, refusal
from tests.planner.live import LivePlanner, live_planner
from tests.planner.patience import wait_until
from tests.planner.samples import profile_csv

from flyball_client.api.errors import PlannerUnavailableError
from flyball_client.api.planner_client import PlannerClient
from flyball_wire import routes
from flyball_wire.messages import JobView
from flyball_wire.plan_options import TargetChange


@pytest.fixture(scope="module")
def live() -> Iterator[LivePlanner]:
    with live_planner() as planner:
        planner.put_planned_job()
        planner.put_job("waits", num_microbatches=3).raise_for_status()
        yield planner


@pytest.fixture(autouse=True)
def environment(live: LivePlanner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYBALL_PLANNER_URL", str(live.http.base_url))
    monkeypatch.delenv("FLYBALL_TOKEN", raising=False)


def jobs(*arguments: str | Path) -> str:
    """Run `flyball jobs`; return its output."""
    done = flyball("jobs", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def document(*arguments: str | Path) -> Any:  # noqa: ANN401 - JSON
    """Return the output with `--json`, parsed."""
    return json.loads(jobs(*arguments, "--json"))


def answered(live: LivePlanner, path: str) -> Any:  # noqa: ANN401 - JSON
    return live.http.get(f"/api/v1/jobs/{path}").raise_for_status().json()


def test_list_has_a_line_for_each_job(live: LivePlanner) -> None:
    head, *rows = [line.split() for line in jobs("list").splitlines()]
    assert head == ["JOB", "STATE", "RANKS", "PLAN", "POLICY", "TARGET", "GPUS"]
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["job"][:2] == ["planned", "2/2"]
    waits = ["awaiting-profile", "0/2", "-", "frontier", "fastest", "emulated"]
    assert by_name["waits"] == waits
    overview = live.http.get("/api/v1/overview").json()["jobs"]
    assert [row["job_id"] for row in document("list")] == [row["job_id"] for row in overview]


@pytest.mark.parametrize("before", [True, False])
def test_options_may_stand_before_the_action_too_and_without_one_jobs_are_listed(
    live: LivePlanner, monkeypatch: pytest.MonkeyPatch, *, before: bool
) -> None:
    monkeypatch.delenv("FLYBALL_PLANNER_URL", raising=False)
    options = ("--planner", str(live.http.base_url), "--json")
    shown = json.loads(jobs(*options, "show", "job") if before else jobs("show", "job", *options))
    assert shown["job_id"] == "job"
    assert {row["job_id"] for row in json.loads(jobs(*options))} >= {"job", "waits"}


def test_without_jobs_it_says_when_there_will_be_one() -> None:
    with live_planner() as empty:
        url = str(empty.http.base_url)
        assert jobs("list", "--planner", url).startswith("no jobs; a job appears when")
        assert document("list", "--planner", url) == []


def test_show_has_what_the_job_waits_for(live: LivePlanner) -> None:
    text = jobs("show", "waits")
    assert text.startswith("waits: awaiting-profile, on emulated GPUs; registered 20")
    assert "2 stages, 3 microbatches, 2 ranks; schedule 1f1b" in text
    assert "blocking power 70 W" in text
    assert "note: waits for ranks 0 and 1 to register" in text
    assert "rank 1: stage 1, emulated A100 at node-1, no plan" in jobs("show", "job")
    shown = document("show", "job")
    assert (shown["job_id"], shown["stragglers"]) == ("job", [])
    assert answered(live, "job").items() <= shown.items()


def test_target_changes_what_is_given_and_no_more(live: LivePlanner) -> None:
    before = answered(live, "job")
    line = jobs("target", "job", "slowdown:0.05", "--effort", "low")
    version = answered(live, "job")["newest_version"]
    assert line == f"job: planned, plan {version} (frontier, target slowdown:0.05)\n"
    after = answered(live, "job")["registration"]
    changed = {name for name in after if after[name] != before["registration"][name]}
    assert changed == {"target", "effort"}
    assert document("target", "job", "fastest", "--effort", "normal")["state"] == "planned"


def test_a_profile_is_put_and_the_job_planned_and_deleted(
    live: LivePlanner, tmp_path: Path
) -> None:
    file, put = tmp_path / "profile.csv", ("profile", "put", "new")
    live.put_job("new").raise_for_status()
    # A bad line is named before anything is sent.
    file.write_text(profile_csv().replace("0,forward,1200,0.11", "0,forward,1200,fast"))
    assert f"{file}:3: " in refusal(flyball("jobs", *put, file))
    file.write_text(profile_csv())
    assert jobs(*put, file) == "new: planned, plan 1 (frontier, target fastest)\n"
    assert document(*put, file)["newest_version"] == 1
    assert document("delete", "new") == {"job_id": "new", "deleted": True}
    registering = Timer(0.5, live.put_job, ["new"])
    registering.start()
    assert jobs(*put, "--wait", "30", file) == "new: planned, plan 1 (frontier, target fastest)\n"
    registering.join()
    assert document("delete", "new")["deleted"]
    assert live.http.get("/api/v1/jobs/new").status_code == 404
    live.put_job("new").raise_for_status()
    assert jobs("delete", "new") == "new: deleted, with its plans and measurements\n"


def test_a_straggler_is_announced_listed_and_withdrawn(live: LivePlanner) -> None:
    assert jobs("straggler", "job") == "no stragglers\n"
    until = "2199-01-01T00:00:00+00:00"
    line = jobs("straggler", "job", "1", "1.2", "--until", until)
    assert line.startswith("rank 1 takes 1.2 times as long as profiled, announced (slow), from 20")
    assert "until 2199-01-01 00:00:00 UTC" in line
    assert document("straggler", "job")[0]["slowdown"] == 1.2
    shown = jobs("show", "job")
    assert shown.startswith("job: slow GPU, on emulated GPUs")
    assert "straggler rank 1 takes 1.2 times" in shown
    assert "\njob    slow GPU  " in jobs("list")
    assert jobs() == jobs("list")
    assert jobs("straggler", "job", "1", "--withdraw") == "no stragglers\n"
    assert answered(live, "job/stragglers") == []


def test_a_timetable_is_put_shown_and_deleted(live: LivePlanner) -> None:
    none = "no timetable; target fastest at all times\n"
    assert jobs("timetable", "job") == none
    nightly = ("--window", "22:00", "06:00", "power:8000", "mon,tue")
    once = ("--window", "2199-01-01T00:00+01:00", "2199-01-02T00:00+01:00", "least-energy")
    text = jobs("timetable", "job", *nightly, *once, "--timezone", "Europe/Berlin")
    assert text.startswith("timetable (Europe/Berlin): now ")
    assert re.search(r", next change \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\n", text)
    assert "\n  22:00 to 06:00 on mon,tue: power:8000\n" in text
    status = document("timetable", "job")
    assert status == answered(live, "job/timetable")
    assert [one["days"] for one in status["timetable"]["windows"]] == [["mon", "tue"], None]
    assert jobs("timetable", "job", "--delete") == none


def test_off_runs_a_job_at_its_highest_clocks_and_says_how_to_undo_that(
    live: LivePlanner,
) -> None:
    jobs("target", "job", "slowdown:20%")
    jobs("timetable", "job", "--window", "22:00", "06:00", "least-energy", "mon,tue")
    before = answered(live, "job")["registration"], answered(live, "job/timetable")
    off, undo_target, undo_timetable = jobs("off", "job").splitlines()
    version = answered(live, "job")["newest_version"]
    assert off == f"job: planned, plan {version} (baseline, target fastest)"
    plan = answered(live, f"job/plans/{version}")["plan"]
    assert plan["policy"] == "baseline"
    assert plan["saving_percent"] == pytest.approx(0)
    # Again: nothing is left to undo.
    assert jobs("off", "job") == f"{off}\n"
    for line in (undo_target, undo_timetable):
        flyball_word, *words = shlex.split(line.removeprefix("  undo: "))
        assert flyball_word == "flyball"
        assert flyball(*words).returncode == 0
    after = answered(live, "job")["registration"], answered(live, "job/timetable")
    assert after == before
    jobs("timetable", "job", "--delete")
    jobs("target", "job", "fastest")


def test_off_for_all_leaves_jobs_alone_that_are_over_and_goes_on_after_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with live_planner() as many:
        monkeypatch.setenv("FLYBALL_PLANNER_URL", str(many.http.base_url))
        for name in ("a", "b", "over"):
            many.put_planned_job(name)
        for rank in (0, 1):
            path = routes.fill(routes.RANK_DEPARTURE, job_id="over", rank=rank)
            many.http.post(path, json={}).raise_for_status()
        wait_until(lambda: answered(many, "over")["state"] == "ended")
        put_target, refused = PlannerClient.put_target, {"a", "b"}

        def put_or_refuse(planner: PlannerClient, job_id: str, change: TargetChange) -> JobView:
            if job_id in refused:
                raise PlannerUnavailableError("cut off")
            return put_target(planner, job_id, change)

        with monkeypatch.context() as patched:
            patched.setattr(PlannerClient, "put_target", put_or_refuse)
            none = flyball("jobs", "off", "--all")
            refused.remove("b")
            done = flyball("jobs", "off", "--all")
        assert "2 of 2 not switched off; " in none.stderr
        assert not none.stdout
        assert done.returncode == 2
        assert "1 of 2 not switched off; a: cut off" in done.stderr
        assert done.stdout.startswith("b: planned, plan 2 (baseline, target fastest)\n  undo: ")
        both = document("off", "--all")
        assert {job["registration"]["policy"] for job in both} == {"baseline"}
        assert {job["job_id"] for job in both} == {"a", "b"}
        assert answered(many, "over")["registration"]["policy"] == "frontier"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("off", "give a JOB, or --all"),
        ("off job --all", "give a JOB, or --all"),
        ("show nobody", "has no job 'nobody'; of "),
        ("off nobody", "has no job 'nobody'; of "),
        ("target job", "give a TARGET, --policy, --reconfigure or --effort to change"),
        ("target job soon", "argument TARGET: must be fastest, "),
        ("target job --policy best", "argument --policy: must be one of baseline, "),
        ("profile put job none.csv", "none.csv: cannot read the profile: No such file"),
        ("straggler job 1", "give RANK and SLOWDOWN to announce, or RANK --withdraw"),
        ("straggler job --withdraw", "--withdraw takes a RANK alone"),
        ("straggler job 1 0.5", "SLOWDOWN: must be a number, at least 1"),
        ("straggler job 7 2", "Rank 7 of job job is not known here"),
        ("timetable job --window 22:00 06:00", "--window must be FROM UNTIL TARGET [DAYS]"),
        ("timetable job --window 1 2 fastest", "windows[0].from_time: must be 22:00, or a date"),
        ("timetable job --window 1:00 2:00 fastest sunday", "days are mon,tue,wed"),
        ("timetable job --timezone UTC", "--timezone needs a --window"),
        ("timetable job --delete --timezone UTC", "--delete takes no other option"),
        ("delete job", "Job job has ranks that called recently; end its training first"),
        ("list --planner http://127.0.0.1:9", "127.0.0.1:9"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments: str, says: str) -> None:
    assert says in refusal(flyball("jobs", *arguments.split()))

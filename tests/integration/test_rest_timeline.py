"""Timelines and histories of plans over HTTP, with figures derived by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.planner.live import LivePlanner
from tests.planner.samples import one_microbatch, profile_csv

from flyball_server.jobs.records import PlanRecord
from flyball_wire import routes
from flyball_wire.codec import decode
from flyball_wire.plans.plan import probe_of
from flyball_wire.read_models import (
    PlanSummary,
    PlanTimeline,
    TimelineOfPlan,
    TimelineRow,
)

PATH = routes.fill(routes.TIMELINE, job_id="job")
HISTORY = routes.fill(routes.HISTORY, job_id="job")


def timeline(planner: LivePlanner, version: int | None = None) -> PlanTimeline:
    asked = {} if version is None else {"version": version}
    answer = planner.http.get(PATH, params=asked)
    assert answer.status_code == 200, answer.text
    return decode(PlanTimeline, answer.json())


def history(planner: LivePlanner) -> list[PlanSummary]:
    answer = planner.http.get(HISTORY)
    assert answer.status_code == 200, answer.text
    return [decode(PlanSummary, line) for line in answer.json()]


def refusal(planner: LivePlanner, status: int, **asked: object) -> str:
    answer = planner.http.get(PATH, params=asked)  # type: ignore[arg-type]  # wrong ones too
    assert answer.status_code == status, answer.text
    return str(answer.json()["detail"])


# ------------------------------------------------------------------ on paper


HIGHEST = (1410, 1410, 1410, 1410)
FIRST_AT_HIGHEST = TimelineRow(
    stage=0,
    dp_rank=0,
    blocking_power_w=70.0,
    kinds=("forward", "forward", "backward", "backward"),
    microbatches=(0, 1, 0, 1),
    chunks=(0, 0, 0, 0),
    clock_mhz=HIGHEST,
    start_s=(0.0, 0.1, 0.4, 0.7),
    duration_s=(0.1, 0.1, 0.2, 0.2),
    energy_j=(30.0, 30.0, 62.0, 62.0),
    float_s=(0.0, 0.2, 0.1, 0.0),
)
FIRST = replace(
    FIRST_AT_HIGHEST,
    clock_mhz=(1410, 1200, 1200, 1410),
    duration_s=(0.1, 0.11, 0.22, 0.2),
    energy_j=(30.0, 26.0, 54.0, 62.0),
    float_s=(0.0, 0.19, 0.08, 0.0),
)
LAST = replace(
    FIRST_AT_HIGHEST,
    stage=1,
    kinds=("forward", "backward", "forward", "backward"),
    microbatches=(0, 0, 1, 1),
    start_s=(0.1, 0.2, 0.4, 0.5),
    duration_s=(0.1, 0.2, 0.1, 0.2),
    energy_j=(30.0, 62.0, 30.0, 62.0),
    float_s=(0.0, 0.0, 0.0, 0.0),
)
BASELINE = TimelineOfPlan(
    iteration_time_s=0.9,
    energy_j=410.0,
    bubble_fraction=0.333333,
    rows=(FIRST_AT_HIGHEST, LAST),
    critical_path=((0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (0, 3)),
)
PLAN = replace(BASELINE, energy_j=395.9, bubble_fraction=0.316667, rows=(FIRST, LAST))


def test_two_stages_and_two_microbatches_are_as_on_paper(planner: LivePlanner) -> None:
    """Stage 0 has 0.2 s between its second forward and the end of the first backward, and so on.

    0.1 s forward, 0.2 s backward at 1410 MHz, a tenth more at 1200 MHz. Stage 1 never waits from
    0.1 to 0.7 s; stage 0 runs its second forward and its first backward at 1200 MHz, which saves
    4 - 0.7 J and 8 - 1.4 J less the 70 W that it would draw while it waits.
    """
    planner.put_planned_job()
    assert timeline(planner) == PlanTimeline(
        job_id="job",
        version=1,
        emulated=True,
        is_as_planned=True,
        schedule="1f1b",
        num_microbatches=2,
        plan=PLAN,
        baseline=BASELINE,
    )
    packed, plain = (
        planner.http.get(PATH, headers={"Accept-Encoding": name}) for name in ("gzip", "identity")
    )
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert plain.headers["Vary"] == packed.headers["Vary"] == "Accept-Encoding"
    assert plain.headers["Content-Type"] == packed.headers["Content-Type"] == "application/json"
    assert int(packed.headers["Content-Length"]) < int(plain.headers["Content-Length"])
    assert plain.content == packed.content


def test_a_job_without_a_plan_has_no_timeline(planner: LivePlanner) -> None:
    planner.put_job()
    assert refusal(planner, 409) == "Job job has no plan yet; put a profile first"
    assert refusal(planner, 404, version=1) == "Job job has no plan version 1"
    assert history(planner) == []


@pytest.mark.parametrize("early_requests", [True, False])
def test_late_clocks_are_in_a_jobs_plan_and_timeline_unless_they_are_requested_early(
    planner: LivePlanner, early_requests: bool
) -> None:
    """Else the second forward runs at 1410 MHz for 20 ms, a fifth of it; all else has its clock."""
    planner.put_job(transition_ms=20.0, early_requests=early_requests)
    planner.put_profile()
    planner.put_ranks()
    shown = timeline(planner)
    assert shown.is_as_planned
    row = shown.plan.rows[0]
    assert row.clock_mhz == FIRST.clock_mhz
    if early_requests:
        assert row.duration_s == pytest.approx(FIRST.duration_s)
        # The second forward is at position 1; 20 ms before the first, of 0.1 s, ends.
        plan = planner.http.get(routes.fill(routes.RANK_PLAN, job_id="job", rank=0)).json()
        assert plan["requests"][0] == [1, 0, pytest.approx(0.08)]
        return
    assert row.duration_s == pytest.approx((0.1, 0.02 + 0.8 * 0.11, 0.22, 0.2))
    assert row.energy_j == pytest.approx((30.0, 0.2 * 30 + 0.8 * 26, 54.0, 62.0))
    assert shown.plan.energy_j == pytest.approx(395.9 + 0.8 + 0.002 * 70)
    assert shown.baseline == BASELINE


def test_a_line_of_the_history_is_as_on_paper(planner: LivePlanner) -> None:
    """Stage 0: 0.3 s at 1410 MHz, 0.33 s at 1200 MHz: 1300 MHz on average."""
    planner.put_planned_job()
    [line] = history(planner)
    assert line.predicted is not None
    assert line.predicted.energy_j == pytest.approx(395.9)
    assert line.predicted.saving_percent == pytest.approx(100 * 14.1 / 410, abs=1e-3)
    assert [each.name for each in line.predicted.compared] == ["constant", "global"]
    assert (line.kind, line.schedule, line.policy) == ("plan", "1f1b", "frontier")
    assert (line.target, line.first_step) == ("fastest", None)
    assert line.stage_clock_mhz == (1300.0, 1410.0)
    named = [planner.acknowledge(rank, 1, current_step=4).json()["first_step"] for rank in (0, 1)]
    [line] = history(planner)
    assert named == [None, line.first_step]
    assert line.first_step is not None


# ------------------------------------------------------------------ which version, and of what


def test_a_profile_that_has_changed_is_told_and_one_that_does_not_fit_is_refused(
    planner: LivePlanner,
) -> None:
    planner.put_planned_job()
    assert timeline(planner, 1).is_as_planned
    planner.put_profile(profile_csv(forward_energy_j=31.0)).raise_for_status()
    # At 1 J more in three of the four forwards at 1410 MHz.
    changed = timeline(planner, 1)
    assert not changed.is_as_planned
    assert changed.plan.energy_j == pytest.approx(PLAN.energy_j + 3)
    assert timeline(planner, 2).is_as_planned
    planner.put_profile(profile_csv().replace("1200", "1300")).raise_for_status()
    said = refusal(planner, 409, version=1)
    assert said.startswith("Plan version 1 of job job has no timeline: the job's profile does not")
    assert "1200 MHz" in said
    assert timeline(planner, 3).is_as_planned


# ------------------------------------------------------------------ refused


def test_a_probe_version_has_no_timeline(planner: LivePlanner) -> None:
    planner.put_job().raise_for_status()
    plan = probe_of(one_microbatch(2), (((1410, 1410), (1410, 1000)),), 1.0)
    services = planner.state.services
    record = PlanRecord(job_id="job", version=1, created_at=services.now(), solve_s=0.0, plan=plan)
    with services.store.writing("job") as writer:
        writer.add_plan(record)
    assert refusal(planner, 409) == (
        "Plan version 1 of job job has no timeline: it was made to learn from; its clocks change"
        " from step to step"
    )


def test_the_active_version_is_shown_before_there_is_one_the_newest(planner: LivePlanner) -> None:
    planner.put_planned_job()
    target = routes.fill(routes.TARGET, job_id="job")
    planner.http.put(target, json={"target": "slowdown:0.1"}).raise_for_status()
    assert timeline(planner).version == 2
    for rank in (0, 1):
        planner.acknowledge(rank, 1, current_step=4).raise_for_status()
    assert timeline(planner).version == 1
    assert timeline(planner, 2).version == 2
    assert timeline(planner, 2).plan.iteration_time_s > 0.9
    assert [line.target for line in history(planner)] == ["fastest", "slowdown:0.1"]

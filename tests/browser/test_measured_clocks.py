"""The SM clock of a stage on the page: as it was measured and as it was planned, told apart."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.browser.dashboard import Dashboard
from tests.browser.fixtures import StartPlanner
from tests.browser.modules import Modules, modules
from tests.browser.views import job, plan, stage_of_step, step
from tests.planner.live import LivePlanner

from flyball_wire import routes

__all__ = ["modules"]

TITLE = "SM clock of a stage, MHz, measured and planned"


@pytest.fixture
def planner(start_planner: StartPlanner) -> LivePlanner:
    return start_planner()


@pytest.fixture
def dashboard(browser_page: Page, planner: LivePlanner) -> Dashboard:
    return Dashboard(browser_page, str(planner.http.base_url))


def stages(*clocks_mhz: float | None) -> list[dict[str, Any]]:
    """Of 200 J in 2 s each."""
    return [
        stage_of_step(stage, 200.0) | {"sm_clock_mhz": clock_mhz}
        for stage, clock_mhz in enumerate(clocks_mhz)
    ]


def put_clock(planner: LivePlanner, number: int, clock_mhz: float | None) -> None:
    """Both ranks of `job` post the step; rank 1 has read this clock, rank 0 none."""
    for rank, told in ((0, None), (1, clock_mhz)):
        measured = {"step": number, "plan_version": 1, "time_s": 0.9, "energy_j": 100.0}
        path = routes.fill(routes.RANK_MEASUREMENTS, job_id="job", rank=rank)
        body = {"steps": [measured | {"sm_clock_mhz": told}]}
        planner.http.post(path, json=body).raise_for_status()


def put_measuring_job(planner: LivePlanner, *clocks_mhz: float | None) -> None:
    """`job` on version 1, and what rank 1 has read in its steps from step 2 on."""
    planner.put_planned_job()
    for rank in (0, 1):
        planner.acknowledge(rank, 1, 0).raise_for_status()
    for number, clock_mhz in enumerate(clocks_mhz, start=2):
        put_clock(planner, number, clock_mhz)


# ------------------------------------------------------------------ figures


def test_each_step_has_the_clocks_that_were_read_beside_those_of_its_version(
    modules: Modules,
) -> None:
    series = modules.run(
        "step_series",
        "return m.stepSeries(steps, history, {num_stages: 2, num_ranks: 2});",
        steps=[
            step(0, None, stages=stages(1410.0, None)),
            step(1, stages=stages(1200.5, None)),
            step(2, stages=stages(None, 1380.0)),
        ],
        history=[plan(1, 1, "2026-01-05T09:00:00+00:00")],
    )
    assert series["clock_mhz"] == [[1410.0, 1200.5, None], [None, None, 1380.0]]
    assert series["planned_mhz"] == [[None, 1000.0, 1000.0], [None, 1410.0, 1410.0]]


@pytest.mark.parametrize(
    ("column", "indices"),
    [
        ([1.0, None, 1.0, 1.0, None, 0.0], [0, 5]),
        ([None, 1.0, None], [1]),
        ([1.0], [0]),
        ([1.0, 1.0], []),
        ([None], []),
        ([], []),
    ],
)
def test_a_reading_between_two_steps_without_one_is_a_dot(
    modules: Modules, column: list[float | None], indices: list[int]
) -> None:
    assert modules.run("stage_charts", "return m.singles(column);", column=column) == indices


@pytest.mark.parametrize(
    ("version", "clock_mhz", "told"),
    [
        (1, 1380.4, "stage 1: 100.0 W, planned 1410 MHz on average, measured 1380 MHz"),
        (1, None, "stage 1: 100.0 W, planned 1410 MHz on average"),
        (None, 1380.4, "stage 1: 100.0 W, measured 1380 MHz"),
        (None, None, "stage 1: 100.0 W"),
    ],
)
def test_a_stage_is_told_with_both_clocks_where_they_are_known(
    modules: Modules, version: int | None, clock_mhz: float | None, told: str
) -> None:
    text = modules.run(
        "step_words",
        "return m.stageText(step, 1, {history, overview});",
        step=step(0, version, stages=stages(None, clock_mhz)),
        history=[plan(1, 0, "2026-01-05T09:00:00+00:00")],
        overview=job("job"),
    )
    assert text.replace("\u202f", " ") == told


# ------------------------------------------------------------------ the chart


def test_the_chart_of_clocks_is_there_once_one_was_read(
    planner: LivePlanner, dashboard: Dashboard
) -> None:
    put_measuring_job(planner, None)
    page = dashboard.open_job("job").page
    expect(page.locator(".readout")).to_contain_text("Newest step 2")
    chart = page.locator("#panel-charts .chart").filter(has=page.get_by_text(TITLE))
    expect(chart).to_be_hidden()
    for number in range(3, 9):
        put_clock(planner, number, 1300.0 + number)
    expect(chart).to_be_visible()
    expect(chart.get_by_role("button")).to_have_text(
        ["measured, mean of what was read back", "planned, mean of its instructions"]
    )
    dashes = chart.locator(".legend-entry line")
    assert [dash.get_attribute("stroke-dasharray") for dash in dashes.all()] == ["", "3 3"]


def test_the_stage_is_chosen_by_number_and_what_is_none_is_not(
    planner: LivePlanner, dashboard: Dashboard
) -> None:
    put_measuring_job(planner, *[1300.0] * 7)
    page = dashboard.open_job("job").page
    choice = page.get_by_role("spinbutton", name="Stage whose clock is shown as a line")
    chart = page.locator("#panel-charts .chart").filter(has=choice)
    plotted = chart.locator(".u-over")
    expect(choice).to_have_value("0")
    plotted.hover()
    readout = page.locator(".readout")
    expect(readout).to_contain_text("; stage 0: ")
    choice.fill("1")
    plotted.hover(position={"x": 40, "y": 40})
    expect(readout).to_contain_text("; stage 1: ")
    expect(readout).to_contain_text("measured 1300\u202fMHz")
    choice.fill("7")
    plotted.hover(position={"x": 80, "y": 40})
    expect(readout).to_contain_text("; stage 1: ")


def test_a_click_on_a_stages_planned_clocks_shows_its_measured_ones(
    planner: LivePlanner, dashboard: Dashboard
) -> None:
    put_measuring_job(planner, *[1300.0] * 7)
    page = dashboard.open_job("job").page
    choice = page.get_by_role("spinbutton", name="Stage whose clock is shown as a line")
    strip = page.locator("#panel-charts .chart").filter(
        has=page.get_by_text("Clock by stage, planned, mean of its instructions")
    )
    box = strip.locator(".u-over").bounding_box()
    assert box is not None
    strip.locator(".u-over").click(position={"x": box["width"] / 2, "y": 0.75 * box["height"]})
    expect(choice).to_have_value("1")
    strip.locator(".u-over").click(position={"x": box["width"] / 2, "y": 0.25 * box["height"]})
    expect(choice).to_have_value("0")

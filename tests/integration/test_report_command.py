"""`flyball report` against a live planner: what it prints, what it refuses, how it compares."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.integration.command_in_process import Done, flyball, printed, refusal
from tests.integration.on_a_terminal import FLYBALL
from tests.planner.live import LivePlanner, live_planner
from tests.planner.measuring import MeasuringRanks, put_enveloped_job
from tests.planner.patience import PATIENCE_S

from flyball_client.cli import report
from flyball_wire import routes

NOWHERE = "--planner http://127.0.0.1:1"
TOKEN = "hush-hush"  # noqa: S105 - a test's own


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLYBALL_PLANNER_URL", "FLYBALL_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(report, "POLL_S", 0.05)


@pytest.fixture(scope="module")
def planner() -> Iterator[LivePlanner]:
    """A planner with a job that has measured 30 steps without and 30 with its plan."""
    with live_planner() as live:
        put_enveloped_job(live)
        ranks = MeasuringRanks(live)
        ranks.measure(30)
        ranks.take_newest_plan()
        ranks.measure(30)
        yield live


@pytest.fixture
def fresh() -> Iterator[LivePlanner]:
    """A planner whose job runs its plan and has nothing compared."""
    with live_planner() as live:
        put_enveloped_job(live)
        yield live


def report_of(planner: LivePlanner, *arguments: str) -> Done:
    return flyball("report", "job", "--planner", str(planner.http.base_url), *arguments)


# ------------------------------------------------------------------ what it prints


def test_it_prints_the_saving_with_its_interval_and_what_it_comes_to(planner: LivePlanner) -> None:
    factors = ("--price-per-kwh", "0.25", "--currency", "CHF", "--co2-g-per-kwh", "100")
    done = report_of(planner, *factors)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r"job: (9|10)\.\d % less energy .* measured on 2 emulated GPUs\n", done.stdout)
    assert re.search(r"\nv1 \(envelope, fastest\), measured \(emulated\) +\d+ ", done.stdout)
    assert " CHF, " in done.stdout
    assert " g CO2" in done.stdout
    assert "no figure here is a real GPU's" in done.stdout


def test_json_is_alone_on_stdout_and_has_the_planners_report_whole(planner: LivePlanner) -> None:
    document = printed(report_of(planner, "--json", "--price-per-kwh", "0.25"))
    answered = planner.http.get(routes.fill(routes.REPORT, job_id="job")).json()
    del answered["factors"]  # the command's own are over the planner's
    assert {name: document[name] for name in answered} == answered
    assert document["emulated"] is True
    assert document["used"]["kwh"] == pytest.approx(answered["energy_j"] / 3.6e6)
    cost = answered["saved_j"]["low"] / 3.6e6 * 0.25
    assert document["saved"]["cost"]["low"] == pytest.approx(cost)
    assert document["saved"]["co2_g"] is None
    factors = {"price_per_kwh": 0.25, "currency": "EUR", "co2_g_per_kwh": None}
    assert document["factors"] == factors


def test_address_and_token_come_from_the_environment_as_for_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with live_planner(token=TOKEN) as guarded:
        monkeypatch.setenv("FLYBALL_PLANNER_URL", str(guarded.http.base_url))
        assert "set FLYBALL_TOKEN" in refusal(flyball("report", "job"))
        monkeypatch.setenv("FLYBALL_TOKEN", "another")
        error = refusal(flyball("report", "job"))
        assert "set FLYBALL_TOKEN" in error
        assert "another" not in error
        monkeypatch.setenv("FLYBALL_TOKEN", TOKEN)
        assert "no job 'job'" in refusal(flyball("report", "job"))


# ------------------------------------------------------------------ what it refuses


def test_a_job_that_is_unknown_or_has_no_steps_is_refused(
    planner: LivePlanner, fresh: LivePlanner
) -> None:
    for arguments in ((), ("--compare", "4")):
        asked = ("report", "jib", "--planner", str(planner.http.base_url), *arguments)
        assert refusal(flyball(*asked)).endswith("has no job 'jib'; of 1 the newest: job")
    assert "job: no step has been measured by all 2 ranks yet" in refusal(report_of(fresh))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("", "--planner URL, or set FLYBALL_PLANNER_URL"),
        (NOWHERE, "cannot be reached"),
        (f"{NOWHERE} --compare 1", "--compare must be from 2"),
        (f"{NOWHERE} --price-per-kwh -1", "--price-per-kwh"),
        (f"{NOWHERE} --co2-g-per-kwh inf", "--co2-g-per-kwh"),
        (f"{NOWHERE} --currency a|b", "--currency"),
        (f"{NOWHERE} --timeout 0", "--timeout"),
        ("--json --markdown", "not allowed with"),
    ],
)
def test_bad_input_gets_one_line(arguments: str, named: str) -> None:
    error = refusal(flyball("report", "job", *arguments.split()))
    assert error.startswith("flyball report: ")
    assert named in error


# ------------------------------------------------------------------ how it compares


def test_compare_waits_for_its_steps_and_prints_what_they_showed(fresh: LivePlanner) -> None:
    ranks = MeasuringRanks(fresh)
    ranks.take_newest_plan()

    def train() -> None:
        ranks.wait_for_version(2)
        ranks.take_newest_plan()
        ranks.measure(60)

    with ThreadPoolExecutor(1) as threads:
        training = threads.submit(train)
        done = report_of(fresh, "--compare", "24", "--json")
        training.result(timeout=PATIENCE_S)
    assert done.returncode == 0
    assert done.stderr.startswith("comparing 24 pairs")
    versions = json.loads(done.stdout)["versions"]
    assert [version["baseline"] for version in versions][-1] == "interleaved"
    saving = versions[-1]["saving_percent"]
    assert saving["low"] < 10 < saving["high"]
    assert saving["num_steps"] >= 24


def test_ctrl_c_ends_the_command_and_not_the_comparison(fresh: LivePlanner) -> None:
    process = subprocess.Popen(
        [*FLYBALL, "report", "job", "--planner", str(fresh.http.base_url), "--compare", "4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("comparing 4 pairs")
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    assert errors == "the comparison continues; `flyball report job` shows its measurements\n"
    comparison = fresh.http.get(routes.fill(routes.COMPARISON, job_id="job")).json()
    assert comparison["state"] == "running"

"""`flyball report`: its text, with the origin of every figure, and its wait for a comparison."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from flyball_client.api.planner_client import PlannerClient, Retries
from flyball_client.cli.report import wait_for_comparison
from flyball_client.cli.report_text import (
    amounts_text,
    report_as_markdown,
    report_as_text,
)
from flyball_profiles.stage_profile import EnergyScope
from flyball_wire.closed_loop import (
    BaselineOrigin,
    ComparisonState,
    ComparisonStatus,
    Deviation,
    DeviationKind,
    Estimate,
    Headline,
    HeadlineTone,
    JobReport,
    VersionSavings,
)
from flyball_wire.codec import encode
from flyball_wire.energy_factors import EnergyFactors
from flyball_wire.messages import JobRegistration, JobState, JobView
from flyball_wire.orders import OrderAdvice

NO_FACTORS = EnergyFactors()
BOTH = EnergyFactors(price_per_kwh=0.3, currency="CHF", co2_g_per_kwh=380)


def estimate(mean: float, half: float | None = None, num_steps: int = 60) -> Estimate:
    return Estimate(
        mean=mean,
        low=None if half is None else mean - half,
        high=None if half is None else mean + half,
        num_steps=num_steps,
    )


INTERLEAVED = VersionSavings(
    version=2,
    policy="frontier",
    target="fastest",
    time_s=estimate(0.8613, 0.0007),
    energy_j=estimate(444.3, 2.2),
    baseline_time_s=estimate(0.8604, 0.0007, 61),
    baseline_energy_j=estimate(498.5, 2.3, 61),
    baseline=BaselineOrigin.INTERLEAVED,
    slowdown_percent=estimate(0.1, 0.09),
    saving_percent=estimate(10.87, 0.51),
    saved_j=estimate(3250.0, 150.0),
    num_steps=60,
    num_left_out=1,
    predicted_time_s=0.86,
    predicted_energy_j=442.9,
    predicted_saving_percent=11.1,
)
WITHOUT_BASELINE = replace(
    INTERLEAVED,
    baseline=BaselineOrigin.NONE,
    baseline_time_s=None,
    baseline_energy_j=None,
    slowdown_percent=None,
    saving_percent=None,
    saved_j=None,
)


def report(*versions: VersionSavings, **changes: object) -> JobReport:
    view = JobReport(
        job_id="walk",
        emulated=False,
        num_ranks=2,
        num_steps=480,
        time_s=412.8,
        energy_j=214_310.0,
        saved_j=estimate(3250.0, 150.0),
        profiling_time_s=None,
        profiling_energy_j=None,
        versions=versions or (INTERLEAVED,),
    )
    return replace(view, **changes)  # type: ignore[arg-type]  # a test's own choice


def rows(text: str) -> dict[tuple[str, str], str]:
    """The table's lines by what they are and where they come from; of one version."""
    found: dict[tuple[str, str], str] = {}
    for line in text.splitlines():
        for name in ("highest clocks", "plan", "difference"):
            for origin in ("measured (emulated)", "measured", "predicted"):
                start = line.replace("| ", "", 1).replace(" | ", "  ", 1)
                if start.startswith(name) and f"  {origin} " in start + " ":
                    found.setdefault((name, origin), line)
    return found


def test_measured_and_predicted_stand_beside_each_other_and_are_called_so() -> None:
    table = rows(report_as_text(report(), NO_FACTORS))
    assert set(table) == {
        ("highest clocks", "measured"),
        ("plan", "measured"),
        ("plan", "predicted"),
        ("difference", "measured"),
        ("difference", "predicted"),
    }
    assert table["plan", "measured"].split()[2:] == [
        *("0.8613", "[0.8606,", "0.8620]"),
        *("444.30", "[442.10,", "446.50]", "60"),
    ]
    assert table["plan", "predicted"].split()[2:] == ["0.8600", "442.90"]
    assert "+0.10 % [+0.01, +0.19]" in table["difference", "measured"]
    assert "saves 10.87 % [10.36, 11.38]" in table["difference", "measured"]
    assert "saves 11.10 %" in table["difference", "predicted"]


def test_ranks_that_set_no_clocks_are_named_above_the_figures() -> None:
    line = "rank 1 sets no clocks: a reason"
    view = report(notes=(line,))
    for text in (report_as_text(view, NO_FACTORS), report_as_markdown(view, NO_FACTORS)):
        head, _, _ = text.partition("Version 2")
        assert line in head


def test_energies_of_modules_are_called_so() -> None:
    of_gpus, of_modules = (
        report_as_text(report(energy_scope=scope), NO_FACTORS)
        for scope in (None, EnergyScope.MODULE)
    )
    assert "Energy is that of the GPUs, without hosts" in of_gpus
    assert "Energy is that of whole modules, with their CPUs" in of_modules


def test_an_order_that_would_save_more_is_a_line_above_the_figures() -> None:
    advice = OrderAdvice(
        schedule="envpipe",
        instead_of="1f1b",
        saving_percent=6.84,
        most_held=7,
        most_held_now=4,
        line='attach(..., schedule="envpipe", p2p="pulled", extra_forwards=[3,2,1,0])',
    )
    expected = (
        "order envpipe would need 6.8 % less energy than the job's own, 1f1b, predicted at the same"
        " target, with activations of 7 microbatches on a stage instead of 4; to run it from the"
        f" next start on: {advice.line}"
    )
    assert expected in report_as_text(report(order_advice=advice), NO_FACTORS).splitlines()
    assert f"- {expected}" in report_as_markdown(report(order_advice=advice), NO_FACTORS)


def test_what_did_not_run_as_planned_stands_below_the_figures_it_is_in() -> None:
    overruns = Deviation(
        kind=DeviationKind.OVERRUN,
        num_steps=50,
        num_events=598,
        is_counted=True,
        text="598 overruns in 50 of 50 counted steps: ...",
    )
    default = replace(overruns, kind=DeviationKind.DEFAULT_CLOCKS, text="12 steps ran at default")
    disturbed = report(
        replace(INTERLEAVED, deviations=(overruns,)), deviations=(default,), num_unknown_steps=3
    )
    unknown = "not counted: 3 steps on plan versions that the planner's database does not have"
    for printed in (report_as_text, report_as_markdown):
        lines = printed(disturbed, NO_FACTORS).splitlines()
        assert lines.count(overruns.text) == 1
        head = next(at for at, line in enumerate(lines) if "Version 2" in line)
        assert lines.index(overruns.text) > head
        assert any(default.text in line for line in lines[:head])
        assert any(unknown in line for line in lines)
        assert "not counted" not in printed(report(), NO_FACTORS)


def test_a_real_gpu_is_never_called_emulated_and_an_emulated_one_always() -> None:
    for printed in (report_as_text, report_as_markdown):
        assert "emulated" not in printed(report(), BOTH)
        text = printed(report(emulated=True), BOTH)
        assert "no figure here is a real GPU's" in text
        assert "2 emulated GPUs" in text
        assert text.count("measured") == text.count("measured (emulated)")


def test_markdown_has_the_same_figures_in_tables() -> None:
    plain = rows(report_as_text(report(), BOTH))
    text = report_as_markdown(report(), BOTH)
    table = rows(text)
    assert set(table) == set(plain)
    for name, line in plain.items():
        assert table[name].replace("|", " ").split() == line.split()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {6}
    assert lines[1] == "| --- | --- | --- | --- | --- |"


def test_without_a_baseline_or_with_one_measured_apart_it_says_how_to_measure_one() -> None:
    text = report_as_text(report(WITHOUT_BASELINE, saved_j=None), BOTH)
    assert "the saving is not known" in text
    assert "`flyball report walk --compare 60`" in text
    assert "aved in" not in text
    assert "saved by" not in text
    assert ("difference", "measured") not in rows(text)
    assert ("difference", "predicted") in rows(text)
    caveat = "The baseline is of another time."
    apart = replace(INTERLEAVED, baseline=BaselineOrigin.APART, caveats=(caveat,))
    text = report_as_text(report(apart), NO_FACTORS)
    assert f"{caveat} `flyball report walk --compare 60`" in text
    both = report_as_text(report(apart, INTERLEAVED), NO_FACTORS)
    assert caveat in both
    assert "--compare" not in both


@pytest.mark.parametrize("is_measured", [True, False])
def test_the_headline_and_its_caveats_come_first(is_measured: bool) -> None:
    headline = Headline(
        text="9.0 % less energy at 1.0 % more time",
        time_text="at 1.0 % more time",
        tone=HeadlineTone.TRADE,
        is_measured=is_measured,
        caveats=("The baseline is of other GPUs.",),
    )
    how = "measured (emulated)" if is_measured else "predicted"
    text = report_as_text(report(headline=headline, emulated=True), NO_FACTORS)
    assert text.splitlines()[1:3] == [f"{headline.text}, {how}", *headline.caveats]


def test_cost_and_co2_come_from_the_factors_that_are_given_and_only_then() -> None:
    text = report_as_text(report(), BOTH)
    assert "214.3 kJ, 0.05953 kWh, 0.01786 CHF, 22.62 g CO2" in text
    assert amounts_text(3.6e7, BOTH) == "36 MJ, 10 kWh, 3 CHF, 3.8 kg CO2"
    for word in ("CHF", "EUR", "CO2"):
        assert word not in report_as_text(report(), NO_FACTORS)


@pytest.mark.parametrize(
    ("version", "changes", "phrases"),
    [
        (
            replace(INTERLEAVED, time_s=estimate(0.9, None, 1), saved_j=estimate(54, None, 1)),
            {},
            ("0.9000 [too few steps]", "54 J, 1.5e-05 kWh [too few steps]."),
        ),
        (
            replace(INTERLEAVED, energy_j=None, saving_percent=None, saved_j=None),
            {"energy_j": None, "saved_j": None},
            ("energy not known: a rank could not read it", "0.8620]  not known"),
        ),
        (
            INTERLEAVED,
            {"profiling_time_s": 9.4, "profiling_energy_j": -812.0, "emulated": True},
            ("profiling added, measured (emulated): 9.4 s, -812 J", "(emulated): 3250 J"),
        ),
        (
            INTERLEAVED,
            {"profiling_time_s": 9.4},
            ("profiling added, measured: 9.4 s, energy not known",),
        ),
    ],
    ids=["too few steps", "no energy", "profiling", "profiling without energy"],
)
def test_figures_that_are_missing_or_apart_are_named(
    version: VersionSavings, changes: dict[str, object], phrases: tuple[str, ...]
) -> None:
    text = report_as_text(report(version, **changes), NO_FACTORS)
    assert [phrase for phrase in phrases if phrase not in text] == []


def view(state: ComparisonState, num_measured: int, version: int | None = 2) -> ComparisonStatus:
    return ComparisonStatus(
        state=state, version=version, num_pairs=60, num_measured_pairs=num_measured
    )


class Waiting:
    """A planner that gives these answers in turn, the last one for ever, and a clock.

    An answer that is a number is an HTTP status.
    """

    def __init__(self, *answers: ComparisonStatus | int) -> None:
        self.answers: Iterator[ComparisonStatus | int] = iter(answers)
        self.last: ComparisonStatus | int = answers[-1]
        self.bodies: list[object] = []
        self.now_s = 100.0
        self.state = JobState.PLANNED

    def handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/api/v1/jobs/walk":
            return httpx.Response(200, json=encode(self._job()))
        assert request.url.path == "/api/v1/jobs/walk/comparison"
        self.bodies.append(json.loads(request.content or b"null"))
        answer = next(self.answers, self.last)
        if isinstance(answer, int):
            return httpx.Response(answer, json={"detail": "no", "errors": []})
        return httpx.Response(200, json=encode(answer))

    def _job(self) -> JobView:
        return JobView(
            job_id="walk",
            state=self.state,
            registration=JobRegistration(num_stages=2, num_microbatches=2),
            ranks=(),
            newest_version=2,
            active_version=2,
            problem=None,
            created_at="2026-11-21T12:00:00+00:00",
        )

    def sleep(self, pause_s: float) -> None:
        assert 0 < pause_s <= 1
        self.now_s += pause_s

    def wait(self, timeout_s: float = 1000.0) -> str | None:
        with PlannerClient(
            "http://planner.test",
            transport=httpx.MockTransport(self.handle),
            retries=Retries(num_attempts=1),
        ) as planner:
            return wait_for_comparison(
                planner,
                "walk",
                60,
                timeout_s=timeout_s,
                now_s=lambda: self.now_s,
                sleep=self.sleep,
            )


def test_it_waits_until_the_comparison_is_over_also_without_the_planner() -> None:
    waiting = Waiting(
        view(ComparisonState.RUNNING, 0, None),
        503,
        503,
        view(ComparisonState.RUNNING, 30),
        view(ComparisonState.DONE, 61),
    )
    assert waiting.wait() is None
    assert waiting.bodies == [{"num_pairs": 60}, *4 * [None]]


def test_it_does_not_wait_for_a_training_that_is_over() -> None:
    waiting = Waiting(view(ComparisonState.RUNNING, 7))
    waiting.state = JobState.ENDED
    assert waiting.wait() == "the training is over, 7 of 60 pairs were measured"
    assert waiting.now_s == 101.0


def test_it_waits_no_longer_than_asked() -> None:
    waiting = Waiting(view(ComparisonState.RUNNING, 7))
    assert waiting.wait(timeout_s=2.5) == (
        "not over after 2.5 s, 7 of 60 pairs were measured; the comparison continues;"
        " `flyball report walk` shows its measurements"
    )
    assert waiting.now_s == 102.5


def test_one_that_another_plan_has_ended_is_told() -> None:
    problem = Waiting(view(ComparisonState.RUNNING, 7), view(ComparisonState.ENDED, 12)).wait()
    assert problem is not None
    assert problem.startswith("the comparison ended early, 12 of 60 pairs")

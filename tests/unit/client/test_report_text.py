"""`flyball report`: its text, with the origin of every figure, and its wait for a comparison."""

from __future__ import annotations

import json
import re
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
from flyball_wire.closed_loop import ComparisonState, ComparisonStatus
from flyball_wire.codec import encode
from flyball_wire.energy_factors import EnergyFactors
from flyball_wire.messages import JobRegistration, JobState, JobView
from flyball_wire.orders import OrderAdvice
from flyball_wire.savings import (
    BaselineOrigin,
    Deviation,
    DeviationKind,
    Estimate,
    Headline,
    HeadlineTone,
    JobReport,
    VersionSavings,
)

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


def rows(text: str) -> dict[str, list[str]]:
    """The table's cells by each row's name."""
    found = [
        re.split(r" {2,}", line.strip(" |").replace(" | ", "  ")) for line in text.splitlines()
    ]
    return {cells[0]: cells[1:] for cells in found if len(cells) > 2}


OF_PLAN = "v2 (frontier, fastest), measured"


def test_measured_and_predicted_stand_beside_each_other_and_are_called_so() -> None:
    table = rows(report_as_text(report(), NO_FACTORS))
    assert table["highest clocks, measured"] == ["61", "0.8604", "498.50"]
    changes = ["+0.10 [+0.01, +0.19]", "10.87 [10.36, 11.38]"]
    assert table[OF_PLAN] == ["60", "0.8613", "444.30", *changes]
    assert table["v2, predicted"] == ["0.8600", "442.90", "11.10"]


HEADLINE = Headline(
    text="9.0 % less energy at 1.0 % more time",
    time_text="at 1.0 % more time",
    tone=HeadlineTone.TRADE,
    is_measured=True,
    caveats=("The baseline is of other GPUs.", "Another."),
)


@pytest.mark.parametrize(
    ("headline", "verdict"),
    [
        (HEADLINE, f"walk: {HEADLINE.text}, measured on 2 emulated GPUs"),
        (
            replace(HEADLINE, is_measured=False),
            f"walk: {HEADLINE.text}, predicted for a job on 2 emulated GPUs",
        ),
        (None, "walk: no saving yet, on 2 emulated GPUs"),
    ],
)
def test_the_verdict_comes_first_and_then_one_table(
    headline: Headline | None, verdict: str
) -> None:
    lines = report_as_text(report(headline=headline, emulated=True), NO_FACTORS).splitlines()
    assert lines[:2] == [verdict, ""]
    assert [line.split()[0] for line in lines[2:6]] == ["steps", "highest", "v2", "v2,"]
    assert lines[6] == ""
    empty = replace(report(headline=headline, emulated=True), versions=())
    assert report_as_text(empty, NO_FACTORS).splitlines()[2].startswith("All 480 steps")


def versions(number: int) -> list[VersionSavings]:
    return [replace(INTERLEAVED, version=version) for version in range(1, number + 1)]


def test_a_baseline_stands_once_and_the_newest_versions_are_shown() -> None:
    text = report_as_text(report(*versions(5)), NO_FACTORS)
    assert [name.split()[0] for name in rows(text) if "frontier" in name] == ["v3", "v4", "v5"]
    whole = report_as_text(report(*versions(5)), NO_FACTORS, all_notes=True)
    assert whole.count("highest clocks") == 1
    assert len([name for name in rows(whole) if "frontier" in name]) == 5


def deviation(kind: DeviationKind, text: str) -> Deviation:
    return Deviation(kind=kind, num_steps=3, num_events=3, is_counted=True, text=text)


NOTED = report(
    replace(INTERLEAVED, version=1, caveats=("Of another time.",)),
    replace(
        INTERLEAVED,
        baseline=BaselineOrigin.APART,
        caveats=HEADLINE.caveats,
        deviations=(
            deviation(DeviationKind.OVERRUN, "Overruns."),
            deviation(DeviationKind.UNSETTLED, "1 step left out."),
        ),
    ),
    headline=HEADLINE,
    notes=("rank 1 sets no clocks: a reason",),
    num_profiling_steps=150,
    profiling_time_s=9.4,
    profiling_energy_j=-812.0,
    deviations=(deviation(DeviationKind.DEFAULT_CLOCKS, "12 steps ran at default clocks."),),
    num_unknown_steps=3,
)
SENTENCES = [
    "Rank 1 sets no clocks: a reason.",
    "The baseline is of other GPUs. `flyball report walk --compare 60` measures plan and baseline"
    " in turn.",
    "150 steps were profiling, which added 9.4 s and -812 J.",
    "Another.",
    "Overruns.",
    "12 steps ran at default clocks.",
    "1 step left out.",
    "3 steps on plans that the planner's database does not have are left out: it was restored to an"
    " older state.",
    "Version 1: Of another time.",
]


def test_notes_are_sentences_and_the_two_that_matter_most_are_shown_unasked() -> None:
    more = "7 more notes: flyball report walk --notes"
    assert report_as_text(NOTED, NO_FACTORS).splitlines()[-3:] == [*SENTENCES[:2], more]
    assert report_as_text(NOTED, NO_FACTORS, all_notes=True).splitlines()[-9:] == SENTENCES
    markdown = report_as_markdown(NOTED, NO_FACTORS, all_notes=True).splitlines()
    assert markdown[-9:] == [f"- {sentence}" for sentence in SENTENCES]
    assert "more note" not in report_as_text(report(notes=("a", "b")), NO_FACTORS)


ADVICE = OrderAdvice(
    schedule="envpipe",
    instead_of="1f1b",
    saving_percent=6.84,
    most_held=7,
    most_held_now=4,
    line='attach(..., schedule="envpipe", p2p="pulled", extra_forwards=[3,2,1,0])',
)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"num_profiling_steps": 1}, "1 step was profiling; what they cost was not measured."),
        (
            {"num_profiling_steps": 9, "profiling_time_s": 9.4},
            "9 steps were profiling, which added 9.4 s.",
        ),
        ({}, "Energies are of the GPUs alone."),
        ({"energy_scope": EnergyScope.MODULE}, "Energies are of whole modules, with their CPUs"),
        (
            {"order_advice": ADVICE},
            "Schedule envpipe would need 6.8 % less energy than 1f1b at the same target"
            " (predicted), with activations of 7 microbatches on a stage in place of 4; to run it"
            f" from the next start on: {ADVICE.line}",
        ),
    ],
)
def test_a_note_says_what_was_found(changes: dict[str, object], note: str) -> None:
    assert note in report_as_text(report(**changes), NO_FACTORS)
    assert "profiling" not in report_as_text(report(), NO_FACTORS)


def test_a_real_gpu_is_never_called_emulated_and_an_emulated_one_always() -> None:
    for printed in (report_as_text, report_as_markdown):
        assert "emulated" not in printed(report(headline=HEADLINE), BOTH)
        text = printed(report(emulated=True, headline=HEADLINE), BOTH)
        assert "no figure here is a real GPU's" in text
        called = text.count("measured (emulated)") + text.count("measured on 2 emulated GPUs")
        assert text.count("measured") - text.count("measures") == called


def test_markdown_has_the_same_figures_in_a_table() -> None:
    text = report_as_markdown(report(), BOTH)
    for name, cells in rows(report_as_text(report(), BOTH)).items():
        assert rows(text)[name] == cells
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {7}
    assert lines[1] == "| --- | --- | --- | --- | --- | --- |"


def test_without_a_baseline_it_says_how_to_measure_one() -> None:
    text = report_as_text(report(WITHOUT_BASELINE, saved_j=None), BOTH)
    assert "`flyball report walk --compare 60` measures the saving." in text.splitlines()
    assert "Saved" not in text
    assert rows(text)[OF_PLAN] == ["60", "0.8613", "444.30", "not known", "not known"]
    assert rows(text)["v2, predicted"][-1] == "11.10"
    assert "--compare" not in report_as_text(report(), NO_FACTORS)


def test_a_saving_whose_interval_includes_zero_is_no_measurable_amount() -> None:
    text = report_as_text(report(saved_j=estimate(3250.0, 4000.0), saved_of_j=32_500.0), BOTH)
    assert "Saved so far: no measurable amount [-750 J, 7250 J], measured." in text.splitlines()


def test_cost_and_co2_come_from_the_factors_that_are_given_and_only_then() -> None:
    text = report_as_text(report(saved_of_j=32_500.0), BOTH)
    assert "All 480 steps: 412.8 s, 214.3 kJ, 0.05953 kWh, 0.01786 CHF, 22.62 g CO2, meas" in text
    assert "Saved so far: 10.0 %, 3250 J [3100 J, 3400 J], 0.0009028 kWh, 0.0002708 CHF" in text
    assert amounts_text(3.6e7, BOTH) == "36 MJ, 10 kWh, 3 CHF, 3.8 kg CO2"
    for word in ("CHF", "EUR", "CO2"):
        assert word not in report_as_text(report(), NO_FACTORS)


@pytest.mark.parametrize(
    ("version", "changes", "phrases"),
    [
        (
            replace(INTERLEAVED, slowdown_percent=estimate(0.1, None, 1)),
            {"saved_j": estimate(54, None, 1)},
            ("+0.10 [too few steps]", "54 J [too few steps], 1.5e-05 kWh, measured."),
        ),
        (
            replace(INTERLEAVED, energy_j=None, saving_percent=None, saved_j=None),
            {"energy_j": None, "saved_j": None},
            ("412.8 s, an energy that a rank could not read", "0.8613  not known"),
        ),
    ],
    ids=["too few steps", "no energy"],
)
def test_figures_that_are_missing_are_named(
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

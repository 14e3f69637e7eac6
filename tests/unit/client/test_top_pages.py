"""`flyball top`'s pages as text: figures with their origin, widths, and nothing mixed up."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.planner.jobs_to_show import (
    HISTORY,
    NEW,
    NUM_STAGES,
    PLANNED,
    READING,
    STEPS,
    STRAGGLER,
    stages_of_step,
)

from flyball_client.api.errors import PlannerError, PlannerRefusedError, PlannerUnavailableError
from flyball_client.cli.top.lines import (
    ASCII,
    Page,
    Paper,
    clipped,
    plain_text,
    target_text,
)
from flyball_client.cli.top.pages import job_page, jobs_page, page_of
from flyball_client.cli.top.reading import JobReading, Seen
from flyball_client.cli.top.stages import newest_window, whole_steps
from flyball_wire.closed_loop import StragglerReason, StragglerSource
from flyball_wire.messages import JobState
from flyball_wire.read_models import JobOverview, Overview

NOW = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
ENDED = replace(PLANNED, job_id="a-ended", state=JobState.ENDED, num_present=0)
REAL = replace(PLANNED, job_id="real", emulated=False)


def paper(width: int = 120) -> Paper:
    return Paper(now=NOW, width=width)


def text_of(page: Page) -> str:
    return "\n".join(map(plain_text, (*page.head, *page.body)))


def jobs_text(*jobs: JobOverview, width: int = 120) -> str:
    return text_of(jobs_page(Overview(jobs=jobs), "read 09:30:00", paper(width)))


def job_text(reading: JobReading = READING, *, width: int = 120) -> str:
    return text_of(job_page(reading, "read 09:30:00", paper(width)))


# ------------------------------------------------------------------ figures of a job


def test_a_job_has_its_figures_with_their_origin() -> None:
    rows = {" ".join(line.split()) for line in job_text(width=60).translate(ASCII).splitlines()}
    assert rows >= {
        "4 of 4 emulated GPUs present 4 stages, 12 microbatches",
        "1f1b frontier, target fastest version 2 active",
        "40 steps last heartbeat 3 s ago read 09:30:00",
        "plan, version 2 measured (emulated) 2.0100 1620.0",
        "highest clocks measured (emulated) 2.0000 2010.0",
        "difference measured (emulated) +0.50 % saves 19.40 %",
        "plan, version 2 predicted 2.0000 1600.0",
        "highest clocks predicted 2.0000 2000.0",
        "difference predicted +0.00 % saves 20.00 %",
        "saved so far, measured (emulated): 7800 J [7500 J, 8100 J]",
        "steps 25 to 39, measured (emulated)",
        "iteration time, s ,-==+,-==+,-==+ 2.0100 to 2.0180",
        "clocks held down P H P power, H heat, M other",
        "stages in steps 20 to 39, on version 2",
        "0 1410 1410 2.0000 200.0 0 0",
        "1 1305 1295 2.0000 175.0 2 2",
        "3 1155 - 2.0000 125.0 2 0",
        "rank 3 1.25 times as long (power) detected from 09:20:00",
        "*2 plan frontier 20 2.0000 20.00",
        "1 plan baseline 0 2.0000 20.00",
    }


# ------------------------------------------------------------------ nothing is mixed up


def test_what_is_emulated_is_called_so_and_what_is_not_is_not() -> None:
    assert "emulated" not in jobs_text(REAL, NEW)
    assert "emulated" not in job_text(replace(READING, overview=REAL))
    for width in (60, 80, 120):
        assert "emulated GPUs: no figure here is a real GPU's" in jobs_text(PLANNED, width=width)
        assert "emulated GPUs present" in job_text(width=width)


def test_emulated_and_real_jobs_are_never_added_up_nor_the_power_of_absent_ranks() -> None:
    silent = replace(REAL, job_id="silent", num_present=0)
    lines = jobs_text(PLANNED, REAL, silent, ENDED).splitlines()
    totals = [line for line in lines if "present" in line]
    assert totals[0].startswith("GPUs   2 jobs   4 of 8 GPUs present   806 W measured   15.6 kJ")
    assert totals[1].startswith("emulated GPUs")
    assert "2 jobs, 1 over   4 of 4 emulated" in totals[1]
    assert " W measured" not in jobs_text(silent)


def test_a_job_without_steps_has_its_prediction_and_no_measured_figure() -> None:
    planned = replace(NEW, predicted=PLANNED.predicted, newest_version=1, state=JobState.PLANNED)
    empty = job_text(JobReading(overview=NEW, steps=(), history=(), stragglers=()))
    assert "5 of 8 GPUs present, 6 registered" in empty
    assert "no plan yet" in empty
    text = job_text(JobReading(overview=planned, steps=(), history=HISTORY[:1], stragglers=()))
    assert "plan, version 1  predicted" in text
    assert "version 1 waits for its ranks" in text
    assert "measured" not in text
    row = jobs_text(planned).splitlines()[-1]
    assert row.split()[3:] == ["1", "waits", *"------", "2.0000", "20.00", "0.12"]


def test_jobs_keep_their_places_whichever_had_the_last_heartbeat() -> None:
    texts = [jobs_text(*order) for order in ((PLANNED, ENDED, REAL), (REAL, ENDED, PLANNED))]
    assert texts[0] == texts[1]
    names = [line.split()[0] for line in texts[0].splitlines() if "/4" in line]
    assert names == ["real", "gpt3-night", "a-ended"]
    figures = ["planned", "4/4", "2", "plan", "2.0100", "1620.0", "+0.50", "19.40", "[18.90,"]
    row = next(line for line in texts[0].splitlines() if line.startswith("gpt3-night"))
    assert row.split()[1:10] == figures
    assert row.split()[-3:] == ["7800", "J", "20.00"]


# ------------------------------------------------------------------ widths


@pytest.mark.parametrize("width", [20, 60, 100, 250])
def test_no_line_of_a_page_is_wider_than_the_terminal(width: int) -> None:
    long_name = replace(PLANNED, job_id="j" * 128)
    pages = (
        jobs_page(Overview(jobs=(long_name, NEW)), "read 09:30:00", paper(width)),
        job_page(replace(READING, overview=long_name), "read 09:30:00", paper(width)),
    )
    for page in pages:
        lines = [plain_text(clipped(line, width)) for line in (*page.head, *page.body)]
        assert max(map(len, lines)) <= width


def test_hostile_text_is_drawn_as_question_marks() -> None:
    evil = replace(PLANNED, job_id="\x1b[2J", schedule="\u202e\x07", policy="\n", problem="\r\x00")
    text = job_text(replace(READING, overview=evil))
    assert set(text) - {*map(chr, ASCII), "\n"} <= set(map(chr, range(32, 127)))
    assert "?[2J" in text


# ------------------------------------------------------------------ figures


def test_a_stage_is_the_mean_of_the_steps_that_the_planner_took_its_mean_of() -> None:
    """On the plan stage 1 takes 350 J in 2 s, before 450 J."""
    window = newest_window(PLANNED.measured, STEPS)
    assert window is not None
    assert (window.first_step, window.last_step) == (20, 39)
    assert [stage.power_w for stage in window.stages] == [200.0, 175.0, 150.0, 125.0]
    assert window.stages[1].powers_w[:1] == (225.0,)
    assert [stage.num_clock_misses for stage in window.stages] == [0, 2, 0, 2]
    assert [stage.num_thermally_capped for stage in window.stages] == [0, 0, 0, 1]
    # 1305 MHz in nineteen steps, 1110 in one.
    assert [stage.sm_clock_mhz for stage in window.stages] == [1410.0, 1295.25, 1215.0, None]


def test_without_the_planners_mean_it_is_the_newest_steps_of_one_version() -> None:
    window = newest_window(None, STEPS[:25])
    assert window is not None
    assert (window.first_step, window.last_step, window.version) == (20, 24, 2)
    assert newest_window(None, ()) is None
    # A step that ran on several versions is of none.
    mixed = [replace(STEPS[step], plan_versions=(1, 2)) for step in (19, 24)]
    window = newest_window(None, (*STEPS[17:19], mixed[0], *STEPS[20:24], mixed[1]))
    assert window is not None
    assert (window.first_step, window.last_step) == (20, 23)
    assert newest_window(None, mixed) is None


def test_a_step_that_lacks_ranks_does_not_count() -> None:
    steps = (*STEPS[:3], stages_of_step(3, num_ranks=2))
    assert [step.step for step in whole_steps(steps, NUM_STAGES)] == [0, 1, 2]
    text = job_text(replace(READING, steps=steps))
    assert "steps 0 to 2, measured" in text


def test_a_stage_whose_energy_is_not_known_has_no_power() -> None:
    stages = tuple(replace(stage, energy_j=None) for stage in STEPS[30].stages)
    steps = (*STEPS[20:30], replace(STEPS[30], stages=stages, energy_j=None))
    window = newest_window(PLANNED.measured, steps)
    assert window is not None
    assert window.stages[0].power_w is None
    assert window.stages[0].powers_w == (200.0,) * 10 + (None,)
    assert "  -  " in job_text(replace(READING, steps=steps))


def test_an_announced_straggler_says_from_when_to_when() -> None:
    announced = replace(
        STRAGGLER,
        source=StragglerSource.ANNOUNCED,
        reason=StragglerReason.SLOW,
        until_time="2026-01-06T09:20:00+00:00",
        is_planned=False,
    )
    text = job_text(replace(READING, stragglers=(announced, announced)))
    assert "2 stragglers" in text
    assert "announced from 09:20:00 to 2026-01-06 09:20   not in the plan yet" in text


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("fastest", "fastest"),
        ("deadline:2.8837280000000014", "deadline 2.88373 s"),
        ("slowdown:0.055", "slowdown 5.5 %"),
        ("slowdown:5.5%", "slowdown 5.5 %"),
        ("power:1250000", "power 1250000 W"),
        ("power:\x1b[2J", "power:?[2J"),
        ("later:1", "later:1"),
    ],
)
def test_a_target_is_shown_with_the_digits_that_count_and_its_unit(target: str, shown: str) -> None:
    assert target_text(target) == shown


# ------------------------------------------------------------------ trouble


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PlannerUnavailableError("it cannot be reached"), "planner away since 09:29:18 (42 s);"),
        (PlannerRefusedError("it refused", status=404), "refused since 09:29:18 (42 s);"),
    ],
)
def test_old_figures_are_never_shown_without_saying_so(error: PlannerError, said: str) -> None:
    seen = Seen(
        reading=Overview(jobs=(PLANNED,)),
        read_at=datetime(2026, 1, 5, 9, 29, 16, tzinfo=UTC),
        trouble=error,
        trouble_since=datetime(2026, 1, 5, 9, 29, 18, tzinfo=UTC),
    )
    text = text_of(page_of(seen, "http://planner:7787", paper()))
    assert text.startswith(f"{said} all figures are of 09:29:16. {error}\nall jobs")

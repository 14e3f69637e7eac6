"""`flyball top`: its requests, and its pages as text, with the origin of every figure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

import httpx
import pytest
from tests.planner.jobs_to_show import (
    HISTORY,
    NEW,
    PLANNED,
    READING,
    STEPS,
    STRAGGLER,
    stages_of_step,
)
from tests.planner.pretended_planner import Answers, answer_of, answers_about

from flyball_client.api.errors import (
    PlannerBusyError,
    PlannerError,
    PlannerRefusedError,
    PlannerUnavailableError,
)
from flyball_client.api.planner_client import PlannerClient
from flyball_client.cli.figures import UNKNOWN, power_text
from flyball_client.cli.top.blocks import ASCII
from flyball_client.cli.top.pages import page_of
from flyball_client.cli.top.reading import KEPT_STEPS, FollowedJob, Seen, read_again, read_job
from flyball_wire import routes
from flyball_wire.closed_loop import StragglerReason, StragglerSource
from flyball_wire.codec import encode
from flyball_wire.messages import JobState
from flyball_wire.read_models import JobOverview, Overview, StagesOfStep
from flyball_wire.savings import Estimate

NOW = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
ENDED = replace(PLANNED, job_id="a-ended", state=JobState.ENDED, num_present=0)
REAL = replace(PLANNED, job_id="real", emulated=False)
UNSURE = Estimate(mean=0.2, low=-0.1, high=0.5, num_steps=40)


def text_of(seen: Seen, width: int = 200) -> str:
    return page_of(seen, "http://planner:7787", NOW, width).text(width)


def jobs_text(*jobs: JobOverview, width: int = 200) -> str:
    return text_of(Seen(reading=Overview(jobs=jobs), read_at=NOW), width)


def job_text(reading: FollowedJob = READING, *, width: int = 200) -> str:
    return text_of(Seen(reading=reading, read_at=NOW), width)


def words_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def stage_rows(text: str) -> list[list[str]]:
    """The rows of the stages' table."""
    lines = text[text.index("stages in steps") :].splitlines()
    return [line.split() for line in lines[3 : lines.index("", 3)]]


# ------------------------------------------------------------------ figures of a job


def test_a_job_has_its_figures_with_their_origin() -> None:
    rows = {" ".join(line.split()) for line in job_text().translate(ASCII).splitlines()}
    assert rows >= {
        "gpt3-night planned 1 straggler 4 of 4 emulated GPUs present 4 stages, 12 microbatches 1f1b"
        " frontier, target fastest version 2 active 40 steps last heartbeat 3 s ago read 09:30:00",
        "emulated plan, version 2 19.40 +0.50 2.0100 1620.0 2.0000 2010.0 [18.90, 19.90]"
        " [+0.25, +0.75]",
        "predicted plan, version 2 20.00 +0.00 2.0000 1600.0 2.0000 2000.0",
        "saved so far, measured (emulated): 7800 J [7500 J, 8100 J]",
        "steps 0 to 39, measured (emulated)",
        "iteration time, s 2.0000 to 2.0180 _.,,-_.,,-_.,,-_.,,-=++*#=++*#=++*#=++*#",
        "clocks held down P power, H heat, M other P H",
        "stages in steps 20 to 39, on version 2",
        f"0 1410 1410 2.0000 200.0 0 0 0 {'#' * 4}{'_' * 20}",
        f"1 1305 1295 2.0000 175.0 2 2 0 {'#' * 4}{'_' * 20}",
        f"3 1155 - 2.0000 125.0 2 0 1 {'#' * 4}{'_' * 20}",
        "rank 3 1.25 times as long (power) detected from 09:20:00 in the plan",
        "*2 plan 20 20.00 +0.00 2.0000 1600.0 0.12 frontier fastest 09:02:00",
        "1 plan 0 20.00 +0.00 2.0000 1600.0 0.12 baseline fastest 09:01:00",
    }


# ------------------------------------------------------------------ nothing is mixed up


def test_what_is_emulated_is_called_so_and_what_is_not_is_not() -> None:
    assert "emulated" not in jobs_text(REAL, NEW)
    assert "emulated" not in job_text(replace(READING, overview=REAL))
    for width in (60, 80, 120):
        assert "emulated GPUs: no figure here is a real GPU's" in jobs_text(PLANNED, width=width)
        assert "4 of 4 emulated GPUs" in job_text(width=width)


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
    empty = job_text(FollowedJob(overview=NEW, steps=(), history=(), stragglers=()))
    assert "5 of 8 GPUs present, 6 registered" in empty
    assert "no plan yet" in empty
    text = job_text(FollowedJob(overview=planned, steps=(), history=HISTORY[:1], stragglers=()))
    assert "predicted  plan, version 1" in text
    assert "version 1 waits for its ranks" in text
    assert "measured" not in text
    heading, row = jobs_text(planned).splitlines()[-2:]
    assert "energy at" not in heading
    assert row.split()[3:10] == ["20.00", "+0.00", "2.0000", "1600.0", "0.12", "1", "waits"]


def test_jobs_keep_their_places_whichever_had_the_last_heartbeat() -> None:
    texts = [jobs_text(*order) for order in ((PLANNED, ENDED, REAL), (REAL, ENDED, PLANNED))]
    assert texts[0] == texts[1]
    names = [line.split()[0] for line in texts[0].splitlines() if "/4" in line]
    assert names == ["real", "gpt3-night", "a-ended"]
    row = next(row for row in words_of(texts[0]) if row[:1] == ["gpt3-night"])
    assert row[1:9] == ["planned", "4/4", "19.40", "+0.50", "2.0100", "1620.0", "7800", "J"]
    assert " ".join(row[9:]) == "20.00 +0.00 2.0000 1600.0 0.12 2 plan [18.90, 19.90] 3 s ago"


def test_a_change_whose_interval_includes_zero_is_not_shown_as_one() -> None:
    unsure = replace(PLANNED, job_id="unsure", saving_percent=UNSURE, slowdown_percent=UNSURE)
    row = next(row for row in words_of(jobs_text(PLANNED, unsure)) if row[:1] == ["unsure"])
    assert row[3:6] == [UNKNOWN, UNKNOWN, "2.0100"]


# ------------------------------------------------------------------ widths


@pytest.mark.parametrize("width", [20, 60, 100, 250])
def test_no_line_of_a_page_is_wider_than_the_terminal(width: int) -> None:
    long_name = replace(PLANNED, job_id="j" * 128)
    for text in (
        jobs_text(long_name, NEW, width=width),
        job_text(replace(READING, overview=long_name), width=width),
    ):
        assert max(map(len, text.splitlines())) <= width


def test_a_narrow_terminal_keeps_the_first_columns_and_the_newest_steps() -> None:
    wide, narrow = (job_text(width=width) for width in (120, 60))
    assert [row[:6] for row in stage_rows(wide)] == stage_rows(narrow)
    assert "steps 28 to 39, measured" in narrow
    for text in ("saving, %", "emulated   plan, version 2      19.40      +0.50"):
        assert text in narrow


def test_hostile_text_is_drawn_as_question_marks() -> None:
    evil = replace(PLANNED, job_id="\x1b[2J", schedule="\u202e\x07", policy="\n", problem="\r\x00")
    text = job_text(replace(READING, overview=replace(evil, last_seen_at="\x1b[2J")))
    assert set(text) - {*map(chr, ASCII), "\n"} <= set(map(chr, range(32, 127)))
    assert "?[2J" in text
    assert "last heartbeat - ago" in text


# ------------------------------------------------------------------ figures


@pytest.mark.parametrize(
    ("steps", "title"),
    [
        (STEPS[:25], "stages in steps 20 to 24, on version 2"),
        # A step that ran on several versions is of none.
        (
            (
                *STEPS[17:19],
                replace(STEPS[19], plan_versions=(1, 2)),
                *STEPS[20:24],
                replace(STEPS[24], plan_versions=(1, 2)),
            ),
            "stages in steps 20 to 23, on version 2",
        ),
        (tuple(replace(step, plan_versions=(None,)) for step in STEPS), "to 39, without a plan"),
    ],
)
def test_without_the_planners_mean_it_is_the_newest_steps_of_one_version(
    steps: tuple[StagesOfStep, ...], title: str
) -> None:
    reading = replace(READING, overview=replace(PLANNED, measured=None), steps=steps)
    assert title in job_text(reading)


def test_steps_on_several_versions_alone_and_no_steps_have_no_stages() -> None:
    mixed = tuple(replace(step, plan_versions=(1, 2)) for step in STEPS)
    for steps in (mixed, ()):
        assert "stages in steps" not in job_text(replace(READING, steps=steps))


def test_a_step_that_lacks_ranks_does_not_count() -> None:
    steps = (*STEPS[:3], stages_of_step(3, num_ranks=2))
    assert "steps 0 to 2, measured" in job_text(replace(READING, steps=steps))


def test_a_stage_whose_energy_is_not_known_has_no_power() -> None:
    stages = tuple(replace(stage, energy_j=None) for stage in STEPS[30].stages)
    steps = (*STEPS[20:30], replace(STEPS[30], stages=stages, energy_j=None))
    text = job_text(replace(READING, steps=steps))
    assert stage_rows(text)[0][:7] == ["0", "1410", "1410", "2.0000", *"000"]
    # Ten equal powers, and no mark for the last.
    assert [line.rstrip()[-10:] for line in text.splitlines() if line.startswith("    0")] == [
        "▅" * 10
    ]


def test_large_amounts_have_a_unit_that_suits_them() -> None:
    assert [power_text(w) for w in (806.0, 53_100.0, 5.31e6)] == ["806 W", "53.1 kW", "5.31 MW"]


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


def test_a_target_is_shown_with_the_digits_that_count() -> None:
    for target, shown in (
        ("deadline:2.8837280000000014", "target deadline:2.88373 "),
        ("slowdown:5.5%", "target slowdown:5.5% "),
        ("power:\x1b[2J", "target power:?[2J "),
    ):
        assert shown in job_text(replace(READING, overview=replace(PLANNED, target=target)))


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
    text = text_of(seen)
    assert text.startswith(f"{said} all figures are of 09:29:16. {error}\nall jobs")


# ------------------------------------------------------------------ requests to a planner

JOB = PLANNED.job_id
STAGES = routes.fill(routes.STAGES_OF_STEPS, job_id=JOB)
MOMENT = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)


def client_of(answers: Answers) -> PlannerClient:
    def answer(request: httpx.Request) -> httpx.Response:
        address = request.url.raw_path.decode()
        answers.asked.append(address)
        status, body = answer_of(answers, address)
        return httpx.Response(status, json=encode(body))

    return PlannerClient("http://planner.test", transport=httpx.MockTransport(answer))


# ------------------------------------------------------------------ one job


def test_a_reading_of_a_job_is_what_the_planner_has() -> None:
    answers = answers_about(READING)
    planner = client_of(answers)
    assert read_job(planner, JOB) == READING
    asked = [each for each in answers.asked if "?" in each]
    assert asked == [f"{STAGES}?after_step=-1&limit={KEPT_STEPS}"]
    answers.status = 500
    with pytest.raises(PlannerUnavailableError):
        read_job(planner, JOB)


# ------------------------------------------------------------------ again and again

T = TypeVar("T")

FIRST, SECOND = Overview(jobs=()), Overview(jobs=(PLANNED,))


def given(answer: T | PlannerError) -> T:
    if isinstance(answer, PlannerError):
        raise answer
    return answer


def seen_after(*answers: Overview | PlannerError) -> Seen:
    """After a first reading and these answers, each a second later than the one before."""
    seen = Seen(reading=FIRST, read_at=MOMENT)
    for number, answer in enumerate(answers, start=1):
        moment = MOMENT + timedelta(seconds=number)
        seen = read_again(seen, partial(given, answer), partial(given, moment))
    return seen


def test_trouble_is_told_since_it_began_beside_what_was_read_before() -> None:
    away = PlannerUnavailableError("away")
    seen = seen_after(SECOND, away, away, PlannerError("other"))
    assert (seen.reading, seen.read_at) == (SECOND, MOMENT + timedelta(seconds=1))
    assert str(seen.trouble) == "other"
    assert seen.trouble_since == MOMENT + timedelta(seconds=2)


def test_a_planner_that_says_when_to_come_again_is_left_alone_until_then() -> None:
    busy = PlannerBusyError("busy", retry_after_s=3600.0)
    assert seen_after(busy).retry_after_s == 3600.0
    assert seen_after(busy, SECOND).retry_after_s == 0.0

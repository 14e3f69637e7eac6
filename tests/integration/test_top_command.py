"""`flyball top` as a process: on terminals, in pipes and during an outage of its planner."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from urllib.parse import urlsplit

import pytest
from tests.integration.command_in_process import document_of, flyball, refusal, run_apart
from tests.integration.on_a_terminal import FLYBALL, on_a_terminal
from tests.planner.jobs_to_show import NEW, PLANNED, READING
from tests.planner.live import live_planner
from tests.planner.measuring import MeasuringRanks, put_enveloped_job
from tests.planner.patience import wait_until
from tests.planner.pretended_planner import Answers, answers_about, pretended_planner

from flyball_client.__main__ import main
from flyball_client.cli.top.reading import FollowedJob
from flyball_wire import routes
from flyball_wire.codec import encode

JOB = PLANNED.job_id


@pytest.fixture
def answers() -> Answers:
    new = FollowedJob(overview=NEW, steps=(), history=(), stragglers=())
    return answers_about(READING, new)


@pytest.fixture
def planner(answers: Answers) -> Iterator[str]:
    with pretended_planner(answers) as address:
        yield address


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLYBALL_PLANNER_URL", "FLYBALL_TOKEN", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


# ------------------------------------------------------------------ printed once


def test_once_prints_a_frame_and_ends_without_an_escape_in_a_pipe(planner: str) -> None:
    coloured = {"PYTHONUTF8": "1", "FORCE_COLOR": "1", "COLORTERM": "truecolor"}
    done = run_apart("top", "--once", "--planner", planner, **coloured)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"all jobs   {planner}   read ")
    assert "\x1b" not in done.stdout
    assert any(line.startswith("llama-70b") for line in lines)
    assert max(map(len, lines)) <= 120


def test_json_is_what_the_planner_answered_and_alone(planner: str, answers: Answers) -> None:
    assert document_of("top", "--planner", planner) == encode(answers.by_path[routes.OVERVIEW])
    assert document_of("top", JOB, "--planner", planner) == {
        "overview": encode(READING.overview),
        "steps": encode(READING.steps),
        "history": encode(READING.history),
        "stragglers": encode(READING.stragglers),
    }
    # A stream of text without an encoding is printed into too.
    with redirect_stdout(io.StringIO()) as out:
        assert main(["top", "--once", "--planner", planner]) == 0
    assert "gpt3-night" in out.getvalue()


def test_a_live_planner_is_read_and_a_wrong_name_gets_the_line_of_report() -> None:
    with live_planner() as live:
        at = ("--planner", str(live.http.base_url))
        put_enveloped_job(live)
        ranks = MeasuringRanks(live)
        ranks.measure(30)
        ranks.take_newest_plan()
        ranks.measure(30)
        all_jobs = flyball("top", "--once", *at)
        one_job = flyball("top", "job", "--once", *at)
        document = document_of("top", "job", *at)
        errors = {
            refusal(flyball(*command, *at)).partition(": ")[2]
            for command in (("top", "jib", "--once"), ("top", "jib", "--json"), ("report", "jib"))
        }
    assert "emulated GPUs: no figure here is a real GPU's" in all_jobs.stdout
    for text in ("2 of 2 emulated GPUs present", "stages in steps", "on version 1"):
        assert text in one_job.stdout
    assert len(document["steps"]) == document["overview"]["num_steps"]
    assert [version["version"] for version in document["history"]] == [1]
    (error,) = errors
    assert error.endswith("has no job 'jib'; of 1 the newest: job")


# ------------------------------------------------------------------ what it refuses


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--once",), "give --planner URL, or set FLYBALL_PLANNER_URL"),
        (("--once", "--planner", "http://127.0.0.1:1"), "cannot be reached"),
        (("--planner", "http://127.0.0.1:1"), "no terminal to draw on; --once prints"),
        (("--interval", "0"), "--interval: must be a number from 0.2 to 3600"),
    ],
)
def test_bad_input_gets_one_line(arguments: tuple[str, ...], named: str) -> None:
    error = refusal(flyball("top", *arguments))
    assert error.startswith("flyball top: ")
    assert named in error


def test_without_textual_one_line_names_the_extra_and_printing_works_on(
    planner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)
    for name in [name for name in sys.modules if name.startswith("textual.")]:
        monkeypatch.setitem(sys.modules, name, None)
    command = ("top", "--planner", planner)
    assert refusal(flyball(*command)) == (
        "flyball top: needs the extra 'terminal': pip install '.[terminal]' in a clone of"
        " Flyball; --once and --json work without it"
    )
    assert "gpt3-night" in flyball(*command, "--once").stdout
    assert document_of(*command, "--once")["jobs"]


# ------------------------------------------------------------------ on a terminal


@pytest.mark.parametrize("ending", [b"\x03", signal.SIGHUP], ids=["Ctrl-C", "HUP"])
def test_it_ends_cleanly_and_restores_the_terminal(
    planner: str, ending: bytes | signal.Signals
) -> None:
    with on_a_terminal(*FLYBALL, "top", JOB, "--planner", planner) as running:
        running.wait_for_text("stages in steps 20 to 39")
        assert running.settings != running.settings_before
        if isinstance(ending, bytes):
            running.press(ending)
        else:
            running.process.send_signal(ending)
        assert running.end() == 0
        assert b"Traceback" not in running.written
        assert running.settings == running.settings_before
        # First screen, cursor.
        for on, off in ((b"\x1b[?1049l", b"\x1b[?1049h"), (b"\x1b[?25h", b"\x1b[?25l")):
            assert running.written.rfind(on) > running.written.rfind(off) >= 0


def test_it_ends_on_a_terminal_that_nobody_reads(planner: str) -> None:
    with on_a_terminal(*FLYBALL, "top", JOB, "--planner", planner, size=(400, 200)) as running:
        running.wait_for_text("gpt3-night")
        running.resize(401, 201)  # a frame larger than what a terminal holds for its reader
        wait_until(lambda: running.has_unread)
        running.process.send_signal(signal.SIGTERM)
        assert running.end(reading=False) == 0
        assert running.settings == running.settings_before


def test_an_outage_of_the_planner_is_shown_until_it_ends(answers: Answers) -> None:
    with ExitStack() as first:
        address = first.enter_context(pretended_planner(answers))
        asked = ("--planner", address, "--interval", "0.2")
        with on_a_terminal(*FLYBALL, "top", *asked, size=(120, 30)) as running:
            running.wait_for_text("llama-70b")
            first.close()
            told = "planner away since", "cannot be reached", "all figures are of", "llama-70b"
            running.wait_for(lambda shown: all(text in shown for text in told))
            with pretended_planner(answers, port=urlsplit(address).port or 0):
                running.wait_for(lambda shown: "planner away" not in shown)
                running.press(b"q")
                assert running.end() == 0


def test_the_shell_suspends_and_resumes_it(planner: str) -> None:
    command = f"{sys.executable} -c '{FLYBALL[2]}' top --planner {planner}"
    shell = ("/bin/bash", "--norc", "--noprofile", "-i")
    with on_a_terminal(*shell, environment={"PS1": "shell> ", "HISTFILE": "/dev/null"}) as running:
        running.press(command.encode() + b"\n")
        running.wait_for_text("llama-70b")
        running.press(b"\x1a")
        running.wait_for_text("Stopped")
        running.press(b"echo $((6 * 7)) again\n")
        running.wait_for_text("42 again")
        running.press(b"fg\n")
        running.wait_for(lambda shown: "42 again" not in shown and "llama-70b" in shown)
        running.press(b"q")
        running.wait_for(lambda _: running.written.endswith(b"shell> "))
        running.press(b"echo status $?; exit\n")
        running.wait_for_text("status 0")
        assert running.end() == 0

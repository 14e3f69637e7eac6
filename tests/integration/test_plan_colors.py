"""`flyball plan` and `flyball simulate` in colour: on terminals, and only there unless told."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from tests.integration.command_in_process import flyball, refusal, two_pipelines
from tests.integration.on_a_terminal import FLYBALL, on_a_terminal

ASKED = ("--microbatches", "2", "--blocking-power", "5", "--policy", "envelope")
SEPARATE = ("--data-parallel", "separate")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def profile(tmp_path: Path) -> str:
    return str(two_pipelines(tmp_path))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TERM"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def plan(tmp_path: Path, profile: str) -> str:
    path = str(tmp_path / "plan.json")
    assert flyball("plan", profile, *ASKED, "-o", path).returncode == 0
    return path


def shown(*arguments: str, **environment: str) -> str:
    """Return what a command writes to a terminal that is wide enough for it."""
    with on_a_terminal(*FLYBALL, *arguments, size=(200, 60), environment=environment) as running:
        assert running.end() == 0, running.shown
        return running.written.decode().replace("\r\n", "\n")


def without_colours(text: str) -> str:
    """The text as it is without colours: no escapes, and no line that explains them."""
    lines = _ESCAPE.sub("", text).splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("MHz: "))


def commands(profile: str, plan: str) -> list[tuple[str, ...]]:
    return [
        ("plan", profile, *ASKED, "--timeline"),
        ("plan", profile, *ASKED, *SEPARATE, "--timeline"),
        ("simulate", profile, plan, "--timeline"),
    ]


def test_a_terminal_gets_colours_and_the_same_text(profile: str, plan: str) -> None:
    for command in commands(profile, plan):
        text = shown(*command)
        assert "\x1b[1;38;5;" in text, command
        assert text.count("MHz: 1000 ") == 1
        assert without_colours(text) == flyball(*command).stdout


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_a_terminal_that_is_to_have_none_gets_none(
    profile: str, environment: dict[str, str]
) -> None:
    command = ("plan", profile, *ASKED, "--timeline")
    assert shown(*command, **environment) == flyball(*command).stdout


def test_what_is_no_terminal_gets_no_colours_whatever_the_environment_says(
    profile: str, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = [flyball(*command).stdout for command in commands(profile, plan)]
    assert all("\x1b" not in text and "MHz: " not in text for text in plain)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    for options in ((), ("--color", "auto"), ("--color", "never")):
        again = [flyball(*command, *options).stdout for command in commands(profile, plan)]
        assert again == plain


def test_always_colours_a_pipe_too(
    profile: str, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    for command in commands(profile, plan):
        always = flyball(*command, "--color", "always").stdout
        assert "\x1b[1;38;5;" in always
        assert without_colours(always) == flyball(*command).stdout


def test_json_and_files_have_no_colours(tmp_path: Path, profile: str, plan: str) -> None:
    path = tmp_path / "again.json"
    done = flyball("plan", profile, *ASKED, "--json", "--color", "always", "-o", str(path))
    assert json.loads(done.stdout)["policy"] == "envelope"
    assert path.read_text() == done.stdout
    done = flyball("simulate", profile, plan, "--json", "--color", "always")
    assert json.loads(done.stdout)["iteration_time_s"] == 9.0


def test_a_word_that_is_none_of_the_three_is_refused(profile: str, plan: str) -> None:
    for command in commands(profile, plan):
        error = refusal(flyball(*command, "--color", "sometimes"))
        assert "--color: invalid choice: 'sometimes'" in error


def test_without_rich_there_are_no_colours_and_always_says_why(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import sys; sys.modules['rich'] = None; " + FLYBALL[2]
    command = ("plan", profile, *ASKED, "--timeline")
    with on_a_terminal(sys.executable, "-c", code, *command, size=(200, 60)) as running:
        assert running.end() == 0
        assert "\x1b" not in running.written.decode()
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert refusal(flyball(*command, "--color", "always")) == (
        "flyball plan: --color always needs rich: pip install '.[server]' in a clone of Flyball"
    )

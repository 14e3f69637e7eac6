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


Commands = tuple[tuple[str, ...], ...]


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    """Commands that print rows."""
    profile, plan = str(two_pipelines(tmp_path)), str(tmp_path / "plan.json")
    planned = ("plan", profile, *ASKED)
    assert flyball(*planned, "-o", plan).returncode == 0
    return (
        (*planned, "--timeline"),
        (*planned, *SEPARATE, "--timeline"),
        ("simulate", profile, plan, "--timeline"),
    )


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TERM"):
        monkeypatch.delenv(name, raising=False)


def shown(*arguments: str, **environment: str) -> str:
    """Return what a command writes to a terminal that is wide enough for it."""
    with on_a_terminal(*FLYBALL, *arguments, size=(200, 60), environment=environment) as running:
        assert running.end() == 0, running.shown
        return running.written.decode().replace("\r\n", "\n")


def without_colours(text: str) -> str:
    """The text as it is without colours: no escapes, and no line that explains them."""
    lines = _ESCAPE.sub("", text).splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("MHz: "))


def test_a_terminal_gets_colours_and_the_same_text_unless_it_is_to_have_none(
    commands: Commands,
) -> None:
    for command in commands[1:]:
        text = shown(*command)
        assert "\x1b[1;38;5;" in text, command
        assert text.count("MHz: 1000 ") == 1
        assert without_colours(text) == flyball(*command).stdout
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert shown(*commands[0], **environment) == flyball(*commands[0]).stdout


def test_what_is_no_terminal_gets_no_colours_unless_always(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = [flyball(*command).stdout for command in commands]
    assert all("\x1b" not in text and "MHz: " not in text for text in plain)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    for options in ((), ("--color", "auto"), ("--color", "never")):
        assert [flyball(*command, *options).stdout for command in commands] == plain
    for name in ("FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    always = ("--color", "always")
    for command, text in zip(commands, plain, strict=True):
        coloured = flyball(*command, *always).stdout
        assert "\x1b[1;38;5;" in coloured
        assert without_colours(coloured) == text
        error = refusal(flyball(*command, "--color", "sometimes"))
        assert "--color: invalid choice: 'sometimes'" in error
    # JSON and files have none.
    *planned, _ = commands[0]
    path = Path(planned[1]).with_name("again.json")
    printed = flyball(*planned, "--json", *always, "-o", path).stdout
    assert json.loads(printed)["policy"] == "envelope"
    assert path.read_text() == printed
    *simulated, _ = commands[2]
    printed = flyball(*simulated, "--json", *always).stdout
    assert json.loads(printed)["iteration_time_s"] == 9.0


def test_without_rich_there_are_no_colours_and_always_says_why(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import sys; sys.modules['rich'] = None; " + FLYBALL[2]
    command = commands[0]
    with on_a_terminal(sys.executable, "-c", code, *command, size=(200, 60)) as running:
        assert running.end() == 0
        assert "\x1b" not in running.written.decode()
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert refusal(flyball(*command, "--color", "always")) == (
        "flyball plan: --color always needs rich: pip install '.[server]' in a clone of Flyball"
    )

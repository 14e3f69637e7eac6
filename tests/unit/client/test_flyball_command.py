from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from flyball_client import __main__ as flyball
from flyball_client.__main__ import main
from flyball_client.cli.summaries import SUMMARIES
from flyball_wire.command.command import Command, CommandError

pytestmark = pytest.mark.slow


def add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file")
    parser.add_argument("--count", type=int, default=0)


def refuse(arguments: argparse.Namespace) -> int:
    raise CommandError(f"{arguments.file}:3:\nno such stage")


def succeed(arguments: argparse.Namespace) -> int:
    print(f"file {arguments.file} count {arguments.count}")
    return int(arguments.count)


def be_interrupted(_: argparse.Namespace) -> int:
    raise KeyboardInterrupt


def add_nothing(_: argparse.ArgumentParser) -> None:
    """No arguments."""


COMMANDS = {
    "refuse": Command(configure=add_file, run=refuse),
    "succeed": Command(configure=add_file, run=succeed),
    "interrupted": Command(configure=add_nothing, run=be_interrupted),
}


SUCCEED, SEE_HELP = "flyball succeed:", "see `flyball succeed --help`"


class FixedEntryPoint(EntryPoint):
    """An entry point that loads what a test has, without an installation."""

    def load(self) -> object:
        if self.name in COMMANDS:
            return COMMANDS[self.name]
        if self.name == "odd":
            return "not a command"
        raise ModuleNotFoundError(f"No module named {self.name!r}")


@pytest.fixture(autouse=True)
def fixed_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    values = dict.fromkeys(COMMANDS, "flyball_client.x:COMMAND") | {
        "serve": "flyball_server.x:COMMAND",
        "demo": "flyball_lab.x:COMMAND",
        "foreign": "somebody.x:COMMAND",
        "odd": "somebody.y:COMMAND",
    }
    entries = [FixedEntryPoint(n, v, "flyball.commands") for n, v in values.items()]
    monkeypatch.setattr(flyball, "entry_points", lambda group: entries)
    monkeypatch.setattr(flyball, "find_spec", lambda name: None)
    summaries = {"refuse": "always refuses", "succeed": "always succeeds"}
    monkeypatch.setattr(flyball, "SUMMARIES", summaries)
    monkeypatch.setattr(flyball, "GROUPS", {"First": {"succeed": ""}, "None": {"gone": ""}})


def test_help_lists_every_command_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("First:")
    assert lines[first + 1 : first + 4] == [
        "  succeed      always succeeds",
        "",
        "Of other packages:",
    ]
    assert "None:" not in lines
    assert "  refuse       always refuses" in lines
    clone = "in a clone of Flyball"
    assert f"  serve        needs the extra 'server': pip install '.[server]' {clone}" in lines
    assert f"  demo         needs the extra 'demo': pip install '.[demo]' {clone}" in lines
    assert "  foreign      cannot be imported; reinstall it" in lines


def test_a_command_gets_its_arguments_gives_the_status_and_has_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["succeed", "a.csv", "--count", "3"]) == 3
    assert capsys.readouterr().out == "file a.csv count 3\n"
    for arguments in (["succeed", "--help"], ["help", "succeed"]):
        assert main(arguments) == 0
        shown = capsys.readouterr().out
        assert "usage: flyball succeed" in shown
        assert "always succeeds" in shown


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["refuse", "a.csv"], "flyball refuse: a.csv:3: no such stage\n"),
        (["succeed"], f"{SUCCEED} the following arguments are required: file; {SEE_HELP}\n"),
        (
            ["succeed", "a", "--count", "x"],
            f"{SUCCEED} argument --count: invalid int value: 'x'; {SEE_HELP}\n",
        ),
        (["succeed", "a", "--all", "1"], f"{SUCCEED} unrecognized arguments: --all 1; {SEE_HELP}"),
        (
            ["succeed", "--cuont=1"],
            f"{SUCCEED} no option '--cuont'; did you mean --count?\n",
        ),
        (["succeed", "--cou", "1"], f"{SUCCEED} no option '--cou'; did you mean --count?\n"),
        (["sucede", "a"], "flyball: no command 'sucede'; did you mean succeed?\n"),
        (["nonsense"], "flyball: no command 'nonsense'; choose from "),
        (["--nonsense"], "flyball: no command '--nonsense'; choose from "),
        (
            ["serve"],
            "flyball serve: needs the extra 'server': pip install '.[server]' in a clone of"
            " Flyball (No module named 'serve')\n",
        ),
        (["odd"], "flyball odd: somebody.y:COMMAND is not a Flyball command; reinstall"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(text)
    assert (printed.out, printed.err.count("\n")) == ("", 1)


def test_a_package_that_is_on_the_path_and_not_installed_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flyball, "entry_points", lambda group: ())
    assert main(["doctor"]) == 2
    assert "not installed; pip install it\n" in capsys.readouterr().err


def test_an_interruption_is_status_130_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["interrupted"]) == 130
    assert capsys.readouterr().err == ""


SHOW_MUCH = """
import sys
from flyball_client import __main__ as flyball
flyball._dispatch = lambda arguments: print("x" * 1_000_000) or 0
sys.exit(flyball.main(["anything"]))
"""


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SHOW_MUCH], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.read(1) == b"x"
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 128 + signal.SIGPIPE


def test_every_command_has_a_summary() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert set(project["project"]["entry-points"]["flyball.commands"]) == set(SUMMARIES)

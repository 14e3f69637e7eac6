"""Completion in bash, zsh and fish: what a TAB offers behind the beginning of a command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.debian_packages import skipped_where_missing
from tests.integration.command_in_process import flyball, refusal
from tests.integration.on_a_terminal import on_a_terminal
from tests.integration.shells import shell_path

from flyball_client.cli.summaries import SUMMARIES

# As bash calls it: the words of the line, the last of them being typed.
_TAB = """
. "$0"
COMP_WORDS=(flyball "$@") COMP_CWORD=$# COMPREPLY=()
_shtab_flyball
printf '%s\\n' "${COMPREPLY[@]}"
"""

LINES = {
    ("pla",): "plan",
    ("--ver",): "--version",
    ("plan", "--mic"): "--microbatches",
    ("plan", "--policy", "const"): "constant",
    ("plan", "a.csv", "--effort", ""): "low normal high",
    ("plan", "exam"): "example.csv",
    ("plan", "--order", "exam"): "example.csv",
    ("plan", "nothing"): "",
    ("jobs", "straggl"): "straggler",
    ("jobs", "profile", "put", "--pl"): "--planner",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "example.csv").touch()
    return tmp_path


@pytest.fixture
def fish() -> str:
    with skipped_where_missing():
        return shell_path("fish")


@pytest.fixture
def zsh() -> str:
    with skipped_where_missing():
        return shell_path("zsh")


def script(shell: str, folder: Path) -> Path:
    path = folder / f"flyball.{shell}"
    path.write_text(flyball("--completion", shell).stdout)
    return path


def test_a_tab_offers_commands_options_their_choices_and_files(folder: Path) -> None:
    path = script("bash", folder)
    for line, offered in LINES.items():
        command: list[str | Path] = ["bash", "-c", _TAB, path, *line]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60, cwd=folder
        )
        assert (set(done.stdout.split()), done.stderr) == (set(offered.split()), "")


def test_zsh_completes_words_choices_and_files(zsh: str, folder: Path) -> None:
    path = script("zsh", folder)
    setup = f'cd {folder}; autoload -U compinit; compinit -D; eval "$(<{path})"; clear\n'
    environment = {"PS1": "shell> ", "HOME": str(folder), "ZDOTDIR": str(folder)}
    with on_a_terminal(zsh, "-f", "-i", environment=environment) as running:
        running.wait_for_text("shell>")
        running.press(setup.encode())
        running.wait_for(lambda shown: shown.startswith("shell>") and "compinit" not in shown)
        for typed, completed in (
            ("flyball pla", "flyball plan"),
            ("flyball plan --mic", "flyball plan --microbatches"),
            ("flyball plan --policy const", "flyball plan --policy constant"),
            ("flyball plan --order exam", "flyball plan --order example.csv"),
            ("flyball jobs straggl", "flyball jobs straggler"),
        ):
            running.press(f"{typed}\t".encode())
            running.wait_for(lambda shown, line=completed: shown.startswith(f"shell> {line}"))  # type: ignore[misc]
            running.press(b"\x15")
            running.wait_for(lambda shown: shown.strip() == "shell>")


def test_fish_offers_the_same_with_descriptions(fish: str, folder: Path) -> None:
    path = script("fish", folder)

    def offers(*line: str) -> dict[str, str]:
        command = (fish, "--no-config", "-c", 'source $argv[1]; complete -C "$argv[2]"')
        done = subprocess.run(
            [*command, path, " ".join(("flyball", *line))],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            cwd=folder,
            env={**os.environ, "HOME": str(folder)},
        )
        assert done.stderr == ""
        found = (offer.partition("\t") for offer in done.stdout.splitlines())
        return {word: description for word, _, description in found}

    for line, offered in LINES.items():
        assert set(offers(*line)) == set(offered.split())
    assert offers("pl") == {"plan": SUMMARIES["plan"]}
    assert set(offers("")) >= {*SUMMARIES}
    assert set(offers("jobs", "profile", "")) == {"put"}
    assert "example.csv" not in offers("plan", "x.csv", "--effort", "")
    assert "%(" not in offers("plan", "--reserve")["--reserve"]
    assert "plan" not in offers("plan", "pl")


def test_a_shell_without_completion_is_refused() -> None:
    assert "give one of bash, zsh, fish" in refusal(flyball("--completion", "tcsh"))
    assert "give one of bash, zsh, fish" in refusal(flyball("--completion"))


def test_without_shtab_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    error = refusal(flyball("--completion", "bash"))
    assert error.endswith(
        "needs the extra 'terminal': pip install '.[terminal]' in a clone of Flyball"
    )

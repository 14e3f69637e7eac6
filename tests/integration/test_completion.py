"""Completion in bash, zsh and fish: what a TAB offers behind the beginning of a command line."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.debian_packages import skipped_where_missing
from tests.integration.command_in_process import flyball, refusal
from tests.integration.fish import fish_path

from flyball_client.cli.summaries import SUMMARIES

# As bash calls it: the words of the line, the last of them being typed.
_TAB = """
. "$0"
COMP_WORDS=(flyball "$@") COMP_CWORD=$# COMPREPLY=()
_flyball
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = flyball("--completion", "bash")
    path = tmp_path_factory.mktemp("completion") / "flyball.bash"
    path.write_text(done.stdout)
    return path


LINES = {
    ("pla",): "plan",
    ("--ver",): "--version",
    ("plan", "--mic"): "--microbatches",
    ("plan", "--policy", "const"): "constant",
    ("plan", "a.csv", "--effort", ""): "low normal high",
    ("plan", "exam"): "",
    ("jobs", "straggl"): "straggler",
    ("jobs", "profile", "put", "--pl"): "--planner",
}


def test_a_tab_offers_commands_options_and_their_choices(script: Path) -> None:
    for line, offered in LINES.items():
        command: list[str | Path] = ["bash", "-c", _TAB, script, *line]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert (done.stdout.split(), done.stderr) == (offered.split(), "")


def test_zsh_takes_the_same_script_through_its_bashcompinit(script: Path) -> None:
    done = flyball("--completion", "zsh").stdout.splitlines()
    assert done[1] == "autoload -U bashcompinit && bashcompinit"
    assert done[2:] == script.read_text().splitlines()[1:]


def test_fish_offers_the_same_with_descriptions_and_files(tmp_path: Path) -> None:
    """In a folder of its own, whose files fish offers too."""
    with skipped_where_missing():
        fish = fish_path()
    script = tmp_path / "flyball.fish"
    script.write_text(flyball("--completion", "fish").stdout)

    def offers(*line: str) -> dict[str, str]:
        command = (fish, "--no-config", "-c", 'source $argv[1]; complete -C "$argv[2]"')
        done = subprocess.run(
            [*command, script, " ".join(("flyball", *line))],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path)},
        )
        assert done.stderr == ""
        found = (offer.partition("\t") for offer in done.stdout.splitlines())
        return {word: description for word, _, description in found}

    for line, offered in LINES.items():
        assert set(offers(*line)) == set(offered.split())
    (tmp_path / "a.csv").touch()
    assert offers("pl") == {"plan": SUMMARIES["plan"]}
    assert set(offers("")) >= {*SUMMARIES, "help"}
    assert set(offers("jobs", "profile", "")) == {"put"}
    assert "a.csv" in offers("plan", "a")
    assert "a.csv" in offers("plan", "--order", "a")
    assert "a.csv" not in offers("plan", "x.csv", "--effort", "")
    assert "%(" not in offers("plan", "--reserve")["--reserve"]
    assert "plan" not in offers("plan", "pl")


def test_a_shell_without_completion_is_refused() -> None:
    assert "give one of bash, zsh, fish" in refusal(flyball("--completion", "tcsh"))
    assert "give one of bash, zsh, fish" in refusal(flyball("--completion"))

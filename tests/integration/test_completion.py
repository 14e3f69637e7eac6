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


LINES = [
    (("pla",), "plan"),
    (("--ver",), "--version"),
    (("plan", "--mic"), "--microbatches"),
    (("plan", "--policy", "const"), "constant"),
    (("plan", "a.csv", "--effort", ""), "low normal high"),
    (("plan", "exam"), ""),
    (("jobs", "straggl"), "straggler"),
    (("jobs", "profile", "put", "--pl"), "--planner"),
]


@pytest.mark.parametrize(("line", "offered"), LINES)
def test_a_tab_offers_commands_options_and_their_choices(
    script: Path, line: tuple[str, ...], offered: str
) -> None:
    done = subprocess.run(
        ["bash", "-c", _TAB, script, *line], capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout.split(), done.stderr) == (offered.split(), "")


def test_zsh_takes_the_same_script_through_its_bashcompinit(script: Path) -> None:
    done = flyball("--completion", "zsh").stdout.splitlines()
    assert done[1] == "autoload -U bashcompinit && bashcompinit"
    assert done[2:] == script.read_text().splitlines()[1:]


@pytest.fixture(scope="module")
def fish() -> str:
    """The program."""
    with skipped_where_missing():
        return fish_path()


@pytest.fixture(scope="module")
def fish_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "flyball.fish"
    path.write_text(flyball("--completion", "fish").stdout)
    return path


def offers_of_fish(fish: str, script: Path, line: tuple[str, ...], folder: Path) -> dict[str, str]:
    """Offers with their descriptions, in a folder of one's own, whose files fish offers too."""
    typed = " ".join(("flyball", *line))
    done = subprocess.run(
        [fish, "--no-config", "-c", 'source $argv[1]; complete -C "$argv[2]"', script, typed],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
    )
    assert done.stderr == ""
    offers = (offer.partition("\t") for offer in done.stdout.splitlines())
    return {word: description for word, _, description in offers}


@pytest.mark.parametrize(("line", "offered"), LINES)
def test_fish_offers_the_same_with_descriptions(
    fish: str, fish_script: Path, line: tuple[str, ...], offered: str, tmp_path: Path
) -> None:
    found = offers_of_fish(fish, fish_script, line, tmp_path)
    assert set(found) == set(offered.split())


def test_fish_describes_commands_and_options_and_offers_files(
    fish: str, fish_script: Path, tmp_path: Path
) -> None:
    def offers(*line: str) -> dict[str, str]:
        return offers_of_fish(fish, fish_script, line, tmp_path)

    (tmp_path / "a.csv").touch()
    assert offers("pl") == {"plan": SUMMARIES["plan"]}
    assert set(offers("")) >= {*SUMMARIES, "help"}
    assert set(offers("jobs", "profile", "")) == {"put"}
    assert "a.csv" in offers("plan", "a")
    assert "a.csv" in offers("plan", "--order", "a")
    assert "a.csv" not in offers("plan", "x.csv", "--effort", "")
    described = offers("plan", "--reserve")["--reserve"]
    assert "%(" not in described
    assert "plan" not in offers("plan", "pl")


def test_a_shell_without_completion_is_refused() -> None:
    assert "give one of bash, zsh, fish" in refusal(flyball("--completion", "tcsh"))
    assert "give one of bash, zsh, fish" in refusal(flyball("--completion"))

"""Completion in bash and zsh: what a TAB offers behind the beginning of a command line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.integration.command_in_process import flyball, refusal

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


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        (("pla",), "plan"),
        (("--ver",), "--version"),
        (("plan", "--mic"), "--microbatches"),
        (("plan", "--policy", "const"), "constant"),
        (("plan", "a.csv", "--effort", ""), "low normal high"),
        (("plan", "exam"), ""),
        (("jobs", "straggl"), "straggler"),
        (("jobs", "profile", "put", "--pl"), "--planner"),
    ],
)
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


def test_a_shell_without_completion_is_refused() -> None:
    assert "give bash or zsh" in refusal(flyball("--completion", "tcsh"))
    assert "give bash or zsh" in refusal(flyball("--completion"))

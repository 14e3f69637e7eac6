"""The code blocks of the documentation, and the commands and outputs that stand in them.

A block's language says what it is: `sh` are commands, `console` are commands behind `$ ` with
what they print, all else is neither. Comments directly above a block, which no reader sees, say
how it is run:

    <!-- not run here: WHY; see tests/... -->    it is not; why, and which test covers it
    <!-- figures vary -->                        a word with a digit may be another such word
    <!-- exit status 1 -->                       of its commands; else 0, or refused as shown
    <!-- without a GPU -->                       its output is that of a machine without one
    <!-- in a terminal of its own -->            it goes on while what follows is run
    <!-- terminal 2 -->                          typed there; see below
    <!-- until it is so -->                      repeated until the output is the one shown
    <!-- file NAME -->                           no command: what the file of this name holds

A page that numbers its terminals is typed as a newcomer would: each terminal is a shell of its own,
in which nothing is set and nothing of the installation found before `. .venv/bin/activate`, and one
in which something goes on takes nothing more. A block without a number is for terminal 1.

A page that makes an environment begins in a clone without one, and installs Flyball by its own
lines; the packages that Flyball needs are lent by the Python that runs the tests.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
COMMANDS, SESSION = "sh", "console"
NOT_RUN = "not run here: "
FIGURES_VARY = "figures vary"
EXIT_STATUS = "exit status "
WITHOUT_GPU = "without a GPU"
OWN_TERMINAL = "in a terminal of its own"
TERMINAL = "terminal "
UNTIL_SO = "until it is so"
FILE = "file "
NOTES = (NOT_RUN, FIGURES_VARY, EXIT_STATUS, WITHOUT_GPU, OWN_TERMINAL, TERMINAL, UNTIL_SO, FILE)
_BLOCK = re.compile(
    r"(?P<comments>(?:^ *<!--(?:(?!-->).)*-->\n)*)"
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.DOTALL)
_PROMPT = "$ "


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command, and the output that the page shows of it.

    Attributes:
        line: of the page, from 1.
        shown: None where the page shows none.
    """

    line: int
    command: str
    shown: str | None


@dataclass(frozen=True, kw_only=True)
class Block:
    """One code block.

    Attributes:
        page: its path in the repository.
        line: of the page on which its fence stands, from 1.
        notes: the comments directly above.
    """

    page: str
    line: int
    language: str
    notes: tuple[str, ...]
    text: str

    @property
    def place(self) -> str:
        """As PAGE:LINE."""
        return f"{self.page}:{self.line}"

    @property
    def has_commands(self) -> bool:
        """Return whether it is one to run."""
        return self.language in {COMMANDS, SESSION}

    def note(self, beginning: str) -> str | None:
        """Return what a note says behind these words; None: there is no such note."""
        found = [note.removeprefix(beginning) for note in self.notes if note.startswith(beginning)]
        return found[0].strip() if found else None


def pages() -> list[Path]:
    """Every page whose commands are run."""
    docs = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", ROOT / "examples" / "README.md", *docs]


def blocks_of(page: Path) -> list[Block]:
    """Every code block of a page, in its order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page=str(page.relative_to(ROOT)),
            line=text[: match.start("language")].count("\n") + 1,
            language=match["language"],
            notes=tuple(" ".join(note.split()) for note in _COMMENT.findall(match["comments"])),
            text=dedent(match["text"]),
        )
        for match in _BLOCK.finditer(text)
    ]


@cache
def steps_of(block: Block) -> list[Step]:
    """The commands of a block in their order.

    Raises:
        ValueError: a session begins with output, or a command never ends.
    """
    return list(_session(block) if block.language == SESSION else _script(block))


def _script(block: Block) -> Iterator[Step]:
    lines = block.text.splitlines()
    at = 0
    while at < len(lines):
        if not lines[at].strip() or lines[at].startswith("#"):
            at += 1
            continue
        end = _command_end(block, lines, at)
        yield Step(line=block.line + 1 + at, command="\n".join(lines[at:end]), shown=None)
        at = end


def _session(block: Block) -> Iterator[Step]:
    lines = block.text.splitlines()
    if not lines or not lines[0].startswith(_PROMPT):
        raise ValueError(f"{block.place}: must begin with a command behind '{_PROMPT}'")
    at = 0
    while at < len(lines):
        bare = [lines[at].removeprefix(_PROMPT), *lines[at + 1 :]]
        end = at + _command_end(block, bare, 0)
        after = end
        while after < len(lines) and not lines[after].startswith(_PROMPT):
            after += 1
        yield Step(
            line=block.line + 1 + at,
            command="\n".join(bare[: end - at]),
            shown="\n".join(lines[end:after]).strip("\n") or None,
        )
        at = after


def _command_end(block: Block, lines: list[str], begin: int) -> int:
    """Behind the last line of the command that begins here: where the shell finds it whole."""
    for end in range(begin + 1, len(lines) + 1):
        text = "\n".join(lines[begin:end])
        if not text.endswith("\\") and _is_whole(text):
            return end
    raise ValueError(f"{block.place}: no end of the command {lines[begin]!r}")


def _is_whole(text: str) -> bool:
    checked = subprocess.run(
        ["bash", "-n"], input=f"{text}\n", capture_output=True, text=True, check=False
    )
    return checked.returncode == 0

"""The documentation held to the code: all that exists is in it, and what it shows exists."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import NoReturn

import pytest

from flyball_integrations.deepspeed.settings import SETTINGS
from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.schedules.table import SCHEDULES
from flyball_profiles.gpu_windows import gpu_names
from flyball_server.planning.policies import POLICIES
from flyball_server.planning.policies.reconfigure import RECONFIGURATIONS
from flyball_server.planning.schedule_choice import AUTO
from flyball_server.settings import Settings
from flyball_wire.command.command import Command
from flyball_wire.messages import JobState

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
SHOWN_PAGES = (README, *sorted(DOCS.glob("*.md")))
_PACKAGES = ("client", "server", "integrations", "profiles")
_NOT_OURS = {"build", "dist", "node_modules", "shared"}
_FENCED = re.compile(r"^ *```\w*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")
# `pip install '.[server,plot]'`, and of a wheel `flyball[server]`: the extras.
_INSTALLED = re.compile(r"(?:'\.|\bflyball)\[([\w ,-]+)\]")
# What ends a command in a shell's line; all that follows is another's.
_SHELL_ENDS = {"|", ">", "2>", "<", "&", "&&", ";"}


# ------------------------------------------------------------------ what the code has


@cache
def commands() -> dict[str, Command]:
    """Every command that pyproject.toml declares, by name; an older install may lack one."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    found = {
        name: EntryPoint(name, where, "flyball.commands").load()
        for name, where in declared["flyball.commands"].items()
    }
    assert all(isinstance(command, Command) for command in found.values())
    return found


class _RaisingParser(argparse.ArgumentParser):
    """Tells a complaint by an exception instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parser_of(name: str) -> argparse.ArgumentParser:
    """The command's parser, made as `flyball` makes it."""
    parser = _RaisingParser(prog=f"flyball {name}", allow_abbrev=False)
    commands()[name].configure(parser)
    return parser


def flags_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Every option of a parser and of those below it."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from flags_of(below)


# What only tests read.
TEST_VARIABLES = frozenset({"FLYBALL_SHARED_DATA"})


@cache
def settings_variables() -> frozenset[str]:
    """Every FLYBALL_* variable: of the planner's settings, and that a source names."""
    sources = (file for package in _PACKAGES for file in (ROOT / package).rglob("*.py"))
    named = {
        name
        for file in sources
        for name in re.findall(r"FLYBALL_[A-Z][A-Z0-9_]*", file.read_text())
    }
    named |= {setting.variable for setting in SETTINGS}
    return frozenset(named | {f"FLYBALL_{field.upper()}" for field in Settings.model_fields})


# ------------------------------------------------------------------ what the documentation has


def section(page: Path, heading: str) -> str:
    """Return what stands under a heading of level two."""
    parts = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    found = [part for part in parts if part.startswith(f"{heading}\n")]
    assert len(found) == 1, f"{page.name} must have one section '## {heading}'"
    return found[0]


def rows(text: str) -> list[list[str]]:
    """The cells of every table row."""
    lines = (line for line in text.splitlines() if line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def fenced_lines(page: Path) -> Iterator[str]:
    """Every line of the page's code blocks; a continued line is one, without its prompt."""
    for block in _FENCED.findall(page.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            yield line.strip().removeprefix("$ ")


def words_of(line: str) -> list[str]:
    """The first command of a shell line, without the variables set before it."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # output with a lone quotation mark
        return []
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    end = next((i for i, word in enumerate(words) if word in _SHELL_ENDS), len(words))
    return words[:end]


def shown_commands(program: str) -> list[tuple[str, list[str]]]:
    """(page, arguments) of each line in a code block that runs this program."""
    found = []
    for page in SHOWN_PAGES:
        for line in fenced_lines(page):
            words = words_of(line)
            # `flyball plan: ...` is what it says when something is wrong.
            if words and words[0] == program and not "".join(words[1:2]).endswith(":"):
                found.append((page.name, words[1:]))
    return found


def markdown_files() -> list[Path]:
    """All Markdown of the repository."""
    return [
        file
        for file in sorted(ROOT.rglob("*.md"))
        if not any(
            part.startswith(".") or part in _NOT_OURS for part in file.relative_to(ROOT).parts
        )
    ]


def anchors(page: Path) -> set[str]:
    """The names that links to the page's headings have, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# ------------------------------------------------------------------ all that exists is there


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    page = (DOCS / "commands.md").read_text()
    headings = re.findall(r"^## `flyball ([a-z]+)`$", page, flags=re.MULTILINE)
    assert sorted(headings) == sorted(commands())


def test_every_setting_has_a_row_and_every_row_a_setting() -> None:
    cells = [row[0] for row in rows(section(DOCS / "commands.md", "Settings"))]
    documented = {name for cell in cells for name in re.findall(r"^`(FLYBALL_[A-Z0-9_]+)`$", cell)}
    assert documented == settings_variables()


def test_no_page_names_a_setting_that_does_not_exist() -> None:
    for page in markdown_files():
        named = set(re.findall(r"FLYBALL_[A-Z][A-Z0-9_]*[A-Z]", page.read_text()))
        assert named <= settings_variables() | TEST_VARIABLES, page


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("theory.md", [str(kind) for kind in InstructionKind]),
        ("theory.md", list(POLICIES)),
        ("theory.md", [*SCHEDULES, AUTO]),
        ("theory.md", list(RECONFIGURATIONS)),
        ("rest.md", [str(state) for state in JobState]),
        ("profiling.md", [str(kind) for kind in InstructionKind]),
        ("commands.md", list(gpu_names())),
    ],
    ids=["kinds", "policies", "schedules", "reconfigurations", "states", "columns", "GPUs"],
)
def test_every_name_that_a_user_may_meet_is_explained(page: str, names: list[str]) -> None:
    code = set(_INLINE_CODE.findall((DOCS / page).read_text()))
    assert [name for name in names if name not in code] == []


@pytest.mark.parametrize("folder", [DOCS, DOCS / "decisions"])
def test_every_page_is_in_the_index_of_its_folder(folder: Path) -> None:
    linked = set(_LINK.findall((folder / "README.md").read_text()))
    assert {page.name for page in folder.glob("*.md")} - linked == {"README.md"}
    assert folder == DOCS or "decisions/README.md" in (DOCS / "README.md").read_text()


def test_the_written_pages_are_short_enough_to_be_read() -> None:
    templates = sorted((DOCS / "scripts/reference").glob("*.in"))
    generated = {template.stem for template in templates}
    written = [page for page in DOCS.glob("*.md") if page.name not in generated]
    words = [word for page in (*written, *templates) for word in page.read_text().split()]
    assert sum(any(map(str.isalnum, word)) for word in words) <= 31_000


# ------------------------------------------------------------------ what it shows exists


@pytest.mark.parametrize("page", markdown_files(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in _LINK.findall(_FENCED.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_flyball_line_in_a_code_block_is_one_that_flyball_takes() -> None:
    shown = shown_commands("flyball")
    assert len(shown) > 10
    for page, arguments in shown:
        if arguments in (["--help"], ["--version"], ["--completion", "bash"]):
            continue
        name, *rest = arguments
        assert name in commands(), f"{page}: flyball {name}"
        if rest == ["--help"]:
            continue
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                parser_of(name).parse_args(rest)
        except (ValueError, SystemExit) as error:
            pytest.fail(f"{page}: flyball {shlex.join(arguments)}: {error}")


def test_every_flyball_command_in_a_sentence_exists_with_its_options() -> None:
    for page in markdown_files():
        for code in _INLINE_CODE.findall(_FENCED.sub("", page.read_text())):
            words = words_of(code)
            if words[:1] != ["flyball"] or len(words) == 1 or words[1].startswith("-"):
                continue
            assert words[1] in commands(), f"{page.name}: {code}"
            options = set(flags_of(parser_of(words[1])))
            used = {word.partition("=")[0] for word in words[2:] if word.startswith("-")}
            assert used <= options, f"{page.name}: {code}"


def test_every_make_line_names_a_target_and_variables_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    variables = set(re.findall(r"^([A-Z_]+) \?=", makefile, flags=re.MULTILINE))
    inline = [
        (page.name, words_of(code)[1:])
        for page in markdown_files()
        for code in _INLINE_CODE.findall(_FENCED.sub("", page.read_text()))
        if code.startswith("make ")
    ]
    shown = [*shown_commands("make"), *inline]
    assert len(shown) > 2
    for page, words in shown:
        for word in words:
            name, is_assigned, _ = word.partition("=")
            known = variables if is_assigned else targets
            assert name in known, f"{page}: make {shlex.join(words)}"


def test_what_is_installed_has_extras_that_there_are() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {*declared["optional-dependencies"]}
    pages = (*SHOWN_PAGES, ROOT / "examples/README.md")
    asked = {
        page.name: {
            extra.strip()
            for extras_of_a_line in _INSTALLED.findall(page.read_text(encoding="utf-8"))
            for extra in extras_of_a_line.split(",")
        }
        for page in pages
    }
    assert asked["README.md"]
    assert asked["quickstart.md"]
    assert {page: names - extras for page, names in asked.items() if names - extras} == {}


# ------------------------------------------------------------------ the table of versions

_ROW = re.compile(r"^\| ([\w-]+) \| ([^|]+) \|(?: `([\w-]+)`: `([^`]+)`)? \|$", re.MULTILINE)
_EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
_MAKEFILE = dict(
    re.findall(r"^(\w+) := (?:torch==)?([\d.]+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
)
_PINNED_IN_DEV = dict(
    requirement.split("==") for requirement in _EXTRAS["dev"] if "==" in requirement
)
_PINS = {
    "torch": _MAKEFILE["TORCH"],
    "deepspeed": f"{_MAKEFILE['OLDEST_DEEPSPEED']}, and the newest",
    "megatron-core": _PINNED_IN_DEV["megatron-core"],
    "transformers": "the newest",
    "torchtitan": _MAKEFILE["TORCHTITAN_VERSION"],
    "zeus": _MAKEFILE["ZEUS_VERSION"],
}


def _rows() -> dict[str, tuple[str, str, str]]:
    _, _, section = (ROOT / "docs" / "frameworks.md").read_text().partition("\n## Versions\n")
    return {
        package: (pinned, extra, allowed)
        for package, pinned, extra, allowed in _ROW.findall(section)
    }


def test_the_table_has_every_framework() -> None:
    assert _rows().keys() == _PINS.keys()


def test_the_newest_versions_are_those_that_the_build_tries() -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text()
    _, _, below = page.partition("`make test-newest` runs ")
    tried, _, _ = below.partition(".\n")
    versions = (
        f"torch {_MAKEFILE['NEWEST_TORCH']}, with torchtitan {_MAKEFILE['NEWEST_TORCHTITAN']}"
    )
    assert tried.endswith(versions)


@pytest.mark.parametrize("package", _PINS)
def test_a_row_says_what_is_pinned_and_allowed(package: str) -> None:
    pinned, extra, allowed = _rows()[package]
    assert pinned == _PINS[package]
    assert not extra or allowed in _EXTRAS[extra]
    assert package not in _PINNED_IN_DEV or _PINNED_IN_DEV[package] == pinned

"""Every code block says what it is, and what is not run names the test that covers it."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module

import pytest
from tests.documentation.blocks import (
    FILE,
    NOT_RUN,
    NOTES,
    ROOT,
    Block,
    blocks_of,
    pages,
    steps_of,
)

LANGUAGES = {
    *("sh", "console", "python", "csv", "json", "text", "sql", "yaml", "promql", "toml", "ini"),
    *("mermaid", "diff"),
}
REASONS = (
    *("needs a GPU", "needs a cluster", "needs Docker", "needs Kubernetes", "needs Slurm"),
    *("needs root", "needs PostgreSQL", "needs a browser", "needs a terminal"),
    *("installs packages", "takes minutes", "another test runs it", "needs the published profiles"),
)
# What begins a line that is a command, in whatever block it stands.
_COMMAND = re.compile(
    r"(?:\$ |(?:\w+=\S+ )*(?:flyball|make|curl|torchrun|docker|kubectl|sbatch|srun|pip) )"
)
_COVERED = re.compile(r"tests/[\w/]+\.py(?:::\w+)?")
BLOCKS = [block for page in pages() for block in blocks_of(page)]
NOT_RUN_BLOCKS = [block for block in BLOCKS if block.note(NOT_RUN) is not None]


def _place(block: Block) -> str:
    return block.place


def test_no_page_hides_a_block_from_this() -> None:
    for page in pages():
        fences = re.findall(r"^ *```", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert len(fences) == 2 * len(blocks_of(page)), page


@pytest.mark.parametrize("block", BLOCKS, ids=_place)
def test_a_block_has_a_language_that_says_whether_it_is_run(block: Block) -> None:
    assert block.language in LANGUAGES, f"{block.place}: sh, console, text or another language"
    if not block.has_commands:
        assert not [line for line in block.text.splitlines() if _COMMAND.match(line)], block.place


@pytest.mark.parametrize("block", BLOCKS, ids=_place)
def test_a_note_above_a_block_is_one_that_is_known(block: Block) -> None:
    unknown = [note for note in block.notes if not note.startswith(NOTES)]
    assert unknown == [], block.place
    if block.has_commands:
        assert steps_of(block), block.place
    else:
        assert [note for note in block.notes if not note.startswith(FILE)] == [], block.place


@pytest.mark.parametrize("block", NOT_RUN_BLOCKS, ids=_place)
def test_what_is_not_run_says_why_and_which_test_covers_it(block: Block) -> None:
    why, _, where = (block.note(NOT_RUN) or "").partition("; see ")
    assert why.startswith(REASONS), f"{block.place}: {why!r} is no reason; known: {REASONS}"
    covering = _COVERED.findall(where)
    assert covering, f"{block.place}: names no test"
    for place in covering:
        path, _, test = place.partition("::")
        assert not path.startswith("tests/documentation/"), f"{block.place}: it is not run there"
        assert (ROOT / path).is_file(), f"{block.place}: {path}"
        if test:
            text = (ROOT / path).read_text(encoding="utf-8")
            assert f"def {test}(" in text, f"{block.place}: {place}"


# ------------------------------------------------------------------ Python


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "python"], ids=_place
)
def test_what_python_blocks_take_from_flyball_is_there(block: Block) -> None:
    tree = ast.parse(re.sub(r", \.\.\.(?=\))", "", block.text))
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.startswith("flyball_"):
                    modules[name.asname or name.name] = name.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flyball_"):
            names = _names_of(node.module or "")
            assert {name.name for name in node.names} <= names, block.place
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module is not None and module != "flyball_integrations.envpipe":
                assert node.attr in _names_of(module), f"{block.place}: {module}.{node.attr}"


def _names_of(module: str) -> set[str]:
    """Return what a module has on top, without importing the framework that it is for."""
    found = set()
    top = ast.parse(_source_of(module)).body
    guarded = [below for node in top if isinstance(node, ast.If) for below in node.body]
    for node in [*top, *guarded]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found.update(name.asname or name.name for name in node.names)
    return found


def _source_of(module: str) -> str:
    package, *below = module.split(".")
    folder = next(iter(import_module(package).__path__))
    path = ROOT.joinpath(folder, *below)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return inspect.cleandoc(file.read_text(encoding="utf-8"))

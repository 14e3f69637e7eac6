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
from tests.documentation.in_process import plain_arguments
from tests.documentation.shown_output import difference, is_within, names_made

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


# ------------------------------------------------------------------ commands in a block


def block_of(language: str, text: str) -> Block:
    return Block(page="page.md", line=10, language=language, notes=(), text=text)


def test_a_session_has_commands_with_what_they_print() -> None:
    text = "$ one --a \\\n    --b\nprinted\n\n$ two\n$ three | wc\n 1\n"
    assert [
        (step.line, step.command, step.shown) for step in steps_of(block_of("console", text))
    ] == [
        (11, "one --a \\\n    --b", "printed"),
        (15, "two", None),
        (16, "three | wc", " 1"),
    ]


def test_a_command_goes_on_until_the_shell_finds_it_whole() -> None:
    text = "for x in 1 2; do\n  echo $x\ndone\n# a comment\n\ncurl -d '{\n}' here |\n  wc\n"
    assert [step.command for step in steps_of(block_of("sh", text))] == [
        "for x in 1 2; do\n  echo $x\ndone",
        "curl -d '{\n}' here |\n  wc",
    ]


@pytest.mark.parametrize(
    ("language", "text"), [("console", "printed\n$ one\n"), ("sh", "for x in 1; do\n")]
)
def test_a_block_that_is_no_session_or_never_ends_is_refused(language: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"page\.md:10"):
        steps_of(block_of(language, text))


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("flyball plan a.csv --microbatches 4", ["plan", "a.csv", "--microbatches", "4"]),
        (
            "flyball plan a.csv \\\n    --target 'slowdown:0.05'",
            ["plan", "a.csv", "--target", "slowdown:0.05"],
        ),
        ("flyball plan a.csv | head -2", None),
        ("flyball plan a.csv > plan.json", None),
        ("flyball plan a.csv --microbatches $M", None),
        ("flyball plan *.csv", None),
        ("flyball plan a.csv &", None),
        ("flyball plan a.csv; flyball plan b.csv", None),
        ("flyball plan a.csv\nflyball plan b.csv", None),
        ("FLYBALL_TOKEN=x flyball plan a.csv", None),
        ("flyball report job", None),
    ],
)
def test_a_command_that_a_shell_would_read_as_more_is_left_to_it(
    command: str, arguments: list[str] | None
) -> None:
    assert plain_arguments(command) == arguments


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


# ------------------------------------------------------------------ how outputs are compared


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("a\nb", "a\nb\n"),
        ("a  \nb", "a\nb"),
        ("a\n...", "a"),
        ("a\n...", "a\nb\nc"),
        ("...\nc", "a\nb\nc"),
        ("a\n...\nc", "a\nc"),
        ("a ... c", "a b c"),
        ('{"a": 1,\n "b": ...}', '{"a":1,"b":[1,2]}'),
    ],
)
def test_an_ellipsis_stands_for_what_was_left_out(shown: str, printed: str) -> None:
    assert difference(shown, printed) is None


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("a\nb", "a\nc"),
        ("a", "a\nb"),
        ("a\nb", "a"),
        ("a ...", "b c"),
        ("...\nc", "a\nb"),
        ("1.5 s", "1.6 s"),
        ('{"a": 1}', '{"a": 2}'),
    ],
)
def test_all_else_must_be_as_shown(shown: str, printed: str) -> None:
    assert difference(shown, printed) is not None


def test_where_figures_vary_words_and_their_order_do_not() -> None:
    shown = "saves 15.32 % [15.04, 15.60] in    62 steps"
    assert difference(shown, "saves 9.1 % [8.8, 9.4] in 7 steps", figures_vary=True) is None
    assert difference(shown, "costs 9.1 % [8.8, 9.4] in 7 steps", figures_vary=True) is not None
    assert difference(shown, "saves 9.1 % [8.8, 9.4] in no steps", figures_vary=True) is not None


def test_what_is_shown_may_stand_among_other_lines() -> None:
    assert is_within("step 0\nstep 1", "before\nstep 0\nstep 1\nafter")
    assert not is_within("step 0\nstep 1", "step 0\nbetween\nstep 1")


def test_a_token_that_was_made_anew_stands_for_the_one_on_the_page() -> None:
    shown = f"fb_{'0' * 16}_{'a' * 43} and {'1' * 16}"
    printed = f"fb_{'2' * 16}_{'b' * 43} and {'3' * 16}"
    assert names_made(shown, printed) == {
        f"fb_{'0' * 16}_{'a' * 43}": f"fb_{'2' * 16}_{'b' * 43}",
        "0" * 16: "2" * 16,
        "1" * 16: "3" * 16,
    }

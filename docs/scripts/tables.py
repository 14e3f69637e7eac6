"""Markdown tables, and the descriptions of attributes in docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence

from flyball_wire.options import options_of

_ATTRIBUTE = re.compile(r"^    ([a-z]\w*(?:, [a-z]\w*)*): ")
_SECTION = re.compile(r"^(?:Attributes|Raises|Args|Returns):$")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a line break in a cell becomes a space."""
    lines = [_row(head), _row(["---"] * len(head)), *map(_row, rows)]
    return "\n".join(lines)


def code(text: object) -> str:
    """Return the text as inline code."""
    return f"`{text}`"


def listed(items: Sequence[str], last: str = "or") -> str:
    """Return the items with commas, and `or` before the last one."""
    return f" {last} ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def summary_of(docstring: str) -> str:
    """Return what stands above the sections of a docstring, as one paragraph."""
    lines: list[str] = []
    for line in inspect.cleandoc(docstring).splitlines():
        if _SECTION.match(line):
            break
        lines.append(line)
    return " ".join(" ".join(lines).split())


def attributes_of(docstring: str) -> dict[str, str]:
    """Return the descriptions in the section `Attributes` of a docstring, by name."""
    found: dict[str, list[str]] = {}
    names: list[str] = []
    _, _, section = inspect.cleandoc(docstring).partition("Attributes:\n")
    for line in section.splitlines():
        if line and not line.startswith(" "):
            break
        if begin := _ATTRIBUTE.match(line):
            names = begin[1].split(", ")
            found |= {name: [line[begin.end() :]] for name in names}
        elif names:
            for name in names:
                found[name].append(line.strip())
    return {name: " ".join(" ".join(lines).split()) for name, lines in found.items()}


def inherited_attributes(described: type) -> dict[str, str]:
    """Return the descriptions of a class's attributes, those of its bases included."""
    found: dict[str, str] = {}
    for each in reversed(described.__mro__):
        if each.__module__ != "builtins" and each.__doc__:
            found |= attributes_of(each.__doc__)
    options = options_of(described).items()
    return found | {name: declared.description for name, declared in options}


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"

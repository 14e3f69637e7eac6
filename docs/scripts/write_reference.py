"""Write docs/rest.md, docs/commands.md and docs/metrics.md from their templates and the code.

Usage: python -m docs.scripts.write_reference

A template (docs/scripts/reference/NAME.in) is the page with `{{PART}}` lines. REST parts come from
the API's OpenAPI document, commands from their parsers, settings from the planner's Settings,
metrics from their collectors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from docs.scripts.command_reference import command_part
from docs.scripts.metrics_reference import metrics_part
from docs.scripts.rest_reference import rest_part
from docs.scripts.settings_reference import settings_part

DOCS = Path(__file__).resolve().parents[1]
TEMPLATES = Path(__file__).with_name("reference")
PAGES = ("commands.md", "metrics.md", "rest.md")
_PART = re.compile(r"^\{\{([a-z]+)((?: [\w-]+)*)\}\}$", re.MULTILINE)
_WRITERS: dict[str, Callable[[str], str]] = {
    "command": command_part,
    "metrics": metrics_part,
    "rest": rest_part,
    "settings": settings_part,
}


def main() -> None:
    """Write the pages."""
    for page in PAGES:
        (DOCS / page).write_text(reference(page), encoding="utf-8")


def reference(page: str) -> str:
    """Return the text of a page.

    Raises:
        KeyError: A part of the template has no writer.
    """
    template = TEMPLATES / f"{page}.in"
    note = f"<!-- Written by docs/scripts/write_reference.py from {template.name}: do not edit. -->"
    text = template.read_text(encoding="utf-8")
    return f"{note}\n\n{_PART.sub(lambda part: _WRITERS[part[1]](part[2].strip()), text)}"


if __name__ == "__main__":
    main()

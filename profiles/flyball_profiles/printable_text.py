"""Untrusted text, such as a GPU's name or an error of a driver, in what people read."""

from __future__ import annotations

import json


def printable(text: str) -> str:
    """Return a text in one line, with `?` for each character that is not printable."""
    return "".join(character if character.isprintable() else "?" for character in text)


def toml_string(text: str) -> str:
    """Return a text as a string of TOML; JSON's strings of printable characters are such."""
    return json.dumps(printable(text), ensure_ascii=False)

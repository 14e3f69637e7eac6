"""Errors: their docstrings are their messages, and each has its one HTTP status."""

from __future__ import annotations

import string
from collections.abc import Iterator

import pytest

from flyball_server.jobs.errors import JobsError


def tree(kind: type[JobsError]) -> Iterator[type[JobsError]]:
    yield kind
    for derived in kind.__subclasses__():
        yield from tree(derived)


def parts_of(kind: type[JobsError]) -> dict[str, str]:
    fields = string.Formatter().parse(kind.__doc__ or "")
    return {name: f"<{name}>" for _, name, _, _ in fields if name}


LEAVES = [kind for kind in tree(JobsError) if not kind.__subclasses__()]


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_every_error_is_one_line_made_of_its_docstring(kind: type[JobsError]) -> None:
    parts = parts_of(kind)
    message = str(kind(**parts))
    assert "\n" not in message
    assert "{" not in message
    assert not message.endswith(".")
    assert all(part in message for part in parts.values())

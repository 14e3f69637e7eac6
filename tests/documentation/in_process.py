"""Plain commands of a page, run within this process: Python starts once for them all.

What a shell is needed for, as pipes, files, variables and jobs beside, stays with the shell.
"""

from __future__ import annotations

import io
import os
import re
import shlex
from collections.abc import Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest import mock

from flyball_client.__main__ import main

# Nothing in it that a shell would read as more than a word, or a word in quotation marks.
_WORDS = r"""[\w \n./,:=@%+'"-]*"""
_PLAIN = re.compile(
    rf"(?:\w+=\S+ )*flyball (?:plan|frontier|simulate|report|doctor|token|export|jobs|convert"
    rf"|db|profile|serve)\b{_WORDS}"
)
_ASSIGNMENT = re.compile(r"(\w+)=(.*)")


@dataclass(frozen=True, kw_only=True)
class PlainCommand:
    """A command of `flyball` without anything for a shell.

    Attributes:
        arguments: the words behind `flyball`.
        variables: set in front of it.
    """

    arguments: list[str]
    variables: dict[str, str]


def plain_command(command: str) -> PlainCommand | None:
    """The command in its parts; None: it has to be run by a shell."""
    line = command.replace("\\\n", " ").strip()
    if "\n" in line or _PLAIN.fullmatch(line) is None:
        return None
    words = shlex.split(line)
    at = words.index("flyball")
    pairs = (_ASSIGNMENT.fullmatch(word) for word in words[:at])
    return PlainCommand(
        arguments=words[at + 1 :], variables={found[1]: found[2] for found in pairs if found}
    )


def run_plain(
    command: PlainCommand, *, folder: str, variables: Mapping[str, str]
) -> tuple[int, str]:
    """Run it in this folder and environment: its exit status, and all that it printed."""
    printed = io.StringIO()
    with (
        chdir(folder),
        mock.patch.dict(os.environ, {**variables, **command.variables}, clear=True),
        redirect_stdout(printed),
        redirect_stderr(printed),
    ):
        status = main(command.arguments)
    return status, printed.getvalue()

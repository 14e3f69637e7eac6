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
from unittest import mock

from flyball_client.__main__ import main

# Nothing in it that a shell would read as more than a word, or a word in quotation marks.
_PLAIN = re.compile(
    r"flyball (?:plan|frontier|simulate|report|doctor|token|export|jobs|convert) "
    r"""[\w \n./,:=@%+'"-]+"""
)


def plain_arguments(command: str) -> list[str] | None:
    """The words behind `flyball`; None: the command has to be run by a shell."""
    line = command.replace("\\\n", " ").strip()
    if "\n" in line or _PLAIN.fullmatch(line) is None:
        return None
    return shlex.split(line)[1:]


def run_plain(
    arguments: list[str], *, folder: str, variables: Mapping[str, str]
) -> tuple[int, str]:
    """Run `flyball` with these arguments: its exit status, and all that it printed."""
    printed = io.StringIO()
    with (
        chdir(folder),
        mock.patch.dict(os.environ, variables, clear=True),
        redirect_stdout(printed),
        redirect_stderr(printed),
    ):
        status = main(arguments)
    return status, printed.getvalue()

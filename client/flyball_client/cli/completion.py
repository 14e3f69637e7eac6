"""Completion of commands, options and their choices in bash and zsh."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping
from typing import cast

_SCRIPT = """\
# Completion of flyball: eval "$(flyball --completion %s)"
%s_flyball() {
    local current=${COMP_WORDS[COMP_CWORD]} words="" before
    before=" ${COMP_WORDS[*]:1:$((COMP_CWORD - 1))}"
    case "$before " in
%s
    esac
    case "$before " in
%s
    esac
    [ -n "$words" ] && COMPREPLY=( $(compgen -W "$words" -- "$current") )
}
complete -o default -F _flyball flyball"""


# Shell -> what it needs before a completion for bash.
SHELLS = {"bash": "", "zsh": "autoload -U bashcompinit && bashcompinit\n"}


def completion_script(shell: str, parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    """Return a script that completes file names where nothing else fits.

    Args:
        shell: one of SHELLS.
        parsers: command -> its parser.
    """
    top = [
        "'  ') words=" + shlex.quote(" ".join([*parsers, "help", "--help", "--version"])) + " ;;"
    ]
    options, values = list[str](), list[str]()
    for name, parser in parsers.items():
        options += _options(f" {name}", parser)
        values += _values(f" {name}", parser)
    cases = ("\n".join(f"        {line}" for line in lines) for lines in (top + options, values))
    return _SCRIPT % (shell, SHELLS[shell], *cases)


def _options(path: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Per parser below `path`, deepest first, the words that may follow."""
    below = _below(parser)
    for name, one in below.items():
        yield from _options(f"{path} {name}", one)
    flags = " ".join(flag for action in parser._actions for flag in action.option_strings)
    if below:
        yield f"{shlex.quote(path + ' ')}) words={shlex.quote(' '.join([*below, flags]))} ;;"
    yield f"{shlex.quote(path + ' ')}*) [[ $current == -* ]] && words={shlex.quote(flags)} ;;"


def _values(path: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Per option with choices below `path` the choices."""
    for name, one in _below(parser).items():
        yield from _values(f"{path} {name}", one)
    for action in parser._actions:
        for flag in action.option_strings:
            if choices := _choices(action):
                yield f"{shlex.quote(path)}*' {flag} ') words={shlex.quote(choices)} ;;"


def _choices(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if metavar.startswith("{") and action.choices is None:
        return metavar.strip("{}").replace(",", " ")
    return " ".join(map(str, action.choices or ()))


def _below(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if action.nargs == argparse.PARSER:
            return cast("Mapping[str, argparse.ArgumentParser]", action.choices)
    return {}

"""Completion of commands, options and their choices in bash, zsh and fish."""

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


# Shell -> lines that it needs before a completion for bash.
_LIKE_BASH = {"bash": "", "zsh": "autoload -U bashcompinit && bashcompinit\n"}
_FISH = "fish"
SHELLS = (*_LIKE_BASH, _FISH)

_FISH_SCRIPT = """\
# Completion of flyball: flyball --completion fish | source
function __flyball_at -d 'Succeed behind these commands; after = behind nothing else'
    set -l words (commandline -opc)
    set -l path (string match -v -- '-*' $words[2..-1])
    if test "$argv[1]" = =
        set -e argv[1]
        test "$path" = "$argv"
    else
        test "$path[1..$(count $argv)]" = "$argv"
    end
end
complete -c flyball -e"""


def completion_script(shell: str, parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    """Return a script that completes file names where nothing else fits.

    Args:
        shell: one of SHELLS.
        parsers: command -> its parser.
    """
    return _fish_script(parsers) if shell == _FISH else _bash_script(shell, parsers)


def _bash_script(shell: str, parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    top = [
        "'  ') words=" + shlex.quote(" ".join([*parsers, "help", "--help", "--version"])) + " ;;"
    ]
    options, values = list[str](), list[str]()
    for name, parser in parsers.items():
        options += _options(f" {name}", parser)
        values += _values(f" {name}", parser)
    cases = ("\n".join(f"        {line}" for line in lines) for lines in (top + options, values))
    return _SCRIPT % (shell, _LIKE_BASH[shell], *cases)


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


def _fish_script(parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    lines = [
        _FISH_SCRIPT,
        *(_fish_line("=", what) for what in ("-l help", "-l version", "-f -a help")),
    ]
    for name, parser in parsers.items():
        lines.append(_fish_line("=", f"-f -a {name}", parser.description))
        lines += _fish_lines((name,), parser)
    return "\n".join(lines)


def _fish_lines(path: tuple[str, ...], parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the completions of a command's options and of its subcommands."""
    below = _below(parser)
    place = " ".join(("=", *path) if below else path)
    for name, one in below.items():
        yield _fish_line(place, f"-f -a {name}", one.description)
        yield from _fish_lines((*path, name), one)
    for action in parser._actions:
        flags = [
            f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            for flag in action.option_strings
        ]
        if not flags:
            continue
        if choices := _choices(action):
            flags.append(f"-x -a {_fish_quoted(choices)}")
        elif action.nargs != 0:
            flags.append("-r")
        help_text = parser._get_formatter()._expand_help(action) if action.help else None
        yield _fish_line(place, " ".join(flags), help_text)


def _fish_line(place: str, what: str, help_text: str | None = None) -> str:
    described = f" -d {_fish_quoted(' '.join(help_text.split()))}" if help_text else ""
    return f"complete -c flyball -n '__flyball_at {place}' {what}{described}"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

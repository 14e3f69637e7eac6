"""The parts of docs/commands.md that come from the commands' parsers."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path

from docs.scripts.tables import code, table

from flyball_client.cli.summaries import SUMMARIES
from flyball_wire.command.command import Command

_PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
_COUNTS = {"+": "{0} ...", "*": "[{0} ...]", "?": "[{0}]"}


def command_part(name: str) -> str:
    """Return the arguments of a command, as `--help` has them; those of its actions below."""
    return "\n\n".join([f"{_sentence(SUMMARIES[name])}", *_parts(f"flyball {name}", parser(name))])


@cache
def commands() -> dict[str, Command]:
    """Return every command that pyproject.toml declares, by name."""
    declared = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["entry-points"]
    return {
        name: EntryPoint(name, where, "flyball.commands").load()
        for name, where in declared["flyball.commands"].items()
    }


def parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command, made as `flyball` makes it."""
    made = argparse.ArgumentParser(prog=f"flyball {name}", allow_abbrev=False)
    commands()[name].configure(made)
    return made


def _parts(name: str, of: argparse.ArgumentParser) -> Iterator[str]:
    if rows := list(_rows(of)):
        yield table(("argument", "meaning"), rows)
    for action in _subparsers(of):
        texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for below, below_parser in action.choices.items():
            full = f"{name} {below}"
            yield f"### {code(full)}"
            yield _sentence(texts.get(below) or below_parser.description or below)
            yield from _parts(full, below_parser)


def _subparsers(
    of: argparse.ArgumentParser,
) -> list[argparse._SubParsersAction[argparse.ArgumentParser]]:
    return [each for each in of._actions if isinstance(each, argparse._SubParsersAction)]


def _rows(of: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yield a row for each argument, and one for each title of a group."""
    for group in of._action_groups:
        shown = [each for each in group._group_actions if _is_shown(each)]
        if shown and group.title not in {"positional arguments", "options"}:
            yield f"**{group.title}**", ""
        for each in shown:
            yield _invocation(each), _help(of, each)


def _is_shown(action: argparse.Action) -> bool:
    hidden = (argparse._HelpAction, argparse._SubParsersAction)
    return not isinstance(action, hidden) and action.help != argparse.SUPPRESS


def _invocation(action: argparse.Action) -> str:
    value = _value(action)
    if not action.option_strings:
        return code(value)
    *short, long = action.option_strings
    return ", ".join([*map(code, short), code(f"{long} {value}".strip())])


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else None
    dest = action.dest.upper() if action.option_strings else action.dest
    value = action.metavar or choices or dest
    if isinstance(action.nargs, int):
        return " ".join([value] * action.nargs)
    return _COUNTS.get(str(action.nargs), "{0}").format(value)


def _help(of: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = argparse.HelpFormatter(of.prog)
    text = formatter._expand_help(action) if action.help else ""
    default = action.default
    is_told = isinstance(default, str | int | float) and not isinstance(default, bool)
    if is_told and default not in {argparse.SUPPRESS, ""} and "default" not in text:
        text = f"{text} (default: {default})"
    return f"{text} (required)" if action.required and action.option_strings else text


def _sentence(text: str) -> str:
    ended = text.rstrip(".")
    return f"{ended[:1].upper()}{ended[1:]}." if ended else ""

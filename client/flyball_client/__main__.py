"""The `flyball` command: finds its subcommands by entry point, and runs one."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, cast

from flyball_client.cli.summaries import GROUPS, SUMMARIES
from flyball_wire.command.command import BAD_INPUT, Command, CommandError, flyball_version

_GROUP = "flyball.commands"
# Extras with the dependencies of a package's commands, and one of these.
_EXTRAS = {"flyball_server": ("server", "fastapi"), "flyball_lab": ("demo", "torch")}

_SHELLS = ("bash", "zsh", "fish")

_INTERRUPTED = 130
_BROKEN_PIPE = 141


class _OneLineParser(argparse.ArgumentParser):
    """Parser whose error is one line, without the usage; names the option that was meant."""

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message}; see `{self.prog} --help`")

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] - overloaded there
        self,
        args: Iterable[str] | None = None,
        namespace: Any = None,  # noqa: ANN401 - as the parent's
    ) -> Any:  # noqa: ANN401
        words = list(sys.argv[1:] if args is None else args)
        if self._subparsers is None:
            self._refuse_misspelled(words)
        return super().parse_known_args(words, namespace)

    def _refuse_misspelled(self, words: Sequence[str]) -> None:
        """Before a missing argument is reported, which may be the misspelled one."""
        known = self._option_string_actions
        for word in words:
            if word == "--":
                return
            option = word.partition("=")[0]
            if option.startswith("--") and option not in known and (meant := _meant(option, known)):
                raise CommandError(f"no option {option!r}; {meant}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run `flyball ARGV...` and return its exit status; None: the process's arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else ""
    try:
        status = _dispatch(arguments)
        # A closed pipe is detected when the buffer is written.
        sys.stdout.flush()
    except CommandError as error:
        who = "flyball" if name.startswith("-") else f"flyball {name}"
        return _complain(f"{who}: {_one_line(error)}", error.status)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return status


def _dispatch(arguments: list[str]) -> int:
    commands = _commands()
    if not arguments:
        print(_help(commands), file=sys.stderr)
        return BAD_INPUT
    first, *rest = arguments
    if first == "help" and rest:
        first, rest = rest[0], ["--help"]
    if first in {"-h", "--help", "help"}:
        print(_help(commands))
        return 0
    if first == "--version":
        print(f"flyball {flyball_version()}")
        return 0
    if first == "--completion":
        return _complete("".join(rest[:1]), commands)
    if not commands:
        raise CommandError(
            "no command is found: the package is on the path but not installed; pip install it"
        )
    if first not in commands:
        meant = _meant(first, commands) or f"choose from {', '.join(commands)}"
        return _complain(f"flyball: no command {first!r}; {meant}")
    return _run(first, _load(commands[first]), rest)


def _run(name: str, command: Command, arguments: list[str]) -> int:
    parser = _parser(name, command)
    try:
        parsed = parser.parse_args(arguments)
    except SystemExit as finished:
        # After --help.
        return finished.code if isinstance(finished.code, int) else 0
    if command.reads_planner:
        from flyball_client.cli import planner_access  # noqa: PLC0415 - it loads httpx

        parsed.recorded_runs_of = partial(planner_access.recorded_runs, parsed.planner)
    return command.run(parsed)


def _parser(name: str, command: Command) -> _OneLineParser:
    parser = _OneLineParser(
        prog=f"flyball {name}", description=SUMMARIES.get(name), allow_abbrev=False
    )
    command.configure(parser)
    return parser


def _complete(shell: str, commands: dict[str, EntryPoint]) -> int:
    """Print the script of a shell's completion; a command that cannot be loaded is left out."""
    if shell not in _SHELLS:
        raise CommandError(f"no completion for {shell!r}; give one of {', '.join(_SHELLS)}")
    try:
        import shtab  # noqa: PLC0415 - of an extra
    except ImportError:
        raise CommandError(_needed("terminal")) from None
    parser = _OneLineParser(prog="flyball")
    parser.add_argument("--version", action="store_true", help="print the version")
    below = parser.add_subparsers()
    for name, entry in commands.items():
        with contextlib.suppress(CommandError):
            configure = _load(entry).configure
            configure(below.add_parser(name, help=SUMMARIES.get(name)))
    _show_candidates(parser, shtab.FILE)
    print(shtab.complete(parser, shell))
    return 0


def _show_candidates(parser: argparse.ArgumentParser, files: object) -> None:
    """Give each action what shtab reads: choices that only its metavar names, and files."""
    for action in parser._actions:
        if action.nargs == argparse.PARSER:
            below = cast("Mapping[str, argparse.ArgumentParser]", action.choices)
            for parser_below in below.values():
                _show_candidates(parser_below, files)
        elif action.type is Path:
            action.complete = files  # type: ignore[attr-defined] # shtab's protocol
        elif isinstance(action.metavar, str) and action.metavar.startswith("{"):
            action.choices = action.metavar.strip("{}").split(",")


def _commands() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in sorted(entry_points(group=_GROUP))}


def _load(entry: EntryPoint) -> Command:
    try:
        command = entry.load()
    except ImportError as error:
        raise CommandError(f"{_remedy(entry)} ({error})") from None
    if not isinstance(command, Command):
        raise CommandError(f"{entry.value} is not a Flyball command; reinstall its package")
    return command


def _remedy(entry: EntryPoint) -> str:
    extra, _ = _EXTRAS.get(_package(entry), (None, None))
    if extra is None:
        return "cannot be imported; reinstall it"
    return _needed(extra)


def _needed(extra: str) -> str:
    return f"needs the extra '{extra}': pip install '.[{extra}]' in a clone of Flyball"


def _package(entry: EntryPoint) -> str:
    return entry.value.split(".", maxsplit=1)[0]


def _summary(entry: EntryPoint) -> str:
    _, dependency = _EXTRAS.get(_package(entry), (None, None))
    if dependency is not None and find_spec(dependency) is None:
        return _remedy(entry)
    if entry.name not in SUMMARIES:  # another package's
        try:
            _load(entry)
        except CommandError:
            return _remedy(entry)
    return SUMMARIES.get(entry.name, "")


def _help(commands: dict[str, EntryPoint]) -> str:
    width = max((len(name) for name in commands), default=0)
    names_of = {
        title: [name for name in group if name in commands] for title, group in GROUPS.items()
    }
    grouped = {name for names in names_of.values() for name in names}
    names_of["Of other packages"] = [name for name in commands if name not in grouped]
    lines = [
        "usage: flyball COMMAND [ARGUMENTS]",
        "       flyball COMMAND --help",
        "       flyball --version | --completion SHELL",
        "",
        "The governor for pipeline-parallel training.",
    ]
    for title, names in names_of.items():
        if names:
            lines += ["", f"{title}:"]
            lines += [f"  {name:<{width}}  {_summary(commands[name])}" for name in names]
    return "\n".join(lines)


def _meant(word: str, known: Iterable[str]) -> str:
    """Return `did you mean NAME?` for the most similar name; empty where none is similar."""
    similar = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    return f"did you mean {similar[0]}?" if similar else ""


def _complain(text: str, status: int = BAD_INPUT) -> int:
    print(text, file=sys.stderr)
    return status


def _one_line(error: CommandError) -> str:
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())

"""Every command that the documentation shows is run, in its order, and prints what is shown."""

from __future__ import annotations

import ctypes.util
import os
import re
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.documentation.blocks import (
    EXIT_STATUS,
    FIGURES_VARY,
    FILE,
    NOT_RUN,
    OWN_TERMINAL,
    ROOT,
    TERMINAL,
    UNTIL_SO,
    WITHOUT_GPU,
    Block,
    Step,
    blocks_of,
    pages,
    steps_of,
)
from tests.documentation.page_needs import PREPARATIONS
from tests.documentation.preparations import Preparation, prepared_jobs, put_files
from tests.documentation.shown_output import difference, is_within, names_made
from tests.documentation.terminal import PATIENCE_S, Terminal, search_path, wait_for
from tests.planner.live import live_planner

# A page has up to some thirty commands, and the machine others to run.
pytestmark = [pytest.mark.timeout(900)]
_SERVE = re.compile(r"^(?:\w+=\S+ )*flyball serve\b(?!.*(?:&|--help)\s*$)", re.DOTALL)
_PAUSE_S = 0.5
_MAKES_VENV = "python3 -m venv .venv"
_INSTALLS = re.compile(r"pip install '\.\[([a-z,]+)\]'")
_PROGRAMS = ("curl", "awk", "torchrun")
# The last that a command says when it refuses, and what the planner answers then.
_REFUSAL = re.compile(r'(?:flyball [a-z]+: |\{"detail":).*')


def run_pages() -> list[str]:
    """Every page that has commands to run."""
    return [
        str(page.relative_to(ROOT))
        for page in pages()
        if any(block.has_commands and not block.note(NOT_RUN) for block in blocks_of(page))
    ]


@pytest.mark.parametrize("page", run_pages())
def test_a_pages_commands_run_in_their_order_and_print_what_it_shows(
    page: str, tmp_path: Path
) -> None:
    preparation = PREPARATIONS.get(page, Preparation())
    blocks = [block for block in blocks_of(ROOT / page) if not block.note(NOT_RUN)]
    _need_programs("\n".join(block.text for block in blocks if block.has_commands))
    with ExitStack() as opened:
        is_numbered = any(block.note(TERMINAL) for block in blocks)
        terminal = Terminal(
            tmp_path / "clone",
            tmp_path / "home",
            is_bare=is_numbered,
            installs=not preparation.is_installed
            and any(_MAKES_VENV in block.text for block in blocks),
        )
        opened.callback(terminal.close)
        run = PageRun(terminal, preparation, opened)
        put_files(preparation, terminal.folder)
        if not any(_starts_planner(block) for block in blocks):
            run.open_planner()
        for block in blocks:
            run.block(block)
        assert run.failed_beside() == []


@pytest.mark.parametrize("page", [page for page, one in PREPARATIONS.items() if one.is_installed])
def test_what_a_page_does_not_install_itself_the_quickstart_installs(page: str) -> None:
    wanted, made = (
        next(
            found.group(1).split(",")
            for block in blocks_of(ROOT / name)
            for step in (steps_of(block) if block.has_commands else ())
            if (found := _INSTALLS.fullmatch(step.command))
        )
        for name in (page, "docs/quickstart.md")
    )
    assert {*wanted} <= {*made}


@dataclass
class PageRun:
    """A page in the middle of its commands.

    Attributes:
        terminal: the one in which the page begins.
        opened: what ends with the page.
    """

    terminal: Terminal
    preparation: Preparation
    opened: ExitStack
    _is_prepared: bool = False

    def __post_init__(self) -> None:
        self._terminals = {self.terminal.number: self.terminal}
        self._taken = dict[str, str]()

    def failed_beside(self) -> list[str]:
        """As of a terminal, of all of them."""
        return [failed for each in self._terminals.values() for failed in each.failed_beside()]

    def open_planner(self) -> None:
        """A planner that runs already, where the page takes one for granted."""
        if not self.preparation.jobs and self.preparation.training is None:
            return
        url = str(self.opened.enter_context(live_planner()).http.base_url).rstrip("/")
        self.terminal.port = int(url.rpartition(":")[2])
        self._prepare_jobs()
        self.terminal.run(f"export FLYBALL_PLANNER_URL={url}")

    def block(self, block: Block) -> None:
        """Run its commands, or make the file that it holds."""
        if name := block.note(FILE):
            (self.terminal.folder / name).write_text(block.text, encoding="utf-8")
        elif block.has_commands and not _is_of_another_machine(block):
            self.terminal = self._terminal_of(block)
            steps = steps_of(block)
            for step in steps:
                self._step(block, step, is_last=step is steps[-1])

    def _terminal_of(self, block: Block) -> Terminal:
        """The terminal of the block's number; a new one is a shell of its own."""
        number = block.note(TERMINAL) or "1"
        if number not in self._terminals:
            first = self.terminal
            terminal = Terminal(
                first.folder,
                first.home,
                port=first.port,
                names=first.names,
                is_bare=first.is_bare,
                installs=first.installs,
                number=number,
            )
            self.opened.callback(terminal.close)
            self._terminals[number] = terminal
        return self._terminals[number]

    def _take_terminal(self, command: str) -> None:
        """Mark the terminal as occupied by a running command, if the page numbers its terminals."""
        if self.terminal.is_bare:
            self._taken[self.terminal.number] = command

    def _step(self, block: Block, step: Step, *, is_last: bool) -> None:
        if self.preparation.is_installed:
            if _INSTALLS.fullmatch(step.command):
                return
            step = replace(step, command=step.command.removeprefix(f"{_MAKES_VENV} && "))
        figures_vary = block.note(FIGURES_VARY) is not None
        if going_on := self._taken.get(self.terminal.number):
            where = f"{block.page}:{step.line}: terminal {self.terminal.number}"
            pytest.fail(f"{where} is taken by {going_on!r}", pytrace=False)
        if _SERVE.match(step.command):
            planner = self.terminal.start_planner(step.command)
            self._take_terminal(step.command)
            for terminal in self._terminals.values():
                terminal.port = self.terminal.port
            self._prepare_jobs()
            shown = self.terminal.as_on_the_page(planner.printed())
            if not is_within(step.shown or "", shown):
                pytest.fail(f"{block.page}:{step.line}: printed\n{shown}", pytrace=False)
        elif block.note(OWN_TERMINAL) is not None and is_last:
            self._take_terminal(step.command)
            beside = self.terminal.start(step.command)
            shown = step.shown or ""
            wait_for(beside, lambda: is_within(shown, beside.printed(), figures_vary=figures_vary))
        else:
            patience_s = PATIENCE_S if block.note(UNTIL_SO) is not None else 0.0
            found = self._lasting_fault(block, step, patience_s=patience_s)
            if found is not None:
                pytest.fail(f"{block.page}:{step.line}: {step.command}\n{found}", pytrace=False)

    def _lasting_fault(self, block: Block, step: Step, *, patience_s: float) -> str | None:
        deadline_s = time.monotonic() + patience_s
        while found := fault(self.terminal, block, step):
            if time.monotonic() > deadline_s:
                return found
            time.sleep(_PAUSE_S)
        return None

    def _prepare_jobs(self) -> None:
        """Once: a planner that is started again has its database."""
        if self._is_prepared:
            return
        self._is_prepared = True
        token = rank_token = self.terminal.variables().get("FLYBALL_TOKEN")
        made = [name for name in self.terminal.names.values() if name.startswith("fb_")]
        if token is None and made:  # the first is an operator's, as the planner wants it
            token, rank_token = made[0], made[-1]
        url = f"http://127.0.0.1:{self.terminal.port}"
        self.opened.enter_context(
            prepared_jobs(url, self.preparation, token=token, rank_token=rank_token)
        )


def fault(terminal: Terminal, block: Block, step: Step) -> str | None:
    """Run a command; how its end differs from what the page shows, None: it doesn't."""
    status, printed = terminal.run(step.command)
    wanted = block.note(EXIT_STATUS)
    if wanted is not None:
        is_as_wanted = status == int(wanted)
    elif step.shown is not None and _REFUSAL.fullmatch(step.shown.splitlines()[-1]):
        is_as_wanted = status != 0
    else:
        is_as_wanted = status == 0
    if not is_as_wanted:
        return f"exit status {status}\n{printed}"
    if step.shown is None:
        return None
    terminal.names.update(names_made(step.shown, printed))
    return difference(step.shown, printed, figures_vary=block.note(FIGURES_VARY) is not None)


def _need_programs(text: str) -> None:
    path = search_path(os.environ)
    needed = ["bash", *(name for name in _PROGRAMS if name in text)]
    missing = [name for name in needed if shutil.which(name, path=path) is None]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"missing: {', '.join(missing)}")
    assert not missing


def _starts_planner(block: Block) -> bool:
    return block.has_commands and any(_SERVE.match(step.command) for step in steps_of(block))


def _is_of_another_machine(block: Block) -> bool:
    return block.note(WITHOUT_GPU) is not None and bool(ctypes.util.find_library("nvidia-ml"))

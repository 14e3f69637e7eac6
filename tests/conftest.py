"""Fixtures and settings of all tests."""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from tests.browser.chromium import chromium_path
from tests.browser.fixtures import (
    browser,
    browser_context,
    browser_page,
    page_watch,
    start_planner,
)
from tests.browser.modules import modules
from tests.debian_packages import MissingProgramError
from tests.deploy.prometheus import prometheus_path, prometheus_tools
from tests.false_nvml.fixtures import false_nvml, false_nvml_library, loaded_nvml
from tests.integration.shells import shell_path
from tests.made_up_gpus.fixtures import made_up_gpus
from tests.postgres.fixtures import database_url, postgres_database, postgres_server
from tests.postgres.server import postgres_binaries

__all__ = [
    "browser",
    "browser_context",
    "browser_page",
    "database_url",
    "false_nvml",
    "false_nvml_library",
    "loaded_nvml",
    "made_up_gpus",
    "modules",
    "page_watch",
    "postgres_database",
    "postgres_server",
    "prometheus_tools",
    "start_planner",
]

# Imports and test items stay until the end: looking through them for garbage finds none.
gc.disable()

# Every run draws the same examples, and none is timed: what passes once passes on any machine.
# `pytest --hypothesis-profile random` draws others each time.
settings.register_profile(
    "random", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("repeatable", settings.get_profile("random"), derandomize=True)
settings.load_profile("repeatable")
# Otherwise it also draws constants of those of our modules that this process has imported.
setattr(providers, "_get_local_constants", lambda: vars(providers)["_local_constants"])  # noqa: B010

# Run in a shell's background, we and all our children would ignore Ctrl-C, which some of them
# are sent; a handler of Python's becomes the default action in a child.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What the test of a fixture needs of Debian's.
NEEDED: dict[str, Callable[[], object]] = {
    "browser": chromium_path,
    "fish": partial(shell_path, "fish"),
    "postgres_server": postgres_binaries,
    "prometheus_tools": prometheus_path,
    "zsh": partial(shell_path, "zsh"),
}


@pytest.fixture(autouse=True)
def no_reconciler_fails(request: pytest.FixtureRequest) -> Iterator[None]:
    """No planner in the test's process logs that a reconciler failed, whatever the test is of.

    Except where one shall: marker `reconciler_fails`.
    """
    failed: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: failed.append(logging.Formatter().format(record))  # type: ignore[method-assign]
    logger = logging.getLogger("flyball_server.jobs.reconcile.loop")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    shall_fail = request.node.get_closest_marker("reconciler_fails") is not None
    assert shall_fail or not failed, "\n".join(failed)


# Folders whose tests get one try: few of them start a process or wait in real time.
_ONE_TRY = ("unit", "architecture", "release")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a test of processes a second try: the machine may have stopped a process for seconds.

    The summary lists it as RERUN: CONTRIBUTING.md says what to do with it.
    """
    folders = [Path(__file__).parent / name for name in _ONE_TRY]
    for item in items:
        if not any(item.path.is_relative_to(folder) for folder in folders):
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=1))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install what the chosen tests need before the first begins: it has a time limit."""
    gc.freeze()
    # Rarely: reference counts free most of what tests leave behind.
    gc.set_threshold(100_000, 20, 20)
    gc.enable()
    if session.config.option.collectonly:
        return
    names = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    for name in sorted(names & NEEDED.keys()):
        with suppress(MissingProgramError):  # the test itself fails or is skipped
            NEEDED[name]()

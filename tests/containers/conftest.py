"""Fixtures of the tests that run containers; they run by `make image` and `make containers` only.

FLYBALL_CONTAINERS=running: with an engine that runs, else a skip; `install`: else with one that
is installed and started for the tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.containers.bases import provide
from tests.containers.engine import Engine, installed_engine, running_engine
from tests.debian_packages import skipped_where_missing
from tests.deploy.compose import ROOT, read_compose

_WANTED = os.environ.get("FLYBALL_CONTAINERS")
collect_ignore_glob = [] if _WANTED else ["test_*.py"]


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The machine's engine, or one of the tests' own."""
    running = running_engine()
    if running is not None:
        yield running
    elif _WANTED == "install":
        with (
            skipped_where_missing(),
            installed_engine(tmp_path_factory.mktemp("engine")) as started,
        ):
            yield started
    else:
        pytest.skip("no container engine runs here; `make containers` installs one")


@pytest.fixture(scope="session")
def image(engine: Engine) -> str:
    """The Dockerfile's image, built; its name."""
    name: str = read_compose()["services"]["planner-1"]["image"]
    with skipped_where_missing():
        provide(engine, "python:3.11-slim-bookworm")
    # On the host's network: pip's index may be there.
    engine.build(ROOT, name, "--network", "host")
    return name

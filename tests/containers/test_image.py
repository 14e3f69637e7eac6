"""The Dockerfile's image on a real engine: built, started, and as closed as compose has it."""

from __future__ import annotations

import json

from tests.containers.engine import Engine
from tests.planner.patience import wait_until

CLOSED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true")


def test_a_command_runs_without_rights_network_and_files(engine: Engine, image: str) -> None:
    said = engine.run(image, "--version", options=(*CLOSED, "--network", "none"))
    assert said.startswith("flyball ")
    assert "serve" in engine.run(image, "--help", options=(*CLOSED, "--network", "none"))


def test_a_planner_that_may_write_only_to_its_volume_gets_healthy_and_ends_at_sigterm(
    engine: Engine, image: str
) -> None:
    token = ("--env", "FLYBALL_TOKEN=an-operators-token-of-32-or-more")
    where = ("--tmpfs", "/tmp", "--network", "none")  # noqa: S108 - the container's
    options = (*CLOSED, *token, *where, "--health-interval", "1s")
    with engine.started(image, options=options) as planner:
        wait_until(lambda: engine.health(planner) == "healthy")
        found = engine("exec", planner, "flyball", "token", "list")
        assert found.startswith("No tokens.")
        inside = engine("exec", planner, "id", "-u"), engine("exec", planner, "ls", "-A", ".")
        assert (inside[0], "planner.sqlite" in inside[1]) == ("65532", True)
        engine("stop", planner)
        (state,) = json.loads(engine("inspect", "--format", "[{{json .State}}]", planner))
        assert (state["ExitCode"], state["OOMKilled"]) == (0, False)

"""An agent of torchrun restarts its ranks after one of them was killed."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.governed_rank.processes import wait_until
from tests.planner.live import live_planner

pytest.importorskip("torch", reason="needs the extra 'torch'")

from flyball_lab.demo.options import child_environment
from flyball_lab.demo.processes import ChildProcess, Interruption
from flyball_wire import routes

TRAINING = Path(__file__).with_name("restarted_training.py")
PATIENCE_S = 120.0

pytestmark = pytest.mark.slow


def test_ranks_that_an_agent_restarts_are_one_new_start_that_begins_at_once(tmp_path: Path) -> None:
    with live_planner() as planner, ExitStack() as opened:
        interruption = opened.enter_context(Interruption())
        arguments = (
            *("--standalone", "--nproc-per-node", "2", "--max-restarts", "3"),
            *(str(TRAINING), str(planner.http.base_url), str(tmp_path)),
        )
        environment = child_environment(os.environ) | {
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "IMPORTED_BEFORE": "flyball_integrations.data_parallel",
            "OMP_NUM_THREADS": "1",
            # With the agent's store gloo finds addresses of ranks that were killed, and gives up.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        log = tmp_path / "agent.log"
        agent = opened.enter_context(
            ChildProcess(
                ["-m", "tests.integration.forking_torchrun", *arguments],
                environment=environment,
                log=log,
            )
        )

        def job() -> dict[str, Any]:
            answer = planner.http.get(routes.fill(routes.JOB, job_id="job"))
            found: dict[str, Any] = answer.json() if answer.is_success else {}
            return found

        def present() -> list[int]:
            return [rank["rank"] for rank in job().get("ranks", ()) if not rank["has_left"]]

        starts: list[str] = []
        for killed in (0, None):
            wait_until(
                lambda: job() and job()["registration"]["start_id"] not in (None, *starts),
                f"start {len(starts)}",
                patience_s=PATIENCE_S,
                pause_s=0.1,
            )
            wait_until(lambda: present() == [0, 1], "its ranks", patience_s=PATIENCE_S, pause_s=0.1)
            starts.append(job()["registration"]["start_id"])
            assert not [note for note in job()["notes"] if "refused" in note]
            (tmp_path / ("end" if killed is None else f"kill-{killed}")).touch()
        status = agent.wait(interruption, timeout_s=PATIENCE_S)
        assert status == 0, log.read_text()[-4000:]
        assert present() == []
        assert len(planner.http.get(routes.fill(routes.JOBS)).json()) == 1

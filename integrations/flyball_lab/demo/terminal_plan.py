"""The plan in its terminal form, as `flyball simulate` prints it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from flyball_lab.demo.child_process import ChildProcess
from flyball_lab.demo.demo_errors import DemoFailedError
from flyball_lab.demo.interruption import Interruption
from flyball_lab.demo.run_folder import RunFolder, tail
from flyball_wire.messages import PlanView

_TIMEOUT_S = 60.0


def terminal_plan(
    plan: PlanView,
    folder: RunFolder,
    environment: Mapping[str, str],
    interruption: Interruption,
) -> list[str]:
    """One line a stage. The plan and its profile stay in the folder as files.

    Raises:
        DemoFailedError: `flyball simulate` failed.
        KeyboardInterrupt: a signal came meanwhile.
    """
    folder.plan_json.write_text(json.dumps(plan.plan))
    log = folder.path / "simulate.log"
    arguments = ["-m", "flyball_client", "simulate"]
    with ChildProcess(
        [*arguments, str(folder.profile_csv), str(folder.plan_json)],
        environment=environment,
        log=log,
    ) as simulate:
        status = simulate.wait(interruption, timeout_s=_TIMEOUT_S)
    if status != 0:
        raise DemoFailedError("flyball simulate failed on the demo's plan", log_tail=tail(log))
    return [line for line in log.read_text().splitlines() if line.startswith("Stage ")]

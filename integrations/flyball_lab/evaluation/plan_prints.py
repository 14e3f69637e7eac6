"""EnvPipe's plan after each reconfiguring step, from the planner's code in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flyball_lab.demo.child_process import ChildProcess
from flyball_lab.demo.interruption import Interruption
from flyball_lab.demo.run_folder import tail
from flyball_lab.evaluation.configurations import Configuration, merged_profile
from flyball_lab.evaluation.planned_run import EvaluationFailedError
from flyball_profiles.stage_profile_csv import write_stage_profile

_TIMEOUT_S = 300.0


def printed_plans(
    configuration: Configuration,
    folder: Path,
    environment: Mapping[str, str],
    interruption: Interruption,
) -> str:
    """`CURRENT_STEP n` and a row a stage, for each step from the unraised plan to the last.

    Raises:
        EvaluationFailedError: the process failed.
        KeyboardInterrupt: a signal came meanwhile.
    """
    model, manner = configuration.model, configuration.manner
    profile = folder / "profile.csv"
    profile.write_text(
        write_stage_profile(merged_profile(model.profile, configuration.num_pipelines))
    )
    log = folder / "reconfiguration.log"
    with ChildProcess(
        [
            *("-m", "flyball_server.cli.reconfiguration_steps", str(profile)),
            *("--microbatches", str(configuration.num_microbatches)),
            *("--blocking-power", repr(model.blocking_power_w)),
            *("--schedule", manner.schedule, "--policy", manner.policy),
            *("--reconfigure", manner.reconfigure),
        ],
        environment=environment,
        log=log,
    ) as process:
        status = process.wait(interruption, timeout_s=_TIMEOUT_S)
    if status != 0:
        raise EvaluationFailedError(
            f"{configuration.title}: its reconfiguration could not be printed: {tail(log)}"
        )
    return f"{configuration.title}\n{log.read_text()}"

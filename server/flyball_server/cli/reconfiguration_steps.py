"""Plan after each reconfiguring step, as EnvPipe prints it; run by `flyball evaluate`.

Run as `python -m flyball_server.cli.reconfiguration_steps PROFILE.csv --microbatches M ...`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from flyball_server.cli import pipeline_arguments
from flyball_server.planning.data_parallel import DataParallelRequest
from flyball_server.planning.documents.plan_text import plan_rows
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.planner import PlanRequest, choose_clocks, model_of_request
from flyball_server.planning.policies.envpipe import ENVPIPE_POLICIES
from flyball_server.planning.policies.reconfigure import reconfiguring_steps
from flyball_wire.command import CommandError
from flyball_wire.plan_options import Reconfigure


def main(argv: Sequence[str] | None = None) -> int:
    """Print `CURRENT_STEP n` and the plan's rows for each step; return the exit status."""
    try:
        for line in _lines(_request(argv)):
            print(line)
    except (CommandError, PlanningError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _request(argv: Sequence[str] | None) -> PlanRequest:
    parser = argparse.ArgumentParser(description="The plan after each reconfiguring step.")
    pipeline_arguments.add_pipeline_arguments(parser, policies=ENVPIPE_POLICIES)
    request = pipeline_arguments.request_of(parser.parse_args(argv))
    if isinstance(request, DataParallelRequest):
        raise CommandError("--data-parallel separate: pipelines are reconfigured one by one")
    return request


def _lines(request: PlanRequest) -> Iterator[str]:
    model = model_of_request(request)
    options = request.options
    not_raised = request.with_options(reconfigure=Reconfigure.DEFAULT)
    start = choose_clocks(not_raised, model).assignment
    steps = reconfiguring_steps(
        model, start, options.reconfiguration, request.reconfigure_granularity_mhz
    )
    for number, assignment in enumerate(steps):
        yield f"CURRENT_STEP {number}"
        yield from plan_rows(model, assignment, simulate(model, assignment))
        yield ""


if __name__ == "__main__":
    sys.exit(main())

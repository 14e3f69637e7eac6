"""Plan, serve and look, on whatever versions of the dependencies this environment has.

Run by `make test-lowest`, with the lowest ones that the project allows.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from flyball_client.api.planner_client import PlannerClient
from flyball_profiles.examples import example_profile_path
from flyball_wire.messages import JobRegistration

FLYBALL = str(Path(sys.executable).with_name("flyball"))
PROFILE = example_profile_path()
# `report` has nothing to report of a job without ranks, which is bad input.
OFFLINE = (("plan", 0), ("frontier", 0))
ONLINE = (("jobs list", 0), ("jobs show llm", 0), ("report llm", 2), ("top --once", 0))


def run(arguments: list[str], status: int) -> None:
    """Run a command; it must end with this status and no traceback."""
    done = subprocess.run([FLYBALL, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == status, (arguments, done)
    assert "Traceback" not in done.stderr, done.stderr


def main() -> None:
    """Run the commands beside a planner, and ask it for all that it serves."""
    for command, status in OFFLINE:
        run([command, str(PROFILE), "--microbatches", "8", "--gpu", "a100"], status)
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{folder}/planner.sqlite"
        serve = [FLYBALL, "serve", "--port", "0", "--database", database]
        with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            found = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
            assert found is not None
            with PlannerClient(found.group(), timeout_s=60.0) as planner:
                job = JobRegistration(num_stages=8, num_microbatches=8, blocking_power_w=(70.0,))
                planner.put_job("llm", job)
                planned = planner.put_profile_csv("llm", PROFILE.read_text())
                assert planned.newest_version == 1
            for line, status in ONLINE:
                run([*line.split(), "--planner", found.group()], status)
            process.terminate()
        assert process.returncode == 0
    print("all commands work")


if __name__ == "__main__":
    main()

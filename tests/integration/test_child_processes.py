"""No process that Flyball starts imports a module of the folder that it is started in.

Those of the demo: tests/acceptance/test_demo.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.false_nvml.library import FalseNvml
from tests.hostile_folder import HostileFolder
from tests.planner.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
# Starts in a folder of its own, so that only the processes that it starts can be led astray.
ELSEWHERE = "import os, sys; os.chdir(sys.argv[1])\n"
PROGRAMS = {
    "governor and standby": """
from tests.governed_rank.session_rank import main
main("ends")
""",
    "process that calls the planner": """
import logging, time
from tests.planner.linked_rank import LinkedRank
from tests.planner.patience import wait_until
lines = []
logging.getLogger("flyball_client").addHandler(handler := logging.Handler())
handler.emit = lambda record: lines.append(record.getMessage())
rank = LinkedRank("http://127.0.0.1:1", 0)
wait_until(lambda: any("cannot be reached" in line for line in lines))
rank.close()
""",
    "planning processes": """
from flyball_server.solving.processes import PlanningProcesses
executor = PlanningProcesses(1)
assert executor.submit(abs, -1).result(timeout=60) == 1
executor.shutdown()
""",
}


@pytest.mark.parametrize("started", PROGRAMS)
def test_no_child_imports_from_the_working_folder(
    false_nvml: FalseNvml, tmp_path: Path, started: str
) -> None:
    hostile = HostileFolder(tmp_path / "hostile")
    start = tmp_path / "start"
    start.mkdir()
    # An empty entry, as `PYTHONPATH=$PYTHONPATH:...` makes it, stands for the working folder.
    paths = ("", str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]))
    ran = subprocess.run(
        [sys.executable, "-P", "-c", ELSEWHERE + PROGRAMS[started], str(hostile.path)],
        cwd=start,
        env=false_nvml.environment
        | {"FLYBALL_STATE_DIR": str(tmp_path / "state"), "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=6 * PATIENCE_S,
        check=False,
    )
    assert hostile.imported() == []
    assert ran.returncode == 0, ran.stderr


def test_every_python_process_is_started_in_the_one_way() -> None:
    """So the doctor's, and those of a blocking pair, are started as the governor is above."""
    files = [
        file
        for part in ("client", "server", "integrations")
        for file in ROOT.glob(f"{part}/**/*.py")
    ]
    naming = [file.name for file in files if "sys.executable" in file.read_text()]
    assert naming == ["python_child.py"]

"""The guard in its container, as docs/clocks.md starts it, and a rank in another that is killed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.containers.engine import Engine
from tests.deploy.compose import ROOT
from tests.false_nvml.library import FalseNvml, build_library
from tests.planner.patience import wait_until

_RANK = ROOT / "tests/governed_rank"
_NODE_DIR = "/run/flyball"
_AT_DEFAULT = (0, 0)


def documented_guard() -> tuple[str, ...]:
    """The options of the documented `docker run` of the guard but those that need a GPU."""
    page = (ROOT / "docs/clocks.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^docker run (.*?guard)$", page, flags=re.MULTILINE | re.DOTALL)
    words = shlex.split(command.replace("\\\n", " ").replace("--gpus all", ""))
    (volume,) = (at for at, word in enumerate(words) if word == "--volume")
    assert words[volume + 1] == f"{_NODE_DIR}:{_NODE_DIR}"
    assert (words[0], words[-1]) == ("--detach", "guard")
    del words[volume : volume + 2]
    return tuple(words[1:-2])


def test_the_clock_of_a_killed_container_is_restored_by_the_guard_in_another(
    engine: Engine, image: str, tmp_path: Path
) -> None:
    (tmp_path / "library").mkdir()
    nvml = FalseNvml(build_library(tmp_path / "library"), tmp_path)
    # Of both containers: the GPUs, and the folder of the records.
    shared: list[str] = []
    for name, value in nvml.variables.items():
        shared += ["--env", f"{name}={value}"]
    shared += ["--volume", f"{tmp_path}:{tmp_path}", "--volume", f"{tmp_path}/node:{_NODE_DIR}"]
    (tmp_path / "node").mkdir()
    rank = ("--seed", "0", "--lease-s", "60", "--state-dir", f"{_NODE_DIR}/0")
    # The first process is another one, as with torchrun: it takes rank and governors with it.
    process = ("--init", "--interactive")
    rights = ("--user", "0:0", "--cap-drop", "ALL", "--cap-add", "SYS_ADMIN")
    script = ("--volume", f"{_RANK}:/rank:ro", "--entrypoint", "python")

    def train_and_be_killed() -> None:
        options = (*process, *rights, *script, *shared)
        with engine.started(image, "/rank/rank.py", *rank, options=options) as trained:
            wait_until(lambda: nvml.locked_mhz() > 0)
            engine("kill", trained)

    # Alone, with its governors in the same container, it leaves its clock locked.
    train_and_be_killed()
    assert nvml.locked_mhz() > 0
    nvml.set_range_mhz(*_AT_DEFAULT)
    with engine.started(image, "guard", options=(*documented_guard(), *shared)) as guard:
        wait_until(lambda: "watching" in engine.logs(guard))
        train_and_be_killed()
        wait_until(lambda: nvml.range_mhz() == _AT_DEFAULT)
        wait_until(lambda: "its SM clock was restored" in engine.logs(guard))
    nvml.close()

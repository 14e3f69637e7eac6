"""Ranks of one machine, forked from a process that has imported their frameworks before.

Importing torch, DeepSpeed or Megatron takes a rank longer than all that a test lets it do. So one
process imports them for a whole test session; each run is a fork of it, and each rank a fork of
the run, over gloo and loopback.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.planner.ports import free_port

from flyball_lab.demo.options import child_environment

_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 300

Findings = dict[str, Any]


# ------------------------------------------------------------------ for tests


class RankServer:
    """The process that ranks are forked from.

    Args:
        folder: for its log.
    """

    def __init__(self, folder: Path) -> None:
        environment = child_environment(os.environ) | {
            "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
            # Nothing is compiled here, and loading torch's compiler takes a rank seconds.
            "TORCHDYNAMO_DISABLE": "1",
            "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
        }
        with (folder / "rank-server.log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.rank_server"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._extensions = folder / "extensions"

    def run(self, module: str, folder: Path, *, num_ranks: int, **variables: str) -> list[Findings]:
        """Return the findings of each rank.

        Args:
            module: name of a module beside this one; each rank goes through its `scenarios()`.
            folder: for findings and log.
            num_ranks: ranks of the run.
            variables: added to the environment, which has none of Flyball's.
        """
        request = json.dumps([module, str(folder), num_ranks, variables])
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(request.encode() + b"\n")
        self._process.stdin.flush()
        status = self._process.stdout.readline()
        log = folder / "ranks.log"
        assert status == b"0\n", log.read_text()[-4000:] if log.exists() else "no rank started"
        assert not self._extensions.exists(), "DeepSpeed compiled something"
        return [json.loads(_findings(folder, rank).read_text()) for rank in range(num_ranks)]

    def close(self) -> None:
        """End the process and all that it started."""
        self._process.terminate()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


# ------------------------------------------------------------------ in the process


def _serve() -> None:
    """Run what is asked for on stdin, and answer each request with an exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch  # noqa: PLC0415 - not in a test's own process

    # The first optimizer imports more than the framework does.
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    for line in sys.stdin:
        module, folder, num_ranks, variables = json.loads(line)
        with suppress(Exception):  # the run fails in the same way, and logs it
            importlib.import_module(f"tests.integration.{module}")
        run = os.fork()
        if run == 0:
            _run(module, Path(folder), num_ranks, variables)
        try:
            _, status = os.waitpid(run, 0)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run, signal.SIGKILL)
        print(status, file=answers, flush=True)


def _run(module: str, folder: Path, num_ranks: int, variables: dict[str, str]) -> None:
    """Run all ranks in a process group of their own; does not return."""
    import torch.multiprocessing  # noqa: PLC0415

    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.alarm(_TIMEOUT_S)
    log = os.open(folder / "ranks.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ |= variables
    status = 1
    try:
        torch.multiprocessing.start_processes(
            _run_rank,
            (module, folder, num_ranks, free_port()),
            nprocs=num_ranks,
            start_method="fork",
        )
        status = 0
    except Exception as error:
        print(error, flush=True)
    finally:
        os._exit(status)


def _run_rank(rank: int, module: str, folder: Path, num_ranks: int, port: int) -> None:
    import torch.distributed  # noqa: PLC0415

    # DeepSpeed reads all that a launcher would have set.
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    began_s = time.monotonic()
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=num_ranks
    )
    findings = {}
    for name, found in importlib.import_module(f"tests.integration.{module}").scenarios():
        findings[name] = found
        print(f"rank {rank}: {name} ended at {time.monotonic() - began_s:.1f} s", flush=True)
    _findings(folder, rank).write_text(json.dumps(findings))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _findings(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"


if __name__ == "__main__":
    _serve()

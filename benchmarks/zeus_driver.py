"""Runs series of hooks through Zeus's real client; it alone runs in Zeus's own environment.

`python zeus_driver.py SERIES.json RESULT.json`, with the environment of `FalseGpus.variables`.
Zeus's `PipelineFrequencyOptimizer`, its controller process and its queue are what pip installed.
Two things are not: the planner behind it is a small HTTP server that answers its three calls,
and CUDA, which most machines of a benchmark lack: `torch.cuda.set_device` and the wait for the
device before every instruction do nothing, which is in Zeus's favour.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from zeus.optimizer.pipeline_frequency import PipelineFrequencyOptimizer, optimizer

from hooks_gpus import CallRecord
from hooks_series import INSTRUCTIONS, Series, run_series


class ZeusRank:
    """Zeus's callback with its controller process, a schedule in force."""

    wants_microbatch = False

    def __init__(self, callback: Any) -> None:  # noqa: ANN401 - Zeus is not installed here
        self.on_step_begin = callback.on_step_begin
        self.on_step_end = callback.on_step_end
        self.begin_hook: Callable[..., None] = callback.on_instruction_begin
        self.end_hook = callback.on_instruction_end
        self.controller_pid: int = callback.frequency_controller._proc.pid

    def take_delivery_ns(self) -> tuple[int, int] | None:
        """Its controller does not tell."""
        return None


class _Planner(BaseHTTPRequestHandler):
    """Answers registrations, and the schedule of rank 0."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self._answer("hooks")

    def do_GET(self) -> None:
        schedule = [(kind, mhz) for kind, _, mhz in INSTRUCTIONS]
        self._answer({"rank": 0, "frequencies": schedule})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as inherited
        """Say nothing."""

    def _answer(self, document: object) -> None:
        content = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def _planner_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Planner)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _optimizer(folder: str) -> Any:  # noqa: ANN401 - Zeus is not installed here
    """Made as Zeus's documentation says, for a job of one rank."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
    )
    torch.cuda.set_device = lambda _device: None
    optimizer.sync_execution = lambda _devices, sync_with: None
    with _planner_url() as url:
        return PipelineFrequencyOptimizer(
            rank=0,
            dp_rank=0,
            pp_rank=0,
            tp_rank=0,
            device_id=0,
            dp_degree=1,
            pp_degree=1,
            tp_degree=1,
            world_size=1,
            server_url=url,
        )


def main(series_file: Path, result_file: Path) -> None:
    """Run them all, one after the other."""
    wanted = [Series(**fields) for fields in json.loads(series_file.read_text(encoding="utf-8"))]
    # Zeus uses names that pydantic will take away one day.
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        callback = _optimizer(folder)
        rank = ZeusRank(callback)
        record = CallRecord.of_environment()
        try:
            results = [run_series(series, rank, record) for series in wanted]
        finally:
            callback.frequency_controller.end()
        torch.distributed.destroy_process_group()
    result_file.write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

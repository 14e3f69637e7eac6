"""Runs series of hooks through Zeus's real client; it alone runs in Zeus's own environment.

`python zeus_driver.py zeus SERIES.json RESULT.json`, with the environment of `FalseGpus`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
import torch.distributed
from zeus.optimizer.pipeline_frequency import PipelineFrequencyOptimizer, optimizer

from hooks_series import INSTRUCTIONS, HookedRank, main


class _ZeusPlanner(BaseHTTPRequestHandler):
    """Small server in the place of Zeus's: answers registrations, and the schedule of rank 0."""

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
def zeus_rank() -> Iterator[HookedRank]:
    """Zeus's `PipelineFrequencyOptimizer` and its controller process, as pip installed them.

    Two things are not: the planner behind it, and CUDA, which most machines of a benchmark lack.
    `torch.cuda.set_device` and the wait for the device before every instruction do nothing, which
    is in Zeus's favour.
    """
    # Zeus uses names that pydantic will take away one day.
    warnings.simplefilter("ignore")
    torch.cuda.set_device = lambda _device: None
    optimizer.sync_execution = lambda _devices, sync_with: None
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        opened.callback(torch.distributed.destroy_process_group)
        server = ThreadingHTTPServer(("127.0.0.1", 0), _ZeusPlanner)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        # A job of one rank, as Zeus's documentation makes it.
        alone = dict.fromkeys(("dp_degree", "pp_degree", "tp_degree", "world_size"), 1)
        place = dict.fromkeys(("rank", "dp_rank", "pp_rank", "tp_rank", "device_id"), 0)
        url = f"http://127.0.0.1:{server.server_address[1]}"
        callback = PipelineFrequencyOptimizer(**place, **alone, server_url=url)
        opened.callback(callback.frequency_controller.end)
        server.shutdown()
        yield HookedRank(
            begin_step=callback.on_step_begin,
            end_step=callback.on_step_end,
            begin=callback.on_instruction_begin,
            end=callback.on_instruction_end,
            takes_microbatch=False,
            controller_pid=callback.frequency_controller._proc.pid,
            take_delivery_ns=lambda: None,  # its controller does not tell
        )


if __name__ == "__main__":
    main(zeus_rank, *sys.argv[2:])

"""Calls of the ranks of one node, as bytes: to Flyball's planner, and to Zeus's server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flyball_wire import routes

CLOCKS_MHZ = tuple(range(1410, 195, -15))
POLL_WAIT_S = 60
TENSOR_PARALLEL = 8


@dataclass(frozen=True, kw_only=True)
class NodeCalls:
    """The calls of a node's ranks.

    Attributes:
        job_id: of the job, at either server.
        ranks: of the node, within the job.
        ranks_per_stage: ranks of a stage follow one another; 8 of them are tensor-parallel.
    """

    job_id: str
    ranks: tuple[int, ...]
    ranks_per_stage: int

    # ------------------------------------------------------------------ Flyball

    def register(self) -> Iterator[bytes]:
        """One call for each rank."""
        for rank in self.ranks:
            yield request("PUT", self._path(routes.RANK, rank=rank), self._registration(rank))

    def first_plans(self) -> Iterator[bytes]:
        """One call for each rank, which does not wait."""
        for rank in self.ranks:
            yield self.poll(rank, after_version=0, wait_s=0)

    def poll(self, rank: int, *, after_version: int, wait_s: int = POLL_WAIT_S) -> bytes:
        """Long poll of one rank."""
        path = self._path(routes.RANK_PLAN, rank=rank)
        return request("GET", f"{path}?after_version={after_version}&wait_s={wait_s}")

    def acknowledgements(self, *, version: int, step: int) -> Iterator[bytes]:
        """One call for each rank, which does not wait."""
        for rank in self.ranks:
            yield self.acknowledge(rank, version=version, step=step, wait_s=0)

    def acknowledge(
        self, rank: int, *, version: int, step: int, wait_s: int = POLL_WAIT_S
    ) -> bytes:
        """Acknowledgement of one rank, which waits for the version's first step."""
        path = self._path(routes.RANK_ACKNOWLEDGEMENT, rank=rank)
        return request(
            "POST", f"{path}?wait_s={wait_s}", {"version": version, "current_step": step}
        )

    def posts(self, *, first_step: int, num_steps: int) -> Iterator[bytes]:
        """One call for each rank and step."""
        for step in range(first_step, first_step + num_steps):
            for rank in self.ranks:
                yield self.post(rank, step)

    def minute_posts(self, *, first_step: int, num_steps: int) -> Iterator[bytes]:
        """One call for each rank, with all these steps."""
        steps = range(first_step, first_step + num_steps)
        for rank in self.ranks:
            path = self._path(routes.RANK_MEASUREMENTS, rank=rank)
            yield request("POST", path, {"steps": [_step(rank, step) for step in steps]})

    def post(self, rank: int, step: int) -> bytes:
        """One rank's post of a step."""
        path = self._path(routes.RANK_MEASUREMENTS, rank=rank)
        return request("POST", path, {"steps": [_step(rank, step)]})

    def _path(self, template: str, **parts: int) -> str:
        return routes.fill(template, job_id=self.job_id, **parts)

    def _registration(self, rank: int) -> dict[str, Any]:
        return {
            "stage": rank // self.ranks_per_stage,
            "host": f"node-{self.ranks[0] // len(self.ranks)}",
            "gpu_name": "NVIDIA H100 80GB HBM3",
            "gpu_uuid": f"GPU-{rank:08x}-load-load-load-0123456789ab",
            "emulated": True,
            "client_version": "0.1.0",
            "dp_rank": rank % self.ranks_per_stage // TENSOR_PARALLEL,
            "tp_rank": rank % TENSOR_PARALLEL,
            "sm_clocks_mhz": CLOCKS_MHZ,
        }

    # ------------------------------------------------------------------ Zeus

    def zeus_register(self) -> Iterator[bytes]:
        """One call for each rank."""
        for rank in self.ranks:
            info = {
                "rank": rank,
                "dp_rank": rank % self.ranks_per_stage // TENSOR_PARALLEL,
                "pp_rank": rank // self.ranks_per_stage,
                "tp_rank": rank % TENSOR_PARALLEL,
                "available_frequencies": CLOCKS_MHZ,
            }
            yield request("POST", f"/register_rank/{self.job_id}", info)

    def zeus_report(self) -> Iterator[bytes]:
        """One call for each rank: the time and energy of one iteration."""
        for rank in self.ranks:
            step = _step(rank, 0)
            result = {
                "rank": rank,
                "iter_time": [step["time_s"]],
                "iter_energy": [step["energy_j"]],
            }
            yield request("POST", f"/result/{self.job_id}", result)


def request(method: str, target: str, document: object = None) -> bytes:
    """An HTTP/1.1 request."""
    body = b"" if document is None else json.dumps(document, separators=(",", ":")).encode()
    head = f"{method} {target} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    if document is not None:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def _step(rank: int, step: int) -> dict[str, Any]:
    """A measured step, every figure of every rank and step another."""
    time_s = 9.5 + (rank * 7 + step * 13) % 1009 * 1e-3
    return {"step": step, "plan_version": 1, "time_s": time_s, "energy_j": 412.5 * time_s}

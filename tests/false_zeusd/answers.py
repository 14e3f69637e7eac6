"""Answers of a false zeusd, by the sources of the real one (0.4 to 0.6, ml-energy/zeus).

Everything is in the query, unknown parameters are refused, and errors come by GPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

from tests.false_nvml.library import FalseNvml

Discovery = Literal["addresses", "names", "numbers", "none"]
"""Form in which zeusd's versions list their GPUs, the newest first."""

Answer = tuple[int, bytes]
"""Status and body."""

_CLOCKS = ("min_clock_mhz", "max_clock_mhz")


@dataclass(kw_only=True)
class ZeusdAnswers:
    """The API of one false zeusd.

    Attributes:
        nvml: whose GPUs it sets; it has the right to, whatever faults are switched on there.
        gpus: the GPUs of `nvml` in its own order.
        token: what a request must bring; None: nothing.
        discovery: what it tells of its GPUs.
        api_groups: what it serves.
    """

    nvml: FalseNvml
    gpus: Sequence[int]
    token: str | None
    discovery: Discovery
    api_groups: Sequence[str]

    def of(self, method: str, target: str, authorization: str | None) -> Answer:
        """The answer to a request."""
        split = urlsplit(target)
        if split.path == "/discover":
            return self._discover()
        refusal = self._refusal(split.path, authorization)
        if refusal is not None:
            return refusal
        query = dict(parse_qsl(split.query, keep_blank_values=True))
        match method, split.path:
            case "POST", "/gpu/set_gpu_locked_clocks":
                return self._set(query, _CLOCKS)
            case "POST", "/gpu/reset_gpu_locked_clocks":
                return self._set(query, ())
            case "GET", "/gpu/get_cumulative_energy":
                return self._energy(query)
            case _:
                return 404, b""

    def _discover(self) -> Answer:
        if self.discovery == "none":
            return 404, b""
        told: dict[str, object] = {
            "enabled_api_groups": list(self.api_groups),
            "auth_required": self.token is not None,
        }
        if self.discovery == "numbers":
            return _json(200, told | {"gpu_ids": list(range(len(self.gpus)))})
        gpus = [{"id": gpu_id, "name": "False GPU"} for gpu_id in range(len(self.gpus))]
        if self.discovery == "addresses":
            for gpu, index in zip(gpus, self.gpus, strict=True):
                gpu["pci_address"] = self.nvml.pci_address(index)
        return _json(200, told | {"gpus": gpus, "cpus": []})

    def _refusal(self, path: str, authorization: str | None) -> Answer | None:
        group = "gpu-read" if path.startswith("/gpu/get_") else "gpu-control"
        if group not in self.api_groups:
            return _json(404, {"error": f"API group '{group}' is not enabled on this server."})
        if self.token is not None and authorization != f"Bearer {self.token}":
            return _json(401, {"error": "Invalid token: InvalidSignature"})
        return None

    def _set(self, query: Mapping[str, str], fields: Sequence[str]) -> Answer:
        refusal = _misfit(query, {"gpu_ids", "block", *fields})
        if refusal is not None:
            return refusal
        if query["block"] not in {"true", "false"}:
            return 400, b"Query deserialize error: provided string was not `true` or `false`"
        gpu_ids = [int(each) for each in query["gpu_ids"].split(",")]
        for gpu_id in gpu_ids:
            if gpu_id >= len(self.gpus):
                return 400, f"GPU index {gpu_id} does not exist.".encode()
        lowest_mhz, highest_mhz = (int(query[name]) for name in fields) if fields else (0, 0)
        if lowest_mhz > highest_mhz:
            return _json(400, {"errors": dict.fromkeys(map(str, gpu_ids), "NVML error: invalid")})
        for gpu_id in gpu_ids:
            self.nvml.set_range_mhz(lowest_mhz, highest_mhz, self.gpus[gpu_id])
        return 200, b""

    def _energy(self, query: Mapping[str, str]) -> Answer:
        refusal = _misfit(query, {"gpu_ids"})
        if refusal is not None:
            return refusal
        gpu_ids = [int(each) for each in query["gpu_ids"].split(",")]
        energies_mj = {each: self.nvml.energy_mj(self.gpus[each]) for each in gpu_ids}
        return _json(200, {str(each): {"energy_mj": mj} for each, mj in energies_mj.items()})


def _misfit(query: Mapping[str, str], wanted: set[str]) -> Answer | None:
    for name in query.keys() - wanted:
        return 400, f"Query deserialize error: unknown field `{name}`".encode()
    for name in wanted - query.keys():
        return 400, f"Query deserialize error: missing field `{name}`".encode()
    return None


def _json(status: int, document: object) -> Answer:
    return status, json.dumps(document).encode()

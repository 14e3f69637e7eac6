"""Process that computes short equal loops on a GPU and returns their times.

After `ready`, each line `SECONDS` on its standard input is answered by `computing`, when the GPU
computes, and by one line with the loops as JSON, `[[begin_s, end_s, work], ...]`; moments are of
CLOCK_MONOTONIC. It ends at the end of its standard input.

The loops are those of a persistent kernel, one block per SM, which records `globaltimer` and
`clock64` (as LATEST, arXiv 2502.20075); it is compiled at run time with the NVRTC of torch. Where
that fails, and on a CPU, a loop is one matrix product, timed by the host.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

import torch

from flyball_client.profiling.transitions.bench import COMPUTING, CYCLES, PRODUCTS, READY

Loops = list[tuple[float, float, float]]

_KERNEL = r"""
__device__ __forceinline__ long long moment_ns(float& a, float& b, float& c, float& d) {
    long long now;
    // The operands keep the arithmetic on its side of the reading.
    asm volatile("mov.u64 %0, %globaltimer;"
                 : "=l"(now), "+f"(a), "+f"(b), "+f"(c), "+f"(d) : : "memory");
    return now;
}

extern "C" __global__ void flyball_loops(
    long long* records, int num_records, int num_steps, int duration_us, float* sink) {
    // An SM's warps advance together: left alone, some of them starve for milliseconds.
    __shared__ int is_over;
    if (threadIdx.x == 0) is_over = 0;
    float a = threadIdx.x, b = a + 1.f, c = a + 2.f, d = a + 3.f;
    const long long begin_ns = moment_ns(a, b, c, d);
    for (int i = 0; i < num_records; ++i) {
        for (int j = 0; j < num_steps; ++j) {
            a = fmaf(a, 0.999f, 0.5f);
            b = fmaf(b, 0.999f, 0.5f);
            c = fmaf(c, 0.999f, 0.5f);
            d = fmaf(d, 0.999f, 0.5f);
        }
        __syncthreads();
        const long long now_ns = moment_ns(a, b, c, d);
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            records[2 * i] = now_ns;
            records[2 * i + 1] = clock64();
        }
        if (threadIdx.x == 0 && now_ns - begin_ns > 1000LL * duration_us) is_over = 1;
        __syncthreads();
        if (is_over) break;
    }
    if (a + b + c + d == 0.12345f) *sink = a;
}

extern "C" __global__ void flyball_moment(long long* moment) {
    float a = 0.f, b = 0.f, c = 0.f, d = 0.f;
    *moment = moment_ns(a, b, c, d);
}
"""

_NUM_THREADS = 1024
_LOOP_S = 1e-4
_FIRST_NUM_STEPS = 1000
# A loop is never this short; the buffer has room for as many.
_SHORTEST_LOOP_S = 2e-5
_TRIAL_S = 0.05
_NUM_CALIBRATIONS = 50

_SHORTEST_PRODUCT_S = 3e-4
_FIRST_SIZE = 64
_LARGEST_SIZE = 8192


class LoopLoad(Protocol):
    """Load of short equal loops on one device."""

    def compute(self, time_s: float, on_begin: Callable[[], None]) -> Loops:
        """Compute for a time in s; `on_begin` is called once the device has work."""
        ...


class KernelLoad:
    """Loops of a persistent kernel on a CUDA device; work in SM cycles.

    Raises:
        Exception: NVRTC cannot be used, or this torch has no access to it.
    """

    def __init__(self, device: torch.device) -> None:
        # torch asks for it, although a source without includes needs no headers.
        os.environ.setdefault("CUDA_HOME", "/usr/local/cuda")
        compiled: Any = torch.cuda._compile_kernel
        self._loops = compiled(_KERNEL, "flyball_loops")
        self._moment = compiled(_KERNEL, "flyball_moment")
        self._device = device
        self._num_sms = int(torch.cuda.get_device_properties(device).multi_processor_count)
        self._sink = torch.zeros(1, device=device)
        self._host_moment = torch.zeros(1, dtype=torch.int64, pin_memory=True)
        self._num_steps = _FIRST_NUM_STEPS
        trial = self.compute(_TRIAL_S, lambda: None)
        loop_s = (trial[-1][1] - trial[0][0]) / len(trial)
        self._num_steps = max(1, round(_FIRST_NUM_STEPS * _LOOP_S / loop_s))

    def compute(self, time_s: float, on_begin: Callable[[], None]) -> Loops:
        """Compute for a time in s."""
        num_records = int(time_s / _SHORTEST_LOOP_S) + 2
        records = torch.zeros((num_records, 2), dtype=torch.int64, device=self._device)
        torch.cuda.synchronize(self._device)
        self._loops(
            grid=(self._num_sms, 1, 1),
            block=(_NUM_THREADS, 1, 1),
            args=[records, num_records, self._num_steps, round(1e6 * time_s), self._sink],
        )
        on_begin()
        torch.cuda.synchronize(self._device)
        # After the load: before it, this would delay its begin.
        offset_ns = self._offset_ns()
        rows: list[list[int]] = records.cpu().tolist()
        ends = [(1e-9 * (now_ns + offset_ns), cycles) for now_ns, cycles in rows if now_ns]
        return [
            (begin_s, end_s, float(cycles - cycles_before))
            for (begin_s, cycles_before), (end_s, cycles) in pairwise(ends)
            if end_s > begin_s
        ]

    def _offset_ns(self) -> int:
        """Return CLOCK_MONOTONIC minus the GPU's timer, in ns, of the closest pair of readings."""
        best_ns, offset_ns = sys.maxsize, 0
        for _ in range(_NUM_CALIBRATIONS):
            before_ns = time.monotonic_ns()
            self._moment(grid=(1, 1, 1), block=(1, 1, 1), args=[self._host_moment])
            torch.cuda.synchronize(self._device)
            after_ns = time.monotonic_ns()
            if after_ns - before_ns < best_ns:
                best_ns = after_ns - before_ns
                offset_ns = (before_ns + after_ns) // 2 - int(self._host_moment.item())
        return offset_ns


class ProductLoad:
    """Loops of one matrix product each, on any device, timed by the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        size = _FIRST_SIZE
        while True:
            self._set_size(size)
            loops = self.compute(_TRIAL_S, lambda: None)
            # The first ones include loading the library.
            times_s = sorted(end_s - begin_s for begin_s, end_s, _ in loops)
            if times_s[len(times_s) // 2] >= _SHORTEST_PRODUCT_S or size >= _LARGEST_SIZE:
                return
            size *= 2

    def _set_size(self, size: int) -> None:
        self._left = torch.rand((size, size), device=self._device)
        self._right = torch.rand((size, size), device=self._device)
        self._product = torch.empty((size, size), device=self._device)

    def compute(self, time_s: float, on_begin: Callable[[], None]) -> Loops:
        """Compute for a time in s."""
        loops: Loops = []
        begin_s = time.monotonic()
        until_s = begin_s + time_s
        on_begin()
        while begin_s < until_s:
            torch.mm(self._left, self._right, out=self._product)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            end_s = time.monotonic()
            loops.append((begin_s, end_s, 1.0))
            begin_s = end_s
        return loops


def main() -> int:
    """Answer the lines of the standard input; return the exit status."""
    arguments = _arguments()
    try:
        load, way = _load(_device(arguments.device))
        print(f"{READY} {way}", flush=True)
        for line in sys.stdin:
            loops = load.compute(float(line), lambda: print(COMPUTING, flush=True))
            print(json.dumps(loops), flush=True)
    except Exception as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="clock_loops", allow_abbrev=False)
    parser.add_argument("--device", required=True, help="CUDA's number, or cpu")
    return parser.parse_args()


def _device(name: str) -> torch.device:
    if name == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError("this torch sees no CUDA device")
    if int(name) >= torch.cuda.device_count():
        raise RuntimeError(f"there is no cuda:{name}; torch sees {torch.cuda.device_count()}")
    torch.cuda.set_device(int(name))
    return torch.device("cuda", int(name))


def _load(device: torch.device) -> tuple[LoopLoad, str]:
    if device.type == "cpu":
        return ProductLoad(device), PRODUCTS
    try:
        return KernelLoad(device), CYCLES
    except Exception as error:
        print(
            f"no kernel can be compiled ({type(error).__name__}: {' '.join(str(error).split())})",
            file=sys.stderr,
        )
    return ProductLoad(device), PRODUCTS


if __name__ == "__main__":
    sys.exit(main())

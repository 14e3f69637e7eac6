"""Keeps a GPU busy with torch's matrix products until its standard input ends.

`python gpu_kernels.py`, with CUDA_VISIBLE_DEVICES naming the GPU; prints `busy` once it is.
"""

from __future__ import annotations

import select
import sys
from typing import Any

SIZE = 4096
NUM_AT_ONCE = 50


def main() -> int:
    """Until nobody holds the other end of standard input."""
    import torch  # noqa: PLC0415 - where it is missing, one line says so

    library: Any = torch
    if not library.cuda.is_available():
        print("torch sees no GPU here", file=sys.stderr)
        return 2
    hidden = library.randn(SIZE, SIZE, device="cuda", dtype=library.float16)
    is_told = False
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(NUM_AT_ONCE):
            hidden @ hidden
        library.cuda.synchronize()
        if not is_told:
            print("busy", flush=True)
            is_told = True
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Process of one of two ranks, of which one waits for the other.

Rank 1 prints `ready` and waits in a receive, with its GPU where the backend is NCCL. Rank 0
prints `ready` and sends after a line on its standard input. Both end at the end of their
standard input.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from flyball_client.profiling.blocking_power import READY, RECEIVED

# Longer than any measurement; NCCL's watchdog ends a rank that waits longer.
_TIMEOUT = timedelta(hours=1)


def main() -> int:
    """Run the rank that the arguments name; return the exit status."""
    arguments = _arguments()
    # Both ranks are on this machine and must not be reachable from others.
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, "lo")
    try:
        device = _device(arguments.backend, arguments.device)
        dist.init_process_group(
            arguments.backend,
            init_method=arguments.rendezvous.as_uri(),
            rank=arguments.rank,
            world_size=2,
            timeout=_TIMEOUT,
        )
        message = torch.zeros(arguments.num_elements, device=device)
        _exchange(arguments.rank, message)
    except Exception as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    if arguments.rank == 0:
        return _hold(message)
    return _wait(message)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="blocking_pair", allow_abbrev=False)
    parser.add_argument("--rank", type=int, choices=(0, 1), required=True)
    parser.add_argument("--backend", choices=("nccl", "gloo"), required=True)
    parser.add_argument("--device", type=int, required=True)
    parser.add_argument("--num-elements", type=int, required=True)
    parser.add_argument("--rendezvous", type=Path, required=True)
    return parser.parse_args()


def _device(backend: str, number: int) -> torch.device:
    if backend == "gloo":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError("this torch sees no CUDA device, and NCCL needs two")
    if number >= torch.cuda.device_count():
        raise RuntimeError(f"there is no cuda:{number}; torch sees {torch.cuda.device_count()}")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def _exchange(rank: int, message: torch.Tensor) -> None:
    """Exchange one message: connections are built on first use, which is not waiting."""
    if rank == 0:
        dist.send(message, dst=1)
    else:
        dist.recv(message, src=0)
    _finish(message)


def _finish(message: torch.Tensor) -> None:
    if message.is_cuda:
        torch.cuda.synchronize()


def _hold(message: torch.Tensor) -> int:
    print(READY, flush=True)
    if sys.stdin.readline():
        dist.send(message, dst=1)
        _finish(message)
    # Not destroyed: the other rank may have been ended, and this would wait for it.
    return 0


def _wait(message: torch.Tensor) -> int:
    threading.Thread(target=_leave_at_end_of_input, daemon=True).start()
    print(READY, flush=True)
    dist.recv(message, src=0)
    _finish(message)
    print(RECEIVED, flush=True)
    return 0


def _leave_at_end_of_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # A process group that is not destroyed may abort at the interpreter's end.
    os._exit(status)

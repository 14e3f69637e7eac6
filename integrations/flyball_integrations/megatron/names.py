"""What Flyball uses of Megatron's module `schedules`, and whether this version has it."""

from __future__ import annotations

import inspect
from typing import Any

CALLS = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_with_interleaving",
    "forward_backward_pipelining_without_interleaving",
)
_NAMES = (
    *CALLS,
    "forward_step",
    "backward_step",
    "get_schedule_table",
    "get_pp_rank_microbatches",
)
_PARAMETER = "p2p_communicator"
_TESTED_VERSIONS = "0.14.0, 0.15.3 and 0.16.1"


def check_names(schedules: Any, *, version: str) -> None:  # noqa: ANN401 - a module without types
    """Whether `megatron.core.pipeline_parallel.schedules` has all that is used of it.

    Args:
        schedules: the module.
        version: of megatron-core.

    Raises:
        ValueError: it has not.
    """
    missing = [name for name in _NAMES if not hasattr(schedules, name)]
    if not missing:
        of_warmup = inspect.signature(schedules.get_pp_rank_microbatches).parameters
        missing = [] if _PARAMETER in of_warmup else [f"{_PARAMETER} of get_pp_rank_microbatches"]
    if missing:
        raise ValueError(
            f"megatron-core {version} has no {missing[0]} in its schedules,"
            f" which Flyball uses; it is tested with megatron-core {_TESTED_VERSIONS}"
        )

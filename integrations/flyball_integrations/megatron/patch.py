"""Hooks by names rebound in Megatron's module `schedules`.

Megatron's schedules call `forward_step` and `backward_step` through the module, and
`get_forward_backward_func` returns one of its functions: what stands there under these names is
what runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from flyball_integrations.megatron.training import MegatronTraining
from flyball_integrations.shared.attachment import Overrides

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
    """Check that `megatron.core.pipeline_parallel.schedules` has all that is used of it.

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


Function = Callable[..., Any]


def patch_schedules(
    schedules: Any,  # noqa: ANN401 - a module without types
    training: MegatronTraining,
    overrides: Overrides,
) -> None:
    """Let every call, forward and backward be told of.

    Args:
        schedules: `megatron.core.pipeline_parallel.schedules`.
        training: what is told.
        overrides: takes it all back.
    """
    wrappers = _Wrappers(training)
    for name in CALLS:
        overrides.set(schedules, name, wrappers.around_call(getattr(schedules, name)))
    forward, backward = schedules.forward_step, schedules.backward_step
    overrides.set(schedules, "forward_step", wrappers.around_forward(forward))
    overrides.set(schedules, "backward_step", wrappers.around_backward(backward))


class _Wrappers:
    def __init__(self, training: MegatronTraining) -> None:
        self._training = training
        # Whose backward an output will be needed for, by the output's identity: Megatron keeps
        # the output until then, and does not tell the backward which one it is.
        self._place_of_output: dict[int, tuple[int | None, int]] = {}

    def around_call(self, stock: Function) -> Function:
        @wraps(stock)
        def run_microbatches(*args: object, **kwargs: object) -> object:
            self._place_of_output.clear()
            with self._training.call(forward_only=bool(kwargs.get("forward_only", False))):
                return stock(*args, **kwargs)

        return run_microbatches

    def around_forward(self, stock: Function) -> Function:
        @wraps(stock)
        def forward_between_hooks(*args: object, **kwargs: Any) -> Any:  # noqa: ANN401 - Megatron's
            if not self._training.is_training:
                return stock(*args, **kwargs)
            place = kwargs.get("current_microbatch"), kwargs.get("vp_stage") or 0
            self._training.begin("forward", *place)
            result = stock(*args, **kwargs)
            self._training.end("forward", *place)
            self._place_of_output[_identity(result[0])] = place
            return result

        return forward_between_hooks

    def around_backward(self, stock: Function) -> Function:
        @wraps(stock)
        def backward_between_hooks(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - Megatron's
            if not self._training.is_training:
                return stock(*args, **kwargs)
            output = args[1] if len(args) > 1 else kwargs.get("output_tensor")
            place = self._place_of_output.pop(_identity(output), (None, 0))
            self._training.begin("backward", *place)
            result = stock(*args, **kwargs)
            self._training.end("backward", *place)
            return result

        return backward_between_hooks


def _identity(output: object) -> int:
    """Of the output's first tensor; Megatron passes it on in a list or without."""
    while isinstance(output, list | tuple) and output:
        output = output[0]
    return id(output)

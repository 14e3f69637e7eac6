"""Both ways into Megatron's schedules, with functions and timers that stand for Megatron's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra 'torch'")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Megatron's own, at its import
    pytest.importorskip("megatron.core", reason="needs megatron-core")

from tests.unit.integrations.hook_log import HookLog, TransferLog

from flyball_integrations.megatron.order import one_f_one_b
from flyball_integrations.megatron.pipeline import patch_schedules
from flyball_integrations.megatron.timers import HookedTimers
from flyball_integrations.megatron.training import MegatronTraining
from flyball_integrations.shared.attachment import Overrides


def instructions(hooks: HookLog) -> list[str]:
    """Return the log's lines of instructions that began."""
    return [line for line in hooks.log if " of " in line and not line.endswith("ends")]


def schedules(run: Callable[[SimpleNamespace], None]) -> SimpleNamespace:
    """Stands for Megatron's module; `run` is its schedule, called with the module."""

    def forward_step(model: object, **places: object) -> tuple[object, int]:
        if model == "broken":
            raise RuntimeError("no memory")
        return [object()], 7

    def backward_step(input_tensor: object, output_tensor: object) -> str:
        return "gradient"

    module = SimpleNamespace(forward_step=forward_step, backward_step=backward_step)

    def forward_backward(*, forward_only: bool = False) -> str:
        run(module)
        return "losses"

    module.forward_backward_no_pipelining = forward_backward
    module.forward_backward_pipelining_with_interleaving = forward_backward
    module.forward_backward_pipelining_without_interleaving = forward_backward
    return module


def patched(
    run: Callable[[SimpleNamespace], None], hooks: HookLog
) -> tuple[SimpleNamespace, MegatronTraining]:
    """The module with hooks."""
    module = schedules(run)
    training = MegatronTraining(hooks, synchronize=hooks.synchronize)
    patch_schedules(module, training, Overrides())
    return module, training


def test_a_backward_is_known_by_the_output_that_it_is_given() -> None:
    def run(module: SimpleNamespace) -> None:
        kept = [
            module.forward_step("model", current_microbatch=microbatch, vp_stage=chunk)[0]
            for chunk in range(2)
            for microbatch in range(2)
        ]
        for number in (2, 0, 3):
            assert module.backward_step(None, kept[number]) == "gradient"
        # As where the output itself has been passed on, without its list.
        module.backward_step(None, kept[1][0])
        # None of this step's.
        module.backward_step(None, output_tensor=object())

    hooks = HookLog()
    module, _ = patched(run, hooks)
    assert module.forward_backward_no_pipelining() == "losses"
    assert instructions(hooks) == [
        "forward 0 of 0",
        "forward 1 of 0",
        "forward 0 of 1",
        "forward 1 of 1",
        "backward 0 of 1",
        "backward 0 of 0",
        "backward 1 of 1",
        "backward 1 of 0",
        "backward None of 0",
    ]


def test_a_call_that_fails_fails_its_step_and_the_next_is_a_step_again() -> None:
    models = iter(["broken", "model"])
    hooks = HookLog()
    module, _ = patched(lambda module: module.forward_step(next(models)), hooks)
    with pytest.raises(RuntimeError, match="no memory"):
        module.forward_backward_no_pipelining()
    assert hooks.log[-1] == "step failed"
    module.forward_step("model")
    assert hooks.log[-1] == "step failed"
    module.forward_backward_no_pipelining()
    assert hooks.log.count("step begins") == 2
    assert hooks.log[-1] == "step ends"


def run_1f1b(timers: Any, num_microbatches: int) -> None:  # noqa: ANN401 - called like Megatron's
    """Calls of Megatron's timers on the last stage but one of 1F1B."""
    timers("forward-backward", log_level=1).start(barrier=True)

    def compute(kind: str) -> None:
        timers(f"{kind}-compute", log_level=2).start()
        timers(f"{kind}-compute").stop()

    compute("forward")
    for _ in range(num_microbatches - 1):
        compute("forward")
        timers("forward-send-backward-recv", log_level=2).start()
        timers("forward-send-backward-recv").stop()
        compute("backward")
    compute("backward")
    timers("forward-backward").stop()


def hooked_timers(inner: object, hooks: HookLog, num_microbatches: int) -> HookedTimers:
    transfers = TransferLog(hooks.log)
    return HookedTimers(
        inner,
        MegatronTraining(hooks, synchronize=hooks.synchronize, transfers=transfers),
        order=one_f_one_b(2, num_microbatches).stages[0],
        transfers=transfers,
    )


def test_a_call_that_never_ended_does_not_shift_the_next_ones_microbatches() -> None:
    hooks = HookLog()
    timers = hooked_timers(None, hooks, 2)
    timers("forward-backward", log_level=1).start()
    timers("forward-compute", log_level=2).start()
    hooks.log.clear()
    run_1f1b(timers, 2)
    assert instructions(hooks)[0] == "forward 0 of 0"
    assert hooks.log.count("step begins") == 1


class Timers:
    """Stands for Megatron's timers: writes down what it is asked."""

    def __init__(self) -> None:
        self.log: list[object] = []

    def __call__(self, name: str, log_level: int | None = None) -> SimpleNamespace:
        return SimpleNamespace(
            start=lambda barrier=False: self.log.append((name, log_level, "start", barrier)),
            stop=lambda barrier=False: self.log.append((name, log_level, "stop", barrier)),
            elapsed=lambda: 1.5,
        )

    def write(self) -> str:
        return "written"


def test_timers_that_were_there_are_asked_as_without_hooks() -> None:
    alone, behind = Timers(), Timers()
    hooks = HookLog()
    timers: Any = hooked_timers(behind, hooks, 2)
    run_1f1b(alone, 2)
    run_1f1b(timers, 2)
    timers("optimizer", log_level=1).start()
    assert behind.log == [*alone.log, ("optimizer", 1, "start", False)]
    assert timers("forward-compute").elapsed() == 1.5
    assert timers.write() == "written"
    assert len(instructions(hooks)) == 4


def test_a_copied_config_keeps_the_same_timers() -> None:
    config = SimpleNamespace(timers=hooked_timers(None, HookLog(), 2))
    assert deepcopy(config).timers is config.timers

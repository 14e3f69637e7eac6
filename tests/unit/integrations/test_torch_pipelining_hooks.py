"""Hook calls of torch's schedules: computations, steps and waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra 'torch'")

import torch
from tests.unit.client.tiny_profile import HandClock
from tests.unit.integrations.hook_log import HookLog
from tests.unit.integrations.torch_world import (
    schedule_in_chunks,
    schedule_of_one,
    stage_of_one,
    train,
    world_of_one,
)
from torch import nn
from torch.distributed.pipelining import ScheduleGPipe, schedules

from flyball_integrations.shared.transfer_timers import TransferTimer
from flyball_integrations.torch.schedule_patch import PatchedInstruction, SchedulePatch, WaitTimes


@pytest.fixture(autouse=True, scope="module")
def _world() -> Iterator[None]:
    with world_of_one():
        yield


@contextmanager
def _patched(schedule: Any, hooks: HookLog, **kwargs: Any) -> Iterator[SchedulePatch]:  # noqa: ANN401
    patch = SchedulePatch(
        schedule, hooks, synchronize=kwargs.pop("synchronize", _nothing), **kwargs
    )
    yield patch
    patch.remove()


def _nothing() -> None:
    pass


# ------------------------------------------------------------------ hooks


def test_the_loss_is_part_of_the_last_stages_forward() -> None:
    hooks = HookLog()

    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        hooks.log.append("loss")
        return nn.functional.mse_loss(output, target)

    schedule = ScheduleGPipe(stage_of_one(), 1, loss_fn=loss_fn)
    train(schedule)  # torch asks for the loss once more when it looks at the shapes
    hooks.log.clear()
    with _patched(schedule, hooks):
        train(schedule)
    assert hooks.log == [
        *("step begins", "forward 0 of 0", "loss", "forward 0 of 0 ends"),
        *("backward 0 of 0", "backward 0 of 0 ends", "step ends"),
    ]


def test_a_step_that_fails_is_told_and_the_next_one_is_hooked_again() -> None:
    hooks, schedule = HookLog(), schedule_of_one(num_microbatches=1)
    train(schedule)
    stage = schedule._stage
    with _patched(schedule, hooks):
        stage.submod.forward = None
        with pytest.raises(RuntimeError, match="failed to run forward"):
            train(schedule)
        assert hooks.log == ["step begins", "forward 0 of 0", "step failed"]
        del stage.submod.forward
        hooks.log.clear()
        train(schedule)
        assert hooks.log[-1] == "step ends"
        assert "backward 0 of 0 ends" in hooks.log


def test_a_step_ends_with_the_optimizer_where_it_is_given() -> None:
    hooks, schedule = HookLog(), schedule_of_one(num_microbatches=1)
    optimizer = torch.optim.SGD(schedule._stage.submod.parameters(), lr=0.1)
    with _patched(schedule, hooks, optimizer=optimizer):
        train(schedule)
        assert hooks.log[-1] == "backward 0 of 0 ends"
        train(schedule)  # gradients are accumulated: this begins another step
        assert hooks.log.count("step ends") == 1
        optimizer.step()
        assert hooks.log[-1] == "step ends"
        optimizer.step()
        assert hooks.log.count("step begins") == hooks.log.count("step ends") == 2
    assert len(optimizer._optimizer_step_post_hooks) == 0
    hooks.log.clear()
    train(schedule)
    optimizer.step()
    assert hooks.log == []


def test_hooks_that_cannot_all_be_set_are_taken_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = schedule_in_chunks()
    first, second = schedule._stages
    optimizer = torch.optim.SGD(first.submod.parameters(), lr=0.1)
    before = [dict(vars(target)) for target in (schedule, first, second)]

    def refuse(*_: object) -> None:
        raise RuntimeError("not this one")

    monkeypatch.setattr(SchedulePatch, "_ending_forward", refuse)
    with pytest.raises(RuntimeError, match="not this one"):
        SchedulePatch(schedule, HookLog(), synchronize=_nothing, optimizer=optimizer)
    assert [vars(target) for target in (schedule, first, second)] == before
    assert len(optimizer._optimizer_step_post_hooks) == 0


# ------------------------------------------------------------------ waits


def test_a_computations_receive_lasts_from_its_first_wait_until_it_begins() -> None:
    told: list[tuple[object, ...]] = []
    clock = HandClock()

    def on_transfer(transfer: str, kind: str, **of_transfer: object) -> None:
        told.append((transfer, kind, *of_transfer.values()))

    waits = WaitTimes(TransferTimer(on_transfer, clock_s=clock.now_s))
    with waits.in_force():
        schedules._wait_batch_p2p([])
        clock.move(1.0)
        schedules._wait_batch_p2p([_Work(clock, 2.0)])
        schedules._wait_batch_p2p([_Work(clock, 0.5)])
        waits.before(PatchedInstruction("forward", 3, 1))
        waits.before(PatchedInstruction("backward", 2, 1))
        schedules._wait_batch_p2p([_Work(clock, 0.25)])
    assert told == [("receive", "forward", 2.5, 3, 1), ("send", "backward", 0.25, 2, 1)]


class _Work:
    def __init__(self, clock: HandClock, time_s: float) -> None:
        self._clock = clock
        self._time_s = time_s

    def wait(self) -> None:
        self._clock.move(self._time_s)

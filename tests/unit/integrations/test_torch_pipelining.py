"""Attaching to torch's schedules in one process: what is opened, refused, hooked, undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra 'torch'")

import torch
from tests.unit.client.recording_gpu import RecordingGpu
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
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, schedules

from flyball_integrations.shared.transfer_timers import TransferTimer
from flyball_integrations.torch.pipelining import attach, detach
from flyball_integrations.torch.schedule_patch import PatchedInstruction, SchedulePatch, WaitTimes
from flyball_wire.messages import JobRegistration

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture(autouse=True, scope="module")
def _world() -> Iterator[None]:
    with world_of_one():
        yield


# ------------------------------------------------------------------ attach and detach


def test_attach_starts_a_session_that_measures_each_step_and_detach_ends_it() -> None:
    schedule, gpu = schedule_in_chunks(), RecordingGpu()
    before = dict(vars(schedule))
    session = attach(schedule, job_id="job", gpu=gpu, initial_step=7)
    train(schedule)
    train(schedule)
    assert [measured.step for measured in session.history] == [7, 8]
    kinds = [timing.kind for timing in session.last_step_timings]
    assert kinds.count("backward_input") == kinds.count("backward_weight") == 4
    detach(schedule)
    detach(schedule)
    train(schedule)
    assert len(session.history) == 2
    assert vars(schedule).keys() == before.keys()
    assert "step" not in vars(schedule)


def test_the_environment_gives_it_an_emulated_gpu_of_its_chunks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kinds = ("forward", "backward_input", "backward_weight")
    rows = [
        f"0,{chunk},{kind},{mhz},0.003,{mhz / 1410}"
        for chunk in range(2)
        for kind in kinds
        for mhz in (1410, 1200)
    ]
    file = tmp_path / "profile.csv"
    file.write_text("\n".join(["stage,chunk,instruction,frequency,time,energy", *rows, ""]))
    monkeypatch.setenv("FLYBALL_GPU", f"emulated:{file}")
    schedule = schedule_in_chunks()
    session = attach(schedule, job_id="job")
    train(schedule)
    detach(schedule)
    # Two microbatches, two chunks, three instructions of 3 ms and 1 J each.
    assert session.history[0].time_s >= 0.036


class OwnLoop(Schedule1F1B):  # type: ignore[misc] # torch's schedules have no types
    """A schedule whose order cannot be known."""

    def _step_microbatches(self, *args: object, **kwargs: object) -> None:
        raise AssertionError("nothing is trained here")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (
            lambda: nn.Linear(2, 2),
            r"a schedule of torch\.distributed\.pipelining, not Linear",
        ),
        (lambda: ScheduleGPipe(stage_of_one(), 2), "no loss_fn, so it does not train"),
        (lambda: _runtime([stage_of_one()]), "has no pipeline_order"),
        (lambda: schedule_of_one(OwnLoop), r"^OwnLoop runs its microbatches .* use Schedule1F1B"),
    ],
)
def test_a_schedule_that_cannot_be_governed_is_refused(
    make: Callable[[], Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        attach(make(), job_id="job", gpu=RecordingGpu())


def test_a_function_that_computes_in_the_place_of_a_stage_is_refused() -> None:
    for kind in ("FORWARD", "BACKWARD_WEIGHT", "OVERLAP_F_B"):
        schedule = schedule_in_chunks()
        schedule.register_custom_function(getattr(schedules, kind), print)
        with pytest.raises(ValueError, match=f"custom function for {kind}.* do not register it"):
            attach(schedule, job_id="job", gpu=RecordingGpu())
        assert "step" not in vars(schedule)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (schedules, "_wait_batch_p2p"),
        (schedules.PipelineScheduleMulti, "_initialize_stages"),
    ],
)
def test_a_torch_that_lacks_a_name_is_told_by_version(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    schedule = schedule_of_one()
    monkeypatch.delattr(owner, name)
    with pytest.raises(ValueError, match=rf"torch 2.* has no {name} .* tested with torch 2\.13\.0"):
        attach(schedule, job_id="job", gpu=RecordingGpu())


@pytest.mark.parametrize(
    ("make", "arguments", "problem"),
    [
        (Schedule1F1B, {"order": "zigzag"}, "order must be one of own, envpipe, not 'zigzag'"),
        (ScheduleGPipe, {"order": "envpipe"}, "not for ScheduleGPipe"),
        (Schedule1F1B, {"extra_forwards": [0]}, "extra_forwards is for order='envpipe', not 'own'"),
        (
            Schedule1F1B,
            {"order": "envpipe", "extra_forwards": [0, 0]},
            "2 values for 1 stages; give one per stage",
        ),
        (Schedule1F1B, {"planner_url": "ftp://x"}, "http"),
        (Schedule1F1B, {"optimizer": [1, 2]}, "register_step_post_hook, .* not list"),
        (Schedule1F1B, {"lease_s": None, "env": ("FLYBALL_LEASE_S", "soon")}, "FLYBALL_LEASE_S"),
    ],
)
def test_what_cannot_be_used_is_refused_and_nothing_is_touched(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[..., Any],
    arguments: dict[str, Any],
    problem: str,
) -> None:
    given = dict(arguments)
    if "env" in given:
        monkeypatch.setenv(*given.pop("env"))
    schedule = schedule_of_one(make)
    before, stage_before = dict(vars(schedule)), dict(vars(schedule._stage))
    with pytest.raises(ValueError, match=problem) as refused:
        attach(schedule, job_id="job", gpu=RecordingGpu(), **given)
    assert "\n" not in str(refused.value)
    assert vars(schedule) == before
    assert vars(schedule._stage) == stage_before


def test_a_torch_whose_runtime_cannot_be_made_is_found_before_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def init(self: object, stages: object, n_microbatches: int) -> None:
        raise AssertionError("it is called with what it does not take")

    schedule = schedule_of_one(Schedule1F1B)
    before, stage_before = dict(vars(schedule)), dict(vars(schedule._stage))
    monkeypatch.setattr(schedules._PipelineScheduleRuntime, "__init__", init)
    with pytest.raises(
        ValueError, match=r"another order .*TypeError: .*'loss_fn'.*own'"
    ) as refused:
        attach(schedule, job_id="job", gpu=RecordingGpu(), order="envpipe")
    assert "\n" not in str(refused.value)
    assert vars(schedule) == before
    assert vars(schedule._stage) == stage_before


def test_a_job_says_which_classes_run_other_orders(registered: list[JobRegistration]) -> None:
    schedule = schedule_in_chunks()
    attach(schedule, job_id="job", gpu=RecordingGpu(), planner_url="http://127.0.0.1:9")
    detach(schedule)
    lines = [other.line for other in registered[0].other_orders]
    for line in lines:
        of_class = line.partition("(")[0]
        assert hasattr(schedules, of_class), of_class
    assert sum("extra_forwards=[{extra_forwards}]" in line for line in lines) == 1


# ------------------------------------------------------------------ orders


def _runtime(stages: list[Any], num_microbatches: int = 1) -> Any:  # noqa: ANN401 - torch's
    loss_fn = nn.functional.mse_loss
    return schedules._PipelineScheduleRuntime(stages, num_microbatches, loss_fn=loss_fn)


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


def test_a_loss_that_torch_computes_in_another_way_ends_with_the_next_computation() -> None:
    hooks, schedule = HookLog(), schedule_of_one(num_microbatches=1)
    with _patched(schedule, hooks):
        own = type(schedule)._maybe_compute_loss.__get__(schedule)
        vars(schedule)["_maybe_compute_loss"] = own
        train(schedule)
    assert hooks.log == [
        *("step begins", "forward 0 of 0", "forward 0 of 0 ends"),
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

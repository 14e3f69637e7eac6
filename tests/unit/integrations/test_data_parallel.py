"""Attaching to a loop without a pipeline, in one process."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

pytest.importorskip("torch", reason="needs the extra 'torch'")

import torch
from tests.unit.client.tiny_profile import HandClock
from torch import nn

from flyball_client.session.rank_session import RankSession
from flyball_client.steps.agreement import Coupling
from flyball_integrations.data_parallel import (
    attach,
    detach,
    microbatches,
    training,
    training_step,
)
from flyball_integrations.data_parallel.microbatches import MicrobatchSteps
from flyball_integrations.data_parallel.rank_waits import RankWaits
from flyball_integrations.data_parallel.training import _MicrobatchAnnouncer, _warn_unattached
from flyball_integrations.shared.device_hooks import DeviceHooks
from flyball_integrations.shared.whole_steps import WholeSteps

_PROFILE = "stage,instruction,frequency,time,energy\n0,step,1410,1,300\n0,step,1200,1.1,250\n"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[nn.Module]:
    """A model on an emulated GPU of which a step takes 1 ms; detached at the end."""
    profile = tmp_path / "step.csv"
    profile.write_text(_PROFILE)
    monkeypatch.setenv("FLYBALL_GPU", f"emulated:{profile},time_scale=0.001")
    model = nn.Linear(2, 2)
    yield model
    detach(model)


def test_a_single_process_is_a_job_of_one_rank_whose_failed_step_is_not_measured(
    model: nn.Module,
) -> None:
    session = attach(model, job_id="job", initial_step=7)
    with pytest.raises(ZeroDivisionError), training_step(model):
        raise ZeroDivisionError
    with training_step(model):
        model(torch.ones(1, 2)).sum().backward()
        with training_step(model):  # within a step it is the same one
            pass
    assert [step.step for step in session.history] == [8]
    (timing,) = session.last_step_timings
    assert (timing.kind, timing.microbatch, timing.receive_time_s) == ("step", 0, 0.0)
    assert timing.compute_time_s >= 1.0  # still emulated
    copied = pickle.loads(pickle.dumps(model))  # noqa: S301 - our own
    assert torch.equal(copied.weight, model.weight)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_model_that_is_not_wrapped_is_warned_of_where_there_are_several_ranks(
    model: nn.Module,
    num_ranks: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(training, "_rank_and_size", lambda: (0, num_ranks))
    attach(model, job_id="job")
    warned = [line for line in caplog.messages if "attach the wrapped model" in line]
    assert len(warned) == num_ranks - 1


_BY_MICROBATCH = (
    "stage,instruction,frequency,time,energy\n"
    "0,forward,1410,1,300\n0,forward,1200,1.1,250\n"
    "0,backward,1410,2,600\n0,backward,1200,2.2,500\n"
)


@pytest.fixture
def accumulating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[nn.Module]:
    """A model on an emulated GPU whose forwards and backwards are instructions."""
    profile = tmp_path / "microbatches.csv"
    profile.write_text(_BY_MICROBATCH)
    monkeypatch.setenv("FLYBALL_GPU", f"emulated:{profile},time_scale=0.001")
    model = nn.Linear(2, 2)
    yield model
    detach(model)


def _instructions(session: RankSession) -> list[tuple[str, int | None]]:
    return [(one.kind, one.microbatch) for one in session.last_step_timings]


def test_each_forward_and_backward_is_an_instruction_in_turn(accumulating: nn.Module) -> None:
    session = attach(accumulating, job_id="job", num_microbatches=2)
    in_turn = [("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1)]
    for _ in range(2):
        with training_step(accumulating), training_step(accumulating):
            for _ in range(2):
                accumulating(torch.ones(1, 2)).sum().backward()
            with torch.no_grad():
                accumulating(torch.ones(1, 2))  # of an evaluation
        assert _instructions(session) == in_turn
        # Padded to the profile's times.
        times_s = [one.compute_time_s for one in session.last_step_timings]
        assert all(time_s >= least_s for time_s, least_s in zip(times_s, (1, 2, 1, 2), strict=True))
    accumulating(torch.ones(1, 2)).sum().backward()  # outside of a step
    assert [step.step for step in session.history] == [0, 1]
    assert _instructions(session) == in_turn
    detach(accumulating)
    assert not accumulating._forward_hooks
    assert not accumulating._forward_pre_hooks


def test_a_step_that_fails_in_a_forward_or_a_backward_leaves_nothing_to_the_next(
    accumulating: nn.Module,
) -> None:
    session = attach(accumulating, job_id="job", num_microbatches=1)

    def fail(gradient: torch.Tensor) -> None:
        raise ArithmeticError

    with pytest.raises(RuntimeError, match="shapes"), training_step(accumulating):
        accumulating(torch.ones(1, 3))
    with pytest.raises(ArithmeticError), training_step(accumulating):
        accumulating.weight.register_hook(fail)
        accumulating(torch.ones(1, 2)).sum().backward()
    accumulating.weight._backward_hooks.clear()
    with training_step(accumulating):
        accumulating(torch.ones(1, 2)).sum().backward()
    assert [step.step for step in session.history] == [2]
    assert _instructions(session) == [("forward", 0), ("backward", 0)]


def test_a_number_of_microbatches_below_one_is_refused(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="num_microbatches must be at least 1, not 0"):
        attach(model, job_id="job", num_microbatches=0)


@pytest.mark.parametrize(
    ("meets", "coupling", "announced_with"),
    [
        ([True, True], "backward", "backward"),
        ([True, True], "instruction", "instruction"),
        ([False, True], "backward", "step"),  # no_sync in all but the last
        ([False, True], "instruction", None),
        ([True, False], "backward", None),
        ([False, False], "backward", None),
    ],
)
def test_microbatches_are_announced_once_a_step_has_shown_where_ranks_meet(
    meets: list[bool],
    coupling: Coupling,
    announced_with: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    announced: list[object] = []

    def announce_step(work: object, *, step: int, coupling: str) -> None:
        announced.append((work, coupling))

    hooks = DeviceHooks(torch.device("cpu"), "stream")
    session = RankSession(gpu=None, job_id="job", rank=0, stage=0, planner=None)
    waits = RankWaits(session, device=torch.device("cpu"), hooks=hooks)
    model, told = nn.Linear(2, 2), iter(meets)
    steps = MicrobatchSteps(
        model,
        hooks.of(session),
        waits,
        synchronize=hooks.synchronize,
        meets=lambda: next(told),
    )
    announcer = _MicrobatchAnnouncer(session, hooks, steps, coupling)
    with mock.patch.object(session, "announce_step", announce_step):
        announcer.announce([1.0, 2.0], 0)
        with steps.step():
            for _ in meets:
                model(torch.ones(1, 2)).sum().backward()
        for step in (1, 2):
            announcer.announce([1.0, 2.0], step)
    is_planned = announced_with is not None
    assert announced == ([([1.0, 2.0], announced_with)] * 2 if is_planned else [])
    warned = [line for line in caplog.messages if "wait for each other in some" in line]
    assert len(warned) == (0 if is_planned else 1)


def test_without_an_attachment_a_step_is_left_alone(
    model: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_unattached.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with training_step(model):
                pass
    detach(model)
    assert [record.message for record in caplog.records] == [
        "Flyball is not attached to this model, so training_step() does nothing"
    ]


def test_what_cannot_be_attached_to_is_refused_in_one_line(model: nn.Module) -> None:
    attach(model, job_id="job")
    with pytest.raises(ValueError, match="already attached"):
        attach(model, job_id="job")
    with pytest.raises(ValueError, match="no parameters"):
        attach(nn.Tanh(), job_id="job")
    with pytest.raises(TypeError, match=r"torch\.nn\.Module of the loop, not Adam"):
        attach(torch.optim.Adam(model.parameters()), job_id="job")
    with pytest.raises(TypeError, match="did you mean 'target'"):
        attach(nn.Linear(1, 1), job_id="job", targt="fastest")  # type: ignore[call-arg]


def test_a_step_lasts_from_the_end_of_earlier_work_to_that_of_its_own() -> None:
    clock, launched_s = HandClock(), [3.0]

    def synchronize() -> None:
        clock.move(sum(launched_s))
        launched_s.clear()

    session = RankSession(gpu=None, job_id="job", rank=0, stage=0, planner=None, clock=clock.now_s)
    with WholeSteps(session, synchronize=synchronize).step():
        launched_s.append(2.0)
    (timing,) = session.last_step_timings
    assert timing.compute_time_s == session.history[0].time_s == pytest.approx(2.0)


class Event:
    """Stands in for an event on a GPU's stream: its time is set by the test."""

    now_ms = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at_ms = 0.0

    def record(self) -> None:
        self.at_ms = Event.now_ms

    def elapsed_time(self, later: Event) -> float:
        return later.at_ms - self.at_ms


def test_on_a_gpu_waits_are_read_from_events_when_the_step_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(Event=Event))
    clock = HandClock()
    session = RankSession(gpu=None, job_id="job", rank=0, stage=0, planner=None, clock=clock.now_s)
    waits = RankWaits(session, device=torch.device("cuda"))
    steps = WholeSteps(session, synchronize=lambda: None, inside=waits.in_step)

    def wait(milliseconds: float) -> None:
        Event.now_ms += milliseconds

    def two_waits() -> None:
        for _ in range(2):
            waits.around(wait)(250.0)  # within another wait: counted once

    for _ in range(2):
        with steps.step():
            waits.around(wait)(100.0)
            waits.around(two_waits)()
            clock.move(2.0)
        (timing,) = session.last_step_timings
        assert timing.compute_time_s == pytest.approx(2.0 - 0.6)
        assert timing.receive_time_s == pytest.approx(0.6)
    waits.around(wait)(100.0)  # an evaluation
    with pytest.raises(ZeroDivisionError), steps.step():
        waits.around(wait)(100.0)
        waits.around(lambda: 1 / 0)()
    with steps.step():
        clock.move(1.0)
    assert session.last_step_timings[0].receive_time_s == 0.0


@pytest.mark.parametrize(
    ("is_unsharded", "reduces", "reshards", "meets"),
    [
        (False, True, False, True),
        (False, False, True, True),
        (False, False, False, False),  # gathers in the forward alone
        (True, True, True, False),
    ],
)
def test_fsdps_ranks_meet_in_microbatches_that_gather_and_wait_in_the_backward(
    is_unsharded: bool, reduces: bool, reshards: bool, meets: bool
) -> None:
    group = SimpleNamespace(
        is_unsharded=is_unsharded, reduce_grads=reduces, _reshard_after_forward=reshards
    )
    with mock.patch.object(microbatches, "fsdp_groups", lambda _: [group]):
        assert microbatches.meets_in_microbatch(nn.Linear(1, 1))() is meets

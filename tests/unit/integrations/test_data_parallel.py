"""Attaching to a loop without a pipeline, in one process."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra 'torch'")

import torch
from torch import nn

from flyball_integrations.data_parallel import attach, detach, training_step
from flyball_integrations.data_parallel.training import _warn_unattached

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


def test_a_single_process_is_a_job_of_one_rank(model: nn.Module) -> None:
    session = attach(model, job_id="job")
    with training_step(model):
        model(torch.ones(1, 2)).sum().backward()
        with training_step(model):  # within a step it is the same one
            pass
    assert [step.step for step in session.history] == [0]
    (timing,) = session.last_step_timings
    assert (timing.kind, timing.microbatch, timing.receive_time_s) == ("step", 0, 0.0)


def test_a_failed_step_raises_and_the_next_one_is_measured(model: nn.Module) -> None:
    session = attach(model, job_id="job", initial_step=7)
    with pytest.raises(ZeroDivisionError), training_step(model):
        raise ZeroDivisionError
    with training_step(model):
        pass
    assert [step.step for step in session.history] == [8]
    assert session.last_step_timings[0].compute_time_s >= 1.0  # still emulated


def test_an_attached_model_can_be_pickled(model: nn.Module) -> None:
    attach(model, job_id="job")
    copied = pickle.loads(pickle.dumps(model))  # noqa: S301 - our own
    assert torch.equal(copied.weight, model.weight)


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

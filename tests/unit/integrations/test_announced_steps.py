"""Steps that a loop without a pipeline announces, in one process: what its session is told."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra 'torch'")

import torch
from tests.unit.integrations.torch_world import world_of_one
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from flyball_client.session.rank_session import RankSession
from flyball_client.steps.agreement import AgreementError
from flyball_integrations.data_parallel import attach, detach, steps, training_step
from flyball_integrations.data_parallel.rank_waits import coupling_of
from flyball_integrations.data_parallel.training import _warn_unannounced
from flyball_integrations.shared import attachment
from flyball_integrations.shared.loading.step_work import BatchLengths

_BATCHES = [[3], [5, 1], [2]]


class Told:
    """Calls of sessions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plans: list[tuple[object, str]] = []
        self.work: dict[int, Sequence[BatchLengths]] = {}

        def plan_steps(session: RankSession, agreement: object, *, coupling: str) -> None:
            assert not session.history
            self.plans.append((agreement, coupling))

        def announce_step(session: RankSession, work: Any, *, step: int, **_: str) -> None:  # noqa: ANN401
            self.work[step] = work

        monkeypatch.setattr(RankSession, "plan_steps", plan_steps)
        monkeypatch.setattr(RankSession, "announce_step", announce_step)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


@pytest.fixture
def world() -> Iterator[None]:
    with world_of_one():
        yield


@pytest.fixture
def emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulated GPU of which a step takes 1 ms."""
    profile = tmp_path / "step.csv"
    rows = ("stage,instruction,frequency,time,energy", "0,step,1410,1,300", "0,step,1200,2,250")
    profile.write_text("\n".join(rows))
    monkeypatch.setenv("FLYBALL_GPU", f"emulated:{profile},time_scale=0.001")


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the integrations have logged."""
    return [each.getMessage() for each in caplog.records if "integrations" in each.name]


def _train(model: nn.Module, batches: Any) -> None:  # noqa: ANN401 - whatever `steps` returns
    for _ in batches:
        with training_step(model):
            model(torch.ones(1, 2)).sum().backward()


def test_each_step_is_announced_by_its_number(emulated: None, told: Told) -> None:
    model = nn.Linear(2, 2)
    attach(model, job_id="job", initial_step=4, announces_work=True)
    assert told.plans == [(None, "step")]  # a job of one rank
    _train(model, steps(_BATCHES, lengths=list))
    assert told.work == {4: [[3.0]], 5: [[5.0, 1.0]], 6: [[2.0]]}
    _train(model, steps(_BATCHES, lengths=lambda batch: 0.5 * len(batch), accumulate=2))
    # The whole step is one instruction.
    assert (told.work[7], told.work[8]) == ([0.75], [0.5])
    _train(model, steps(_BATCHES, lengths=torch.tensor, accumulate=2))
    assert (told.work[9], told.work[10]) == ([[3.0, 5.0, 1.0]], [[2.0]])
    detach(model)


def test_nothing_is_announced_unless_attach_is_asked_to(
    emulated: None, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    _warn_unannounced.cache_clear()
    with caplog.at_level(logging.WARNING):
        attach(model, job_id="job")
        for _ in range(2):
            _train(model, steps(_BATCHES, lengths=list))
        detach(model)
    assert (told.plans, told.work) == ([], {})
    assert [line.partition(":")[0] for line in _warnings(caplog)] == ["steps() announces nothing"]
    # Of several models, the one that is named.
    for each in (model, other):
        attach(each, job_id="job", announces_work=True)
    _train(other, steps(_BATCHES, lengths=list, model=other))
    assert len(told.work) == 3
    for each in (model, other):
        detach(each)


@pytest.mark.parametrize("has_no_sync", [True, False])
def test_batches_of_a_step_at_whose_ends_ranks_meet_are_not_announced(
    world: None,
    emulated: None,
    told: Told,
    caplog: pytest.LogCaptureFixture,
    has_no_sync: bool,
) -> None:
    model = DistributedDataParallel(nn.Linear(2, 2))
    attach(model, job_id="job", announces_work=True)
    for batches in steps(_BATCHES * 2, lengths=list, accumulate=3):
        with training_step(model):
            for number, _ in enumerate(batches):
                model.require_backward_grad_sync = not has_no_sync or number == 2
                # Two forwards of one backward meet once.
                (model(torch.ones(1, 2)) + model(torch.ones(1, 2))).sum().backward()
    _train(model, steps(_BATCHES, lengths=list))
    detach(model)
    # Step 1 would be announced with the last batch of step 0, when ranks have met twice.
    assert sorted(told.work) == ([0, 1, 2, 3, 4] if has_no_sync else [0])
    assert len(_warnings(caplog)) == (0 if has_no_sync else 1)


def test_ranks_meet_at_the_end_of_a_step_or_in_it(world: None) -> None:
    plain = nn.Linear(2, 2)
    assert coupling_of(plain, num_ranks=1) == "step"
    assert coupling_of(plain, num_ranks=2) == "unknown"
    assert coupling_of(nn.Sequential(DistributedDataParallel(plain)), num_ranks=2) == "step"
    fully_shard(sharded := nn.Linear(2, 2))
    assert coupling_of(nn.Sequential(sharded), num_ranks=2) == "instruction"


def test_ranks_that_cannot_agree_train_without(
    emulated: None, told: Told, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(place: object) -> None:
        assert place == (3, 0, 0, 0)
        raise AgreementError("no exchange with other ranks: Connection refused")

    monkeypatch.setattr(attachment, "agree_on_steps", refused)
    model = nn.Linear(2, 2)
    session = attach(model, job_id="job", dp_rank=3, announces_work=True)
    assert session.is_open
    assert told.plans == [(None, "unknown")]
    (line,) = _warnings(caplog)
    assert line.startswith("steps get no clocks of their own: no exchange with other ranks: ")
    detach(model)

"""Sends that are kept, and for how long; integration tests show their effect on training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("deepspeed", reason="needs the extra 'deepspeed'")

import torch
import torch.distributed
from deepspeed.runtime.pipe import p2p, schedule

from flyball_integrations.deepspeed.engine_order import EagerP2P


class Sends:
    """Stands in for torch.distributed: what was posted, and which sends were waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, backend: str = "gloo") -> None:
        self.posted: list[tuple[int, str, float]] = []
        self.over: list[float] = []
        self.tensors: list[torch.Tensor] = []
        groups = iter(["activations", "gradients"])
        monkeypatch.setattr(torch.distributed, "get_backend", lambda: backend)
        monkeypatch.setattr(torch.distributed, "new_group", lambda: next(groups))
        monkeypatch.setattr(torch.distributed, "isend", self._isend)

    def _isend(self, tensor: torch.Tensor, rank: int, *, group: str) -> Any:  # noqa: ANN401 - a Work
        self.posted.append((rank, group, float(tensor)))
        self.tensors.append(tensor)
        return SimpleNamespace(wait=lambda: self.over.append(float(tensor)))


def eager(*, stage: int = 1, num_stages: int = 3) -> EagerP2P:
    grid = SimpleNamespace(
        pipe_parallel_size=num_stages,
        get_stage_id=lambda: stage,
        stage_to_global=lambda stage_id: 10 + stage_id,
    )
    return EagerP2P(grid)


def sending(made: EagerP2P, kind: type, dest_stage: int) -> Any:  # noqa: ANN401 - an instruction
    """Return what executes a send of the given tensors."""

    def execute(engine: object, buffer_id: int, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            p2p.send(tensor, dest_stage)

    instructions = {schedule.SendActivation: execute, schedule.SendGrad: execute}
    wrapped = made.wrap(instructions)[kind]
    return lambda *values: wrapped(
        None, buffer_id=0, tensors=[torch.tensor(float(value)) for value in values]
    )


def test_no_more_is_kept_than_may_be_under_way_and_a_microbatch_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Stage 1 of 3 in 1F1B has 2 in flight, and stage 0 has 3.
    sends, made = Sends(monkeypatch), eager()
    with made.in_force():
        activation = sending(made, schedule.SendActivation, 2)
        activation(1, 1.5)
        activation(2, 2.5)
        assert sends.over == []
        activation(3, 3.5)
        assert sends.over == [1.0, 1.5]
        gradient = sending(made, schedule.SendGrad, 0)
        for value in (11, 12, 13):
            gradient(value)
        assert sends.over == [1.0, 1.5]
        gradient(14)
        assert sends.over == [1.0, 1.5, 11.0]


def test_a_sent_tensor_does_not_keep_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    sends, made = Sends(monkeypatch), eager()
    output = torch.ones((), requires_grad=True) * 2
    execute = made.wrap(
        {
            schedule.SendActivation: lambda engine, buffer_id: p2p.send(output, 2),
            schedule.SendGrad: print,
        }
    )[schedule.SendActivation]
    with made.in_force():
        execute(None, buffer_id=0)
    (sent,) = sends.tensors
    assert sent.grad_fn is None
    assert sent.data_ptr() == output.data_ptr()


def test_nccl_is_refused_with_what_to_use_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    Sends(monkeypatch, backend="nccl")
    with pytest.raises(ValueError, match=r"this run uses nccl; use p2p='stock', or p2p='pulled'"):
        eager()

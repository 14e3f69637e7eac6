"""Orders that ranks compare at `attach`; scenarios of real ranks show what several of them do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra 'torch'")

import torch.distributed
from tests.unit.integrations.torch_world import world_of_one

from flyball_integrations.shared.one_order import on_all_ranks_or_none, order_text
from flyball_wire.messages import JobRegistration

REGISTRATION = JobRegistration(num_stages=2, num_microbatches=1)


@pytest.fixture(autouse=True, scope="module")
def _world() -> Iterator[None]:
    with world_of_one():
        yield


def test_an_order_is_told_in_words_and_by_a_digest() -> None:
    envpipe = replace(REGISTRATION, schedule="envpipe", extra_forwards=(1, 0))
    text = order_text(envpipe, beside=", p2p pulled")
    assert text.startswith(
        "envpipe with 1, 0 more forwards in front of 2 stages and 1 microbatches, p2p pulled ("
    )
    assert text == order_text(replace(envpipe), beside=", p2p pulled")


@pytest.mark.parametrize(
    "changes",
    [
        {"num_stages": 3},
        {"num_microbatches": 2},
        {"schedule": "gpipe"},
        {"extra_forwards": (0, 0)},
        {"order": ((("forward", 0), ("backward", 0)),) * 2},
        {"virtual_stages": ((0,), (1,))},
    ],
)
def test_any_part_of_an_order_makes_another_text_and_planning_options_do_not(
    changes: dict[str, Any],
) -> None:
    assert order_text(replace(REGISTRATION, **changes)) != order_text(REGISTRATION)
    assert order_text(replace(REGISTRATION, target="least-energy")) == order_text(REGISTRATION)


def test_an_error_of_this_ranks_own_comes_out_when_the_others_have_been_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(KeyError, match="gpu"), on_all_ranks_or_none():
        raise KeyError("gpu")
    (message,) = caplog.messages
    assert message.startswith("Flyball is not attached to rank 0; the other ranks are notified")
    with on_all_ranks_or_none() as joining:
        joining.order = "1f1b"


def test_ranks_that_do_not_come_are_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    lost = r"^not all ranks called attach within 0\.1 s of .* undone here, ranks 1, 2 missing: .*$"
    with pytest.raises(ValueError, match=lost), on_all_ranks_or_none(timeout_s=0.1):
        pass
    with pytest.raises(KeyError, match="gpu"), on_all_ranks_or_none(timeout_s=0.1):
        raise KeyError("gpu")
    assert caplog.messages[1].startswith("the other ranks could not be notified: not all ranks")
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 5000)
    with pytest.raises(ValueError, match="is undone here: "), on_all_ranks_or_none(timeout_s=0.1):
        pass

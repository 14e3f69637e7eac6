"""Load of matrix products: how large they are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from flyball_integrations.shared import clock_loops
from flyball_integrations.shared.clock_loops import ProductLoad


def test_products_are_the_smallest_whose_median_time_can_be_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, num_products = 0.0, 0

    def multiply(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> None:
        """Take 50 us at size 64, each fourth a tenth of that, the very first 48 ms."""
        nonlocal now_s, num_products
        assert left.shape == right.shape == out.shape
        time_s = 5e-5 * (left.shape[0] / 64) ** 3
        now_s += 0.048 if num_products == 0 else time_s * (0.1 if num_products % 4 == 3 else 1)
        num_products += 1

    monkeypatch.setattr(clock_loops, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(torch, "mm", multiply)
    loops = ProductLoad(torch.device("cpu")).compute(0.05, lambda: None)
    # 0.4 ms at size 128: enough, unlike at 64, which the mean and the maximum would accept;
    # by the minimum it would be 256.
    times_s = sorted(end_s - begin_s for begin_s, end_s, _ in loops)
    assert times_s[len(times_s) // 2] == pytest.approx(4e-4)

"""The size of measurements that docs/operations.md states."""

from __future__ import annotations

from argparse import Namespace

from database_growth import measure


def test_a_measurement_and_a_pruned_step_are_as_large_as_documented() -> None:
    figures = measure(Namespace(ranks=16, stages=4, steps=400)).figures
    assert 120 < figures["a_measurement"] < 160
    assert 80 < figures["a_pruned_step"] < 130

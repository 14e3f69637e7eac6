"""Comparisons of what a page shows with what was printed."""

from __future__ import annotations

import pytest
from tests.documentation.shown_output import difference

_VERDICT = "llm: 15.1 % less energy (13.9 to 16.4) ..., measured on 2 emulated GPUs"


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        (_VERDICT, "llm: no measurable change in energy or time, measured on 8 emulated GPUs"),
        (
            _VERDICT,
            "llm: 2.0 % more energy (1.0 to 3.0) at 9 % more time, measured on 2 emulated GPUs",
        ),
        ("v3  1.5 [1.2, 1.8]", "v12 -7.25   [-9.0, 11]"),
        ("a\n...\nb", "a\nb"),
        ('{"a": 1, ...}', '{"a": 27,\n "b": 2}'),
    ],
)
def test_figures_and_verdicts_vary(shown: str, printed: str) -> None:
    assert difference(shown, printed, figures_vary=True) is None


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        (_VERDICT, "gpt: no measurable change in energy or time, measured on 2 emulated GPUs"),
        (_VERDICT, "llm: no measurable change in energy or time, predicted"),
        (_VERDICT, "llm: 15.1 % less energy, measured on 2 GPUs"),
        ("v3 saved", "v3 lost"),
        ("a\nb", "a"),
        ('{"a": 1}', '{"b": 1}'),
    ],
)
def test_words_do_not(shown: str, printed: str) -> None:
    assert difference(shown, printed, figures_vary=True) is not None

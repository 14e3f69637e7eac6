"""Choice of runs by `--fit`."""

from __future__ import annotations

import pytest

from flyball_server.replay.recorded_runs import RecordingError
from flyball_server.replay.replayed_runs import fitted_places

NAMES = ("baseline", "a", "b", "c", "d", "e")


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("every-second", (0, 2, 4)),
        ("all", (0, 1, 2, 3, 4, 5)),
        ("spread:2", (0, 5)),
        ("spread:3", (0, 2, 5)),
        ("spread:6", (0, 1, 2, 3, 4, 5)),
        ("names:d,baseline", (0, 4)),
        ("names: a , a", (1,)),
    ],
)
def test_a_rule_takes_these_places(text: str, places: tuple[int, ...]) -> None:
    assert fitted_places(text, NAMES) == places


@pytest.mark.parametrize(
    "text", ["", "half", "spread", "spread:", "spread:1", "spread:-3", "spread:x", "names:",
             "names:a,,b", "every-second:2", "spread:" + "9" * 20]
)  # fmt: skip
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(RecordingError, match="known: every-second, spread:5"):
        fitted_places(text, NAMES)


def test_a_run_that_is_not_there_is_named() -> None:
    with pytest.raises(RecordingError, match="run z: --fit names an unknown run"):
        fitted_places("names:a,z", NAMES)


def test_more_runs_than_there_are_cannot_be_spread() -> None:
    with pytest.raises(RecordingError, match="spread:7 of 6 runs"):
        fitted_places("spread:7", NAMES)

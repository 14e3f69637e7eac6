"""Processes that answer lines: their answers, their end, and no answer at all."""

from __future__ import annotations

import platform

import pytest

from flyball_client.profiling.line_process import LineProcess, LineProcessError


def test_a_line_is_read_and_the_end_after_it_is_an_error() -> None:
    with LineProcess("it", "platform", []) as process:
        assert process.has_output(60)
        assert process.line(60) == platform.platform()
        with pytest.raises(LineProcessError, match=r"^it ended: exit status 0$"):
            process.line(60)


def test_a_process_that_fails_says_why() -> None:
    with (
        LineProcess("it", "json.tool", ["none.json"]) as process,
        pytest.raises(LineProcessError, match=r"^it ended: .*none\.json"),
    ):
        process.line(60)


def test_a_process_that_does_not_answer_is_given_up_and_ends() -> None:
    with LineProcess("it", "json.tool", []) as process:
        process.write("{}")
        assert not process.has_output()
        with pytest.raises(LineProcessError, match=r"^it did not answer within 0\.01 s$"):
            process.line(0.01)

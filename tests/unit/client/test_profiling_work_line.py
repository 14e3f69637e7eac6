from __future__ import annotations

import io
import os
import pty

from flyball_client.profiling.arguments import WorkLine


def test_nothing_is_drawn_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    with WorkLine(stream) as line:
        line.show("forward at 1410 MHz")
    with WorkLine(None) as line:
        line.show("forward at 1410 MHz")
    assert stream.getvalue() == ""
    with WorkLine(stream, prints_first=True) as line:
        line.show("comparing")
        line.show("comparing on")
    assert stream.getvalue() == "comparing\n"


def test_a_terminal_that_has_gone_ends_nothing() -> None:
    reading_fd, writing_fd = pty.openpty()
    with open(writing_fd, "w") as terminal, WorkLine(terminal) as line:  # noqa: PTH123
        os.close(reading_fd)
        line.show("forward at 1410 MHz")
        line.show("backward")

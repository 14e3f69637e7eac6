"""Time limits of waits in tests; a light module, so that ranks in processes start at once."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 60.0


def wait_until(is_so: Callable[[], bool]) -> None:
    """Return when it is so; fail after a long while."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s, "it never came to be"
        time.sleep(0.005)

"""Watch of a GPU's conditions, such as its power limit, which others may change in mid-run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from flyball_client.gpu._base import GpuDevice
from flyball_profiles.gpu_conditions import GpuConditions, changes

_logger = logging.getLogger(__name__)

# The calls of a reading take some milliseconds together.
READ_PERIOD_S = 60.0


def conditions_of(gpu: GpuDevice | None) -> GpuConditions | None:
    """Return the conditions of a GPU; None: there is none, or they cannot be read."""
    try:
        return None if gpu is None else gpu.conditions()
    except Exception as error:
        _logger.debug("conditions cannot be read: %s", error)
        return None


class ConditionsWatch:
    """Conditions of one GPU, read once a minute on the thread that reads its energy.

    Args:
        gpu: GPU; None: there is none, and nothing is read.
        rank_name: Job and rank, for the log.
        now_s: Monotonic clock in s.
    """

    def __init__(
        self,
        gpu: GpuDevice | None,
        *,
        rank_name: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gpu = gpu
        self._rank_name = rank_name
        self._now_s = now_s
        self._next_read_s = 0.0
        self._known: GpuConditions | None = None

    def read_if_due(self) -> GpuConditions | None:
        """Return the conditions where they are read now, else None; log a change.

        What cannot be read any more is as it was, as the memory clock of an idle GPU.
        """
        now_s = self._now_s()
        if self._gpu is None or now_s < self._next_read_s:
            return None
        self._next_read_s = now_s + READ_PERIOD_S
        found, known = conditions_of(self._gpu), self._known
        if found is None:
            return None
        if known is not None:
            for change in changes(known, found):
                _logger.warning(
                    "%s: its GPU's conditions have changed: %s", self._rank_name, change
                )
            found = found.filled(known)
        self._known = found
        return found

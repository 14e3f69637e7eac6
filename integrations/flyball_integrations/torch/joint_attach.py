"""All ranks of a job end a block well, or all of them with an error.

A rank that changes the order of its sends and receives alone makes the others wait for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed

_logger = logging.getLogger(__name__)

_TIMEOUT_S = 120.0


@contextmanager
def on_all_ranks_or_none(*, timeout_s: float = _TIMEOUT_S) -> Iterator[None]:
    """What every rank does inside is to be undone by it where an error comes out.

    Every rank must come to it at the same time; over gloo, whatever training uses. An error of
    this rank's own comes out when the others have been told.

    Args:
        timeout_s: so long each of its two exchanges waits for a rank that does not come.

    Raises:
        ValueError: another rank has failed, or does not come.
    """
    try:
        yield
    except Exception as error:
        _logger.warning(
            "Flyball is not attached to rank %d, which the other ranks are now told: %s",
            torch.distributed.get_rank(),
            error,
        )
        try:
            _failed_ranks(has_failed=True, timeout_s=timeout_s)
        except RuntimeError as lost:
            _logger.warning("the other ranks could not be told: %s", _first_line(lost))
        raise
    try:
        failed = _failed_ranks(has_failed=False, timeout_s=timeout_s)
    except RuntimeError as error:
        raise ValueError(
            f"not all ranks came to attach within {timeout_s:g} s of each other, so it is undone"
            f" here: {_first_line(error)}"
        ) from error
    if failed:
        ranks = ", ".join(map(str, failed))
        raise ValueError(f"attach failed on rank {ranks}, so it is undone here; see the log there")


def _failed_ranks(*, has_failed: bool, timeout_s: float) -> list[int]:
    group = torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
    marks = torch.zeros(group.size(), dtype=torch.int64)
    marks[group.rank()] = int(has_failed)
    # Not freed where it fails: that would wait for the rank that is gone.
    torch.distributed.all_reduce(marks, group=group)
    torch.distributed.destroy_process_group(group)
    return [rank for rank, mark in enumerate(marks.tolist()) if mark]


def _first_line(error: RuntimeError) -> str:
    """Without the stack of C++ that torch puts behind it."""
    return str(error).partition("\n")[0]

"""Check at `attach` that all ranks run the same order, before the first step.

Ranks of different orders wait for each other without end. They compare through the store of the
process group, which all of them have reached before: it needs no message between GPUs, and it says
which ranks are missing.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch.distributed

from flyball_wire.messages import JobRegistration

_logger = logging.getLogger(__name__)

# As long as NCCL lets a rank wait for the others before it gives up.
TIMEOUT_S = 600.0
# Time for ranks to read what differs, before one of them ends and the store with it.
_READING_S = 10.0
_FAILED = "failed"
# Each rank that waits searches the store for the missing ranks.
_MOST_NAMED, _MOST_SEARCHED = 8, 512


def order_text(registration: JobRegistration, *, beside: str = "") -> str:
    """Return the order of a registration as one line for people, equal for equal orders only.

    Args:
        registration: job with the order that this rank runs.
        beside: what else the ranks must have in common.
    """
    schedule, extra = registration.schedule, registration.extra_forwards
    shape = (registration.num_stages, registration.num_microbatches)
    order = (schedule, *shape, extra, registration.order, registration.virtual_stages)
    digest = hashlib.sha256(json.dumps(order).encode()).hexdigest()[:12]
    named = "" if extra is None else f" with {', '.join(map(str, extra))} more forwards in front"
    return f"{schedule}{named} of {shape[0]} stages and {shape[1]} microbatches{beside} ({digest})"


class Joining:
    """Part of this rank in an attachment of all ranks.

    Attributes:
        order: order that this rank runs, as text; set within the block.
    """

    order = ""


@contextmanager
def on_all_ranks_or_none(*, timeout_s: float = TIMEOUT_S) -> Iterator[Joining]:
    """Raise on all ranks if one of them fails in the block or runs another order.

    Every rank must enter it as often as the others. An error of this rank is raised after the
    others are notified.

    Args:
        timeout_s: time limit in s for the ranks to come to its end after this rank.

    Raises:
        ValueError: another rank has failed, runs another order, or has not come.
    """
    joining, rank = Joining(), torch.distributed.get_rank()
    try:
        yield joining
    except Exception as error:
        _logger.warning(
            "Flyball is not attached to rank %d; the other ranks are notified: %s", rank, error
        )
        try:
            _texts(_FAILED, timeout_s)
        except ValueError as lost:
            _logger.warning("the other ranks could not be notified: %s", lost)
        raise
    ranks_of: dict[str, list[int]] = {}
    for rank, text in enumerate(_texts(joining.order, timeout_s)):
        ranks_of.setdefault(text, []).append(rank)
    if _FAILED in ranks_of:
        failed = ranks_text(ranks_of[_FAILED])
        raise ValueError(f"attach failed on {failed}, so it is undone here; see the log there")
    if ranks_of:
        runs = "; ".join(f"{ranks_text(ranks)}: {text}" for text, ranks in ranks_of.items())
        raise ValueError(
            f"the ranks would run different orders, and wait for each other forever: {runs}; give"
            " all of them the same pipeline and the same arguments"
        )


def _texts(mine: str, timeout_s: float) -> list[str]:
    """Return the text of each rank; empty: all have the same text.

    Raises:
        ValueError: not all ranks have come within `timeout_s`, or the store is lost.
    """
    store = torch.distributed.distributed_c10d._get_default_store()
    rank, num_ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    number = store.add(f"flyball/attached/{rank}", 1)
    keys = [f"flyball/attach/{number}/{each}" for each in (*range(num_ranks), "others")]
    *of_rank, others = keys

    def wait_for_all(what: str, limit_s: float) -> None:
        if store.add(f"{others} {what}", 1) == num_ranks:
            store.set(f"{others} have {what}", "")
        store.wait([f"{others} have {what}"], timedelta(seconds=limit_s))

    try:
        store.set(of_rank[rank], mine)
        store.wait(of_rank[:1], timedelta(seconds=timeout_s))
        store.add(others, int(store.get(of_rank[0]).decode() != mine))
        wait_for_all("come", timeout_s)
        if store.add(others, 0) == 0:
            return []
        texts = [store.get(key).decode() for key in of_rank]
        with suppress(RuntimeError):  # the others have ended: nobody is left to wait for
            wait_for_all("read", _READING_S)
    except RuntimeError as error:
        first_line = str(error).partition("\n")[0]  # without torch's C++ stack
        missing = missing_ranks(store, of_rank)
        raise ValueError(
            f"not all ranks called attach within {timeout_s:g} s of each other, so it is undone"
            f" here{f', {ranks_text(missing)} missing' if missing else ''}: {first_line}"
        ) from error
    return texts


def missing_ranks(store: torch.distributed.Store, keys: Sequence[str]) -> list[int]:
    """Return the ranks that have not set their key.

    Empty: all have, or there are too many to search, or the store is lost.
    """
    if len(keys) <= _MOST_SEARCHED:
        with suppress(RuntimeError):
            return [rank for rank, key in enumerate(keys) if not store.check([key])]
    return []


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks as a text, the first of many."""
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    noun = "rank" if len(ranks) == 1 else "ranks"
    return f"{noun} {', '.join(map(str, ranks[:_MOST_NAMED]))}{more}"

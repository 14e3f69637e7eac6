"""The one open session of this process on each real GPU."""

from __future__ import annotations

import logging
import weakref
from collections.abc import MutableMapping
from typing import Protocol

_logger = logging.getLogger(__name__)


class GpuSession(Protocol):
    """Session that another may replace."""

    name: str

    @property
    def is_open(self) -> bool:
        """Return whether it is this process's, and not closed."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


_of_gpu: MutableMapping[str, GpuSession] = weakref.WeakValueDictionary()


def replace_session(uuid: str, session: GpuSession) -> None:
    """Close the session that is open on a GPU, as one of a trial that failed."""
    older, _of_gpu[uuid] = _of_gpu.get(uuid), session
    if older is not None and older.is_open:
        text = "%s: closed, since %s of this process is on the same GPU"
        _logger.warning(text, older.name, session.name)
        older.close()

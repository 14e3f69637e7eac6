"""Bounded least recently used cache."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Lru(Generic[Key, Value]):
    """Least recently used cache; thread-safe.

    Args:
        max_size: limit of the total size; the newest value always stays.
        size_of: function that returns a value's size; default: 1 each.
    """

    def __init__(self, max_size: int, *, size_of: Callable[[Value], int] = lambda _: 1) -> None:
        self._max_size = max_size
        self._size_of = size_of
        self._guard = threading.Lock()
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """Return the value and mark it as most recently used; None: not cached."""
        with self._guard:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: Key, value: Value) -> None:
        """Store the value; drop the least recently used others until all fit."""
        with self._guard:
            self._values[key] = value
            self._values.move_to_end(key)
            size = sum(map(self._size_of, self._values.values()))
            while size > self._max_size and len(self._values) > 1:
                _, dropped = self._values.popitem(last=False)
                size -= self._size_of(dropped)

"""Compilation of the inner loops with numba, cached on disk where there is a place for it."""

# numba has no types: what its decorator returns is unknown to a type checker.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar, cast

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


def compiled_function(function: FunctionT) -> FunctionT:
    """The function, compiled when it is first called.

    It runs without Python's lock, so that a planner goes on answering meanwhile.

    The machine code is kept beside the source or in the user's cache folder, so that only the
    first call on a machine waits for it. Where neither can be written (a read-only container),
    each process compiles anew: seconds at its first plan.

    numba is loaded with the first call of any: a planner whose planning processes solve, and a
    command that only reads, do without it.
    """
    return cast("FunctionT", _CompiledFunction(function))


class _CompiledFunction:
    """Placeholder of a function until it is called, from Python or from compiled code."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> object:
        return self._compiled(*arguments)

    @property
    def _numba_type_(self) -> object:
        """Return what numba takes an object for that a function which it compiles calls."""
        return self._compiled._numba_type_

    @cached_property
    def _compiled(self) -> Any:  # noqa: ANN401 - numba has no types
        from numba import njit  # noqa: PLC0415

        try:
            return njit(cache=True, nogil=True)(self._function)
        except RuntimeError:  # numba: no place to keep it
            return njit(nogil=True)(self._function)

"""How the inner loops are compiled: with numba, kept on disk where there is a place for it."""

# numba has no types: what its decorator returns is unknown to a type checker.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


def compiled_function(function: FunctionT) -> FunctionT:
    """The function, compiled when it is first called.

    It runs without Python's lock, so that a planner goes on answering meanwhile.

    The machine code is kept beside the source or in the user's cache folder, so that only the
    first call on a machine waits for it. Where neither can be written (a read-only container),
    each process compiles anew: seconds at its first plan.
    """
    try:
        return cast("FunctionT", njit(cache=True, nogil=True)(function))
    except RuntimeError:  # numba: no place to keep it
        return cast("FunctionT", njit(nogil=True)(function))

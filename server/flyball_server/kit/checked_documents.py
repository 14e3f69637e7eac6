"""Documents of declared types: one pydantic adapter of each, and its first fault in one line."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError


@functools.cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - a type, or an alias of a type
    """Return the reader and writer of a type."""
    # Imported here: it takes a quarter of a second, and few commands read documents.
    from pydantic import TypeAdapter  # noqa: PLC0415

    return TypeAdapter(kind)


def first_fault(error: ValidationError) -> tuple[str, str]:
    """Return the place of a document's first fault, such as `stages[1].time_s`, and the fault."""
    fault = error.errors(include_url=False, include_input=False)[0]
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault["loc"])
    if fault["type"] == "value_error":
        message = str(fault.get("ctx", {})["error"])
    elif fault["type"] == "missing":
        message = "is missing"
    else:
        message = str(fault["msg"]).replace("Input should be", "must be", 1)
    return "".join(steps).removeprefix("."), message

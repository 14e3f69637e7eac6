"""Wire types as the bytes of their JSON, where an answer is long or is sent more than once.

FastAPI turns what a route returns into JSON on the event loop, for each call anew.
"""

from __future__ import annotations

import functools
from typing import Any

from pydantic import TypeAdapter


def rendered(kind: Any, value: object) -> bytes:  # noqa: ANN401 - a type, or an alias of one
    """The JSON of an instance of the wire type `kind`, or of `tuple[...]` of one, compact."""
    return _adapter(kind).dump_json(value)


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - as above
    return TypeAdapter(kind)

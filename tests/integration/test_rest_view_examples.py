"""Examples of what people look at jobs by, in the API's description: valid by their own types."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from flyball_server.http.openapi import view_examples
from flyball_server.http.openapi.documentation import plain
from flyball_wire import read_models

EXAMPLES = [
    value
    for value in vars(view_examples).values()
    if type(value).__module__ == read_models.__name__
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_every_example_is_valid_by_its_own_type(example: object) -> None:
    read = TypeAdapter(type(example)).validate_python(plain(example))
    assert plain(read) == plain(example)

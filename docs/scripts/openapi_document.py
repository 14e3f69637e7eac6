"""The API's OpenAPI document, from which pages, types and tests/integration/api.txt are made."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from flyball_server.app import create_app
from flyball_server.settings import Settings


@cache
def openapi_document() -> dict[str, Any]:
    """Return the document with sorted keys, as `/openapi.json` has it."""
    # The app is not started, so that its database is never opened.
    described = create_app(Settings(database="sqlite:///unused.sqlite")).openapi()
    document: dict[str, Any] = json.loads(json.dumps(described, sort_keys=True))
    return document


def schemas() -> dict[str, dict[str, Any]]:
    """Return the schema of each type by name."""
    found: dict[str, dict[str, Any]] = openapi_document()["components"]["schemas"]
    return found

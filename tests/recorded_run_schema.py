"""The published schema of recorded runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SCHEMA = Path(__file__).parents[1] / "docs" / "recorded-runs.schema.json"


def validate(document: dict[str, Any]) -> None:
    """Raise an error unless the document is as docs/recorded-runs.schema.json describes."""
    # Its formats take seconds to import, in each process that collects tests.
    import jsonschema  # noqa: PLC0415

    jsonschema.validate(document, json.loads(SCHEMA.read_text(encoding="utf-8")))

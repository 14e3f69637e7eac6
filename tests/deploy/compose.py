"""docker-compose.yml as compose reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
# What whoever starts it has to give; none of it has a default in a file.
SECRETS = {
    "POSTGRES_PASSWORD": "p@ss/word",
    "FLYBALL_TOKEN": "an-operators-token-of-32-or-more",
    "SITE_ADDRESS": "https://planner.example.org",
    "TLS_FOLDER": "/etc/ssl/planner",
    "TLS_CERTIFICATE": "planner.pem",
    "TLS_KEY": "planner.key",
}
MUST_BE_SET = re.compile(r"\$\{(\w+):\?([^}]+)\}")


def read_compose(values: Mapping[str, str] = SECRETS) -> dict[str, Any]:
    """docker-compose.yml with these values put in."""
    text = MUST_BE_SET.sub(lambda found: values[found[1]], COMPOSE.read_text())
    read: dict[str, Any] = yaml.safe_load(text)
    return read

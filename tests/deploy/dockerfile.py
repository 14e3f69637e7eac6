"""Properties of the image that a Dockerfile builds."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

# The python images' own, which PATH=/opt/flyball/bin:$PATH adds to.
BASE_PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, kw_only=True)
class Image:
    """The last stage of a Dockerfile.

    Attributes:
        environment: what ENV sets.
        user: `UID:GID`.
        folder: the working folder.
        volumes: what is written and kept.
        ports: what EXPOSE names.
        process: entry point and command.
        health_command: what HEALTHCHECK runs.
        copied: (from, to) of each COPY from the build context, in any stage.
        requirement: what the build stage installs, with its extras.
    """

    environment: dict[str, str]
    user: str
    folder: str
    volumes: tuple[str, ...]
    ports: tuple[int, ...]
    process: tuple[str, ...]
    health_command: tuple[str, ...]
    copied: tuple[tuple[str, str], ...]
    requirement: str


def read_dockerfile(file: Path) -> Image:
    """The image that it makes."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    instructions = [tuple(line.split(" ", 1)) for line in text.splitlines() if line.strip()]
    last = max(i for i, words in enumerate(instructions) if words[0] == "FROM")
    final = {words[0]: words[1] for words in instructions[last:]}
    environment = dict(word.split("=", 1) for word in shlex.split(final["ENV"]))
    environment["PATH"] = environment["PATH"].replace("$PATH", BASE_PATH)
    copies = [words[1] for words in instructions if words[0] == "COPY"]
    (installing,) = (words[1] for words in instructions[:last] if words[0] == "RUN")
    return Image(
        environment=environment,
        user=final["USER"],
        folder=final["WORKDIR"],
        volumes=tuple(final["VOLUME"].split()),
        ports=tuple(int(port) for port in final["EXPOSE"].split()),
        process=(*json.loads(final["ENTRYPOINT"]), *json.loads(final["CMD"])),
        health_command=tuple(json.loads(final["HEALTHCHECK"].partition("CMD ")[2])),
        copied=tuple(pair for line in copies if "--from" not in line for pair in _pairs(line)),
        requirement=installing.rpartition("wheels/")[2].strip(' "'),
    )


def _pairs(line: str) -> list[tuple[str, str]]:
    *sources, target = (word for word in line.split() if not word.startswith("--"))
    return [(source, target) for source in sources]
